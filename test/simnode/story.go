package simnode

import (
	"slices"
	"strings"
	"time"
)

// Trouble is something that happens to a device, or to the source of all, in the demo.
type Trouble struct {
	Kind         string        // of the incident
	Code, Device string        // Device: "" for the source
	Pods         []string      // pods that it hits, as NAMESPACE/NAME
	At           time.Duration // when it begins, since the start of the node
	For          time.Duration // 0: it is momentary
}

// Story returns what happens in the demo until a time since the start of the node, in order. begin
// is the start of the scenario, since the start of the node.
func (s Scenario) Story(begin, until time.Duration) []Trouble {
	var out []Trouble
	add := func(t Trouble) {
		if t.At <= until {
			out = append(out, t)
		}
	}
	repeated := func(t Trouble, every time.Duration) {
		for at := every; every > 0 && at <= until; at += every {
			t.At = at
			add(t)
		}
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		pods := s.standing(d.Name)
		repeated(Trouble{Kind: "ecc_uncorrected", Device: d.Name, Pods: pods}, d.UncorrectedErrorEvery)
		repeated(Trouble{Kind: "link_down", Device: d.Name, Pods: pods}, d.LinkDownEvery)
		repeated(Trouble{Kind: "xid", Code: "31", Device: d.Name, Pods: pods}, d.XIDEvery)
		for _, at := range d.Lost.Begins(until) {
			add(Trouble{Kind: "device_lost", Code: "gpu_lost", Device: d.Name, Pods: pods, At: at, For: d.Lost.Length})
		}
	}
	for _, at := range s.Outage.Begins(until) {
		add(Trouble{Kind: "source_down", Code: "server_error", At: at, For: s.Outage.Length})
	}
	for at := begin; at <= until; at += s.Cycle {
		for _, f := range s.Faults {
			add(Trouble{Kind: "xid", Code: "31", Device: f.Device, Pods: []string{f.Namespace + "/" + f.Pod}, At: at + f.At})
		}
		for _, v := range s.Visits {
			if hangs, device := v.hangs(); hangs > 0 {
				add(Trouble{
					Kind: "claim_stalled", Device: device, Pods: []string{v.Pod.Namespace + "/" + v.Pod.Name},
					At: at + v.From + hangs, For: v.To - v.From - hangs,
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Trouble) int { return int(a.At - b.At) })
	return out
}

// standing returns the pods that always hold a device, without admin access.
func (s Scenario) standing(device string) []string {
	var out []string
	for _, p := range s.Standing {
		for _, c := range p.Claims {
			if slices.ContainsFunc(c.Requests, func(r Request) bool { return !r.Admin && slices.Contains(r.Devices, device) }) {
				out = append(out, p.Namespace+"/"+p.Name)
			}
		}
	}
	return out
}

// hangs returns the time since its start at which the pod hangs, and the device; 0: never.
func (v *Visit) hangs() (time.Duration, string) {
	for _, c := range v.Pod.Claims {
		for _, r := range c.Requests {
			if at := r.Load.HangsAt(); at > 0 {
				return at, r.Devices[0]
			}
		}
	}
	return 0, ""
}

// String says what happens, in a line.
func (t Trouble) String() string {
	out := t.Kind
	if t.Code != "" {
		out += " " + t.Code
	}
	if t.Device != "" {
		out += " of " + t.Device
	}
	if t.For > 0 {
		out += " for " + t.For.Round(time.Second).String()
	}
	if len(t.Pods) > 0 {
		out += ", hits " + strings.Join(t.Pods, ", ")
	}
	return out
}
