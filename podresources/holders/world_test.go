package holders

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// world has the evidence from the kubelet and the API server about a small node, for tables. Pods
// are seen at second 10. The kubelet is asked at second 31, after all other evidence.
type world struct {
	listed []Allocation
	claims map[Claim]ClaimFacts
	pods   []PodFacts
	events []func(b *Book)
	also   []string                            // pods that the kubelet lists without devices
	gone   map[string]podresources.CgroupState // by UID
	uids   map[Pod]string                      // of listed pods, by files; nil: each has the UID uid-NAME
}

func deviceNamed(name string) driver.ID { return driver.ID{Driver: "d", Pool: "p", Device: name} }

// list adds devices of a claim that the kubelet lists for containers ("pod/container").
func (w world) list(claim, device string, containers ...string) world {
	a := Allocation{Claim: Claim{Namespace: "ns", Name: claim}, Device: deviceNamed(device)}
	device, a.ShareID, _ = strings.Cut(device, "#")
	a.Device = deviceNamed(device)
	for _, c := range containers {
		pod, container, _ := strings.Cut(c, "/")
		a.Holders = append(a.Holders, Holder{Pod: Pod{Namespace: "ns", Name: pod}, Container: container})
	}
	w.listed = append(slices.Clone(w.listed), a)
	return w
}

// claim adds a claim with allocated devices ("request:device" or "request:device#share") that is
// reserved for pods.
func (w world) claim(name string, facts ClaimFacts, results []string, pods ...string) world {
	for _, r := range results {
		request, device, _ := strings.Cut(r, ":")
		device, share, _ := strings.Cut(device, "#")
		facts.Results = append(facts.Results, ClaimResult{Device: deviceNamed(device), ShareID: share, Request: request})
	}
	facts.Reserved = map[string]string{}
	for _, p := range pods {
		facts.Reserved["uid-"+p] = p
	}
	claims := map[Claim]ClaimFacts{{Namespace: "ns", Name: name}: facts}
	maps.Copy(claims, w.claims)
	w.claims = claims
	return w
}

// pod adds a pod as the kubelet reports it.
func (w world) pod(name string, facts PodFacts) world {
	facts.Local = true
	return w.served(name, facts)
}

// served adds a pod as the API server reports it.
func (w world) served(name string, facts PodFacts) world {
	facts.Pod, facts.UID = Pod{Namespace: "ns", Name: name}, "uid-"+name
	w.pods = append(slices.Clone(w.pods), facts)
	return w
}

// ending makes the pod that was added last end at a second, while this number of its containers
// run.
func (w world) ending(n, running int) world {
	facts := w.pods[len(w.pods)-1]
	facts.Final, facts.Running = true, running
	return w.then(func(b *Book) { b.PodChanged(facts, second(n)) })
}

// then adds an event.
func (w world) then(event func(b *Book)) world {
	w.events = append(slices.Clone(w.events), event)
	return w
}

// holdings returns who holds what by all this evidence.
func (w world) holdings() Holdings {
	n := newNode(nil)
	for _, p := range w.pods {
		n.PodChanged(p, second(10))
	}
	for claim, facts := range w.claims {
		n.ClaimRead(claim, facts)
	}
	for _, event := range w.events {
		event(n.Book)
	}
	n.others, n.states, n.uids = w.also, w.gone, map[string]string{}
	for i := range w.listed {
		for _, h := range w.listed[i].Holders {
			n.uids[h.Name] = "uid-" + h.Name
			if w.uids != nil {
				n.uids[h.Name] = cmp.Or(w.uids[h.Pod], unknownUID)
			}
		}
	}
	n.answerTo(second(31), w.listed...)
	held, _ := n.Holds(second(31), time.Time{})
	return held
}

// holds returns the holders as texts: "claim device pod/container", and "allocated" if the device
// is not prepared.
func holds(allocations []Allocation) []string {
	var out []string
	for _, a := range allocations {
		for _, h := range a.Holders {
			row := fmt.Sprintf("%s %s %s/%s", a.Claim.Name, a.Device.Device, h.Name, h.Container)
			if a.ShareID != "" {
				row = fmt.Sprintf("%s %s#%s %s/%s", a.Claim.Name, a.Device.Device, a.ShareID, h.Name, h.Container)
			}
			if a.State == podresources.StateAllocated {
				row += " allocated"
			}
			out = append(out, row)
		}
	}
	slices.Sort(out)
	return out
}

// countHolders returns the number of containers that hold devices.
func countHolders(allocations []Allocation) int {
	n := 0
	for i := range allocations {
		n += len(allocations[i].Holders)
	}
	return n
}
