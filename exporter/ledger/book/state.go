package book

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// State is the state of a device in one word, for people: on the page, in top, on dashboards, in
// rules and in documents.
type State string

// The states. A device has the first one that applies.
const (
	StateUnhealthy   State = "unhealthy"
	StateStalled     State = "stalled"
	StateGuest       State = "guest"
	StateUnmeasured  State = "unmeasured"
	StateIdle        State = "idle"
	StateQuiet       State = "quiet"
	StateActive      State = "active"
	StatePartitioned State = "partitioned"
	StateTainted     State = "tainted"
	StateUnavailable State = "unavailable"
	StateFree        State = "free"
)

// states has all states in order of precedence, with the order of the attention that they need
// (broken, held but wasted, not readable, working, not held), and their definitions.
func states() [11]stateFacts {
	return [...]stateFacts{
		{
			StateUnhealthy, 0,
			"its driver or the kubelet reports it unhealthy, it can no longer be read, or it is held without a link",
		},
		{StateStalled, 1, "held, busy without a pause, and nothing that is measured shows progress"},
		{StateGuest, 6, "held, and handed to a virtual machine: the host can't read it"},
		{StateUnmeasured, 4, "held, and no source reads whether it is active"},
		{StateIdle, 2, "held, and not used for most of half an hour (recording rules; dashboards and alerts)"},
		{StateQuiet, 3, "held, and not used for some seconds (the exporter; page and top)"},
		{StateActive, 5, "held and used"},
		{
			StatePartitioned, 7,
			"not held itself: its partitions are held, or exist, or are what can be allocated instead of it",
		},
		{StateTainted, 8, "not held; a taint with the effect NoSchedule or NoExecute keeps pods away"},
		{StateUnavailable, 9, "not held: a partition not made yet, a second name, a channel, a device whose driver is gone"},
		{StateFree, 10, "not held, and could be"},
	}
}

type stateFacts struct {
	State
	attention int
	meaning   string
}

func (s State) facts() stateFacts {
	all := states()
	if i := slices.IndexFunc(all[:], func(f stateFacts) bool { return f.State == s }); i >= 0 {
		return all[i]
	}
	return stateFacts{attention: -1}
}

// States returns all states in order of precedence.
func States() (out []State) {
	for _, f := range states() {
		out = append(out, f.State)
	}
	return out
}

// CompareAttention orders states by the attention that they need: broken, held but wasted, not
// readable, working, not held.
func CompareAttention(a, b State) int { return cmp.Compare(a.facts().attention, b.facts().attention) }

// Meaning returns the definition of the state as a sentence without a full stop.
func (s State) Meaning() string { return s.facts().meaning }

// States returns the state of each device, in the order of Devices. A device is quiet if none of
// its claims was active for quietAfter. No device is [StateIdle], which needs a longer history than
// a snapshot has.
func (s *Snapshot) States(quietAfter time.Duration) []State {
	partitioned := map[driver.ID]bool{} // false: a parent none of whose partitions is held or exists
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Parent != "" {
			parent := driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}
			partitioned[parent] = partitioned[parent] || d.Held() || d.Up == UpNow
		}
	}
	stalled := map[driver.ID]bool{}
	for key, verdict := range s.Stalled {
		if verdict.Stalled != nil { // only for devices that one claim holds alone
			stalled[key.Device] = true
		}
	}
	lastActive := s.LastActive()
	out := make([]State, 0, len(s.Devices))
	for i := range s.Devices {
		d := &s.Devices[i]
		switch active := lastActive[i]; {
		case d.unhealthy():
			out = append(out, StateUnhealthy)
		case stalled[d.ID]:
			out = append(out, StateStalled)
		case !d.Held():
			present, parent := partitioned[d.ID]
			out = append(out, d.unheld(present || parent && d.Entry.Unlisted))
		case d.Entry.Kind == driver.KindPassthrough:
			out = append(out, StateGuest)
		case active.IsZero():
			out = append(out, StateUnmeasured)
		case s.Time.Sub(active) >= quietAfter:
			out = append(out, StateQuiet)
		default:
			out = append(out, StateActive)
		}
	}
	return out
}

// LastActive returns when each held device was last active for any of its holders, in the order of
// Devices. The time is zero if that is not measured.
func (s *Snapshot) LastActive() []time.Time {
	out := make([]time.Time, len(s.Devices))
	for _, holders := range [][]Holder{s.Claims, s.Plugins} {
		for i := range holders {
			h := &holders[i]
			if !h.Ended.IsZero() || h.LastActive.IsZero() {
				continue
			}
			of := sort.Search(len(s.Devices), func(j int) bool { return s.Devices[j].ID.Compare(h.Device) >= 0 })
			if of < len(out) && s.Devices[of].ID == h.Device {
				out[of] = driver.Later(out[of], h.LastActive)
			}
		}
	}
	return out
}

// unheld returns the state of a healthy device without holders.
func (d *Device) unheld(partitioned bool) State {
	switch {
	case partitioned:
		return StatePartitioned
	case d.Missing == join.MissingNotInstantiated, d.Missing == join.MissingDuplicate, d.Missing == join.MissingDriverGone,
		!d.Entry.Kind.Measurable():
		return StateUnavailable
	case slices.ContainsFunc(d.Entry.Taints, func(t driver.Taint) bool { return t.Effect != "None" }):
		return StateTainted
	default:
		return StateFree
	}
}

// Held reports whether anyone holds the device, without admin access.
func (d *Device) Held() bool { return d.Attribution != join.AttributionNone }

func (d *Device) unhealthy() bool {
	return d.Up == Down || d.Held() && d.LinkDown() || slices.ContainsFunc(d.Values, func(v Value) bool {
		return v.Quantity == driver.Health && v.Labels[0] == "unhealthy" && v.Value > 0
	})
}

// LinkDown reports whether the device has links and none of them is up, so that holders can't use
// it.
func (d *Device) LinkDown() bool {
	links, up := 0, 0.
	for _, v := range d.Values {
		if v.Quantity == driver.LinkUp {
			links++
			up += v.Value
		}
	}
	return links > 0 && up == 0
}
