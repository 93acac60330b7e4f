package holders

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// grace is the grace period of a book.
const grace = 60 * time.Second

// node is a book with a clock, a kubelet and pods whose states the test sets. It calls the book as
// exporter/node does. By files, the UID of a pod is its name unless uids has another one; that of
// the pod called nameless is unknown.
type node struct {
	*Book
	t       testing.TB
	now     time.Time
	states  map[string]podresources.CgroupState
	kubelet podresources.Instance
	uids    map[string]string // known from files, by the pod's name
	others  []string          // pods that the kubelet lists without devices
	doubts  bool              // the last answer was not believed as a whole
	hints   int
}

func newNode(t testing.TB) *node {
	n := &node{t: t, now: at(0), states: map[string]podresources.CgroupState{}, kubelet: "1", others: []string{"exporter"}}
	n.Book = NewBook(grace, func() { n.hints++ })
	return n
}

const unknownUID = "nameless"

// held returns an allocation of a device to pods.
func held(device string, pods ...string) Allocation {
	a := Allocation{Claim: Claim{Namespace: "ns", Name: "claim-" + device}, Device: deviceNamed(device)}
	for _, pod := range pods {
		a.Holders = append(a.Holders, Holder{Pod: Pod{Namespace: "ns", Name: pod}, Container: "main"})
	}
	return a
}

// pluginHeld returns a device that a device plugin gave to a pod.
func pluginHeld(device, pod string) Allocation {
	a := held(device, pod)
	a.Claim.Name, a.Device.Pool, a.Device.Driver = "", "", "vendor.test/gpu"
	return a
}

// restart replaces the kubelet with another one, which lists no pod of the API server yet.
func (n *node) restart() { n.kubelet, n.others = n.kubelet+"'", nil }

func (n *node) cgroups(uids []string) map[string]podresources.CgroupState {
	out := map[string]podresources.CgroupState{}
	for _, uid := range uids {
		out[uid] = n.states[uid]
	}
	return out
}

// answer makes the kubelet answer a request that is sent now. The answer arrives after a while.
func (n *node) answer(after time.Duration, allocations ...Allocation) {
	n.now = n.now.Add(after)
	n.answerTo(n.now, allocations...)
}

// answerTo makes the kubelet answer a request that was sent at a time.
func (n *node) answerTo(asked time.Time, allocations ...Allocation) {
	a := Answer{Asked: asked, Kubelet: n.kubelet, Pods: map[Pod]struct{}{}, Allocations: allocations}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			a.Pods[h.Pod] = struct{}{}
		}
	}
	for _, pod := range n.others {
		a.Pods[Pod{Namespace: "ns", Name: pod}] = struct{}{}
	}
	a.UIDs = map[Pod]string{}
	for _, pod := range n.unidentified(a.Pods) {
		if uid := cmp.Or(n.uids[pod.Name], pod.Name); uid != unknownUID {
			a.UIDs[pod] = uid
		}
	}
	a.Cgroups = n.cgroups(n.unsure(&a, true))
	n.doubts = !n.Answered(&a)
}

// fail makes a request to the kubelet fail.
func (n *node) fail(after time.Duration) {
	n.now = n.now.Add(after)
	n.NotAnswered(n.cgroups(n.unsure(nil, false)), n.now)
}

// quiet reads the cgroups without a request to the kubelet.
func (n *node) quiet(after time.Duration) {
	n.now = n.now.Add(after)
	n.Cgroups(n.cgroups(n.unsure(nil, true)), n.now)
}

type holdings = map[string][]string

// held returns the pods by device, each once.
func (n *node) held() holdings {
	out := holdings{}
	held, _ := n.Holds(n.now, time.Time{})
	for _, a := range held.Allocations {
		for _, h := range a.Holders {
			if names := out[a.Device.Device]; !slices.Contains(names, h.Name) {
				out[a.Device.Device] = append(names, h.Name)
			}
		}
	}
	return out
}

// expect compares the holders: pods by device.
func (n *node) expect(when string, doubts bool, want holdings) {
	expect.Equal(n.t, when, want, n.held())
	expect.Is(n.t, n.doubts, doubts, "%s: doubting", when)
}

// expectReasons compares the reasons for which the pods hold their devices.
func (n *node) expectReasons(when string, want map[string]podresources.Reason) {
	got := map[string]podresources.Reason{}
	held, _ := n.Holds(n.now, time.Time{})
	for _, a := range held.Allocations {
		for _, h := range a.Holders {
			got[h.Name] = h.Hold.Reason
		}
	}
	expect.Equal(n.t, when, want, got)
}

// expectKnown checks the time until which the holders are known.
func (n *node) expectKnown(when string, want time.Time) {
	n.t.Helper()
	if _, signs := n.Holds(n.now, time.Time{}); !signs.At.Equal(want) {
		n.t.Errorf("%s: it is known until %v, want %v", when, signs.At.Sub(at(0)), want.Sub(at(0)))
	}
}

