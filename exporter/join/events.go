package join

import (
	"cmp"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// MaxEvents limits the events of one device in one tick. Further ones only count in the counter.
const MaxEvents = 256

// Event is an event of a device, with the holders that it hit.
type Event struct {
	driver.Event
	// Named reports whether the event's process belongs to a known pod. If so, the event hit only the
	// holders in Pod and Claims, of which there may be none.
	Named  bool
	Pod    podresources.Pod
	Claims []podresources.Claim // the pod's claims on this device

	place
}

// events returns the events of the device's counters, ordered by time, with the holders that their
// processes belong to. If another source owns a counter, the events of this source are left out,
// since the same events would be reported twice.
func (j *joiner) events(d *Device, all []Event) []Event {
	var out []Event
	for _, e := range all {
		counted := slices.ContainsFunc(d.Readings, func(r Reading) bool {
			return r.Quantity == e.Quantity && r.Labels == e.Labels && r.place == e.place
		})
		if !counted || e.At.IsZero() || len(out) == MaxEvents {
			continue
		}
		if uid := cmp.Or(e.PodUID, j.podOf[e.PID]); e.PID != 0 && uid != "" {
			e.Named = true
			e.Pod, e.Claims = d.holdersOf(uid)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Event) int {
		return cmp.Or(
			a.At.Compare(b.At), cmp.Compare(a.Quantity, b.Quantity), slices.Compare(a.Labels[:], b.Labels[:]),
			cmp.Compare(a.PID, b.PID),
		)
	})
	return out
}

// holdersOf returns the pod with a UID, and its claims on the device, without admin access. It
// returns nothing if the pod does not hold the device.
func (d *Device) holdersOf(uid string) (pod podresources.Pod, claims []podresources.Claim) {
	for i := range d.Shares {
		s := &d.Shares[i]
		n := slices.IndexFunc(s.Holders, func(h podresources.Holder) bool { return h.UID == uid })
		if n >= 0 && !s.Admin {
			pod, claims = s.Holders[n].Pod, append(claims, s.Claim)
		}
	}
	slices.SortFunc(claims, podresources.Claim.Compare)
	return pod, slices.Compact(claims)
}