// The kubelet does not answer, then answers without pods, then with some of the pods, then with
// all. The absence of a pod is not believed at first. This is decided for each pod by itself.
func TestKubeletRestarts(t *testing.T) {
	n := newNode(t)
	before := holdings{"gpu-0": {"a", "b"}, "gpu-1": {"nameless"}}
	n.answer(0, held("gpu-0", "a", "b"), held("gpu-1", "nameless"))
	n.expect("at first", false, before)
	n.fail(time.Second)
	n.expect("away", false, before)
	n.expectKnown("away", at(0))
	n.expectReasons("away", map[string]podresources.Reason{
		"a": podresources.ReasonListed, "b": podresources.ReasonListed, "nameless": podresources.ReasonListed,
	})
	n.fail(4 * time.Second)
	n.expectReasons("away for long", map[string]podresources.Reason{
		"a": podresources.ReasonNoAnswer, "b": podresources.ReasonNoAnswer, "nameless": podresources.ReasonNoAnswer,
	})
	n.restart()
	n.answer(time.Second)
	n.expect("empty", true, before)
	n.fail(time.Second)
	n.answer(time.Second, held("gpu-1", "nameless"))
	n.expect("the first pod of the API server", true, before)
	n.expectReasons("the first pod of the API server", map[string]podresources.Reason{
		"a": podresources.ReasonRestarted, "b": podresources.ReasonRestarted, "nameless": podresources.ReasonListed,
	})
	n.answer(kubeletSettles-1, held("gpu-0", "a"), held("gpu-1", "nameless"))
	n.expect("and the next one", true, before)
	n.expectReasons("and the next one", map[string]podresources.Reason{
		"a": podresources.ReasonListed, "b": podresources.ReasonRestarted, "nameless": podresources.ReasonListed,
	})
	n.answer(1, held("gpu-0", "a"), held("gpu-1", "nameless"))
	n.expect("it knows its pods", false, holdings{"gpu-0": {"a"}, "gpu-1": {"nameless"}})
	n.expectKnown("it knows its pods", n.now)
	n.others = []string{"exporter"}
	n.answer(time.Second)
	n.expect("the last pods with devices end", false, holdings{})
}

// A kubelet that restarts while the API server is away lists only static pods. That one of them has
// a device of a plugin proves nothing about other pods (issue 28, fault 4).
func TestStaticPodProvesNothing(t *testing.T) {
	const static = "0f9c4a7be2d35168aa5cfe2b0a1d4e37"
	for name, known := range map[string]func(n *node){
		"by its object": func(n *node) {
			n.PodChanged(PodFacts{Pod: Pod{Namespace: "ns", Name: "etcd"}, UID: static, Static: true}, n.now)
		},
		"by files alone": func(*node) {},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			known(n)
			pod := "etcd"
			if name == "by files alone" {
				pod = static // the UID that is known from files is the name
			}
			plugin := pluginHeld("plugin-0", pod)
			all := holdings{"gpu-0": {"a"}, "gpu-1": {"b"}, "plugin-0": {pod}}
			n.answer(0, held("gpu-0", "a"), held("gpu-1", "b"), plugin)
			n.expect("at first", false, all)
			n.fail(time.Second)
			n.restart()
			for range 3 {
				n.answer(grace/4, plugin)
				n.expect("without API server", true, all)
			}
			n.answer(grace/8, held("gpu-0", "a"), plugin)
			n.expect("it is back, and one pod is listed", true, all)
			n.answer(time.Second, held("gpu-0", "a"), held("gpu-1", "b"), plugin)
			n.expect("both are listed", false, all)
		})
	}
}

// When the kubelet lists the next pod of a name, the log folder is still that of the earlier pod
// for a moment. The UID of a pod that has ended does not hold a device again.
func TestUIDOfAnEndedPod(t *testing.T) {
	for name, tt := range map[string]struct {
		uid   string
		state podresources.CgroupState // from the end of the pod on
		is    func(n *node)            // between the end and the next pod
		again bool                     // the pod may be listed again
	}{
		"its kubelet ceased to list it":          {uid: "first"},
		"and its cgroup is gone":                 {uid: "first", state: podresources.CgroupGone},
		"another kubelet lists it":               {uid: "first", is: (*node).restart, again: true},
		"another one, though its cgroup is gone": {uid: "first", state: podresources.CgroupGone, is: (*node).restart},
		"a static pod":                           {uid: staticUID, again: true},
		"long ago": {uid: "first", again: true, is: func(n *node) {
			n.answer(keepDeleted+time.Second, held("gpu-1", "other"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.uids = map[string]string{"a": tt.uid}
			uids := func() string {
				held, _ := n.Holds(n.now, time.Time{})
				return held.Allocations[0].Holders[0].UID
			}
			other := held("gpu-1", "other")
			n.answer(time.Second, held("gpu-0", "a"), other)
			if got := uids(); got != tt.uid {
				t.Fatalf("%q holds the device, want %q", got, tt.uid)
			}
			n.states[tt.uid] = tt.state
			n.answer(time.Second, other)
			if tt.is != nil {
				tt.is(n)
			}
			want := ""
			if tt.again {
				want = tt.uid
			}
			n.answer(time.Second, held("gpu-0", "a"), other)
			expect.Is(t, uids(), want, "the UID of the next pod")
			n.uids["a"] = "second"
			n.answer(time.Second, held("gpu-0", "a"), other)
			if got := uids(); got != "second" {
				t.Errorf("the UID of the next pod is %q, want that of its own folder", got)
			}
		})
	}
}

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
