package join

import (
	"cmp"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Sources of health that report nothing else.
const (
	healthOfPods   = "pods"
	healthOfSlices = "slices"
)

// addHealth adds health readings that do not come from sources. In order of precedence these are:
// the statuses of pods that hold the device, except unknown, which the kubelet also writes if no
// driver reports health; the attributes and taints of the device's slice; and the status unknown of
// pods. Their time is that of the kubelet's answer. A lower precedence is a higher number.
func (d *Device) addHealth(facts *deviceFacts, view *podresources.View, precedence int) {
	if view.At.IsZero() {
		return
	}
	ofPods, ofSlices := driver.HealthNone, d.Entry.Health
	for i := range d.Shares {
		s := &d.Shares[i]
		if s.Health > ofPods {
			ofPods = s.Health
			facts.noteReason(healthOfPods, s.HealthReason)
		}
	}
	for _, t := range d.Entry.Taints {
		if t.Health > ofSlices {
			ofSlices = t.Health
			facts.noteReason(healthOfSlices, t.String())
		}
	}
	add := func(status driver.HealthStatus, source string, precedence int) {
		if status != driver.HealthNone {
			from := place{precedence: precedence}
			d.Readings = append(d.Readings, Reading{Reading: status.Reading(view.At), Origin: Origin{source, 0}, place: from})
		}
	}
	pods, slices := precedence, precedence+1
	if ofPods == driver.HealthUnknown {
		pods, slices = slices, pods
	}
	add(ofPods, healthOfPods, pods)
	add(ofSlices, healthOfSlices, slices)
}

// noteReason records a source's reason for the device's health.
func (f *deviceFacts) noteReason(source, reason string) {
	if f.healthReasons == nil {
		f.healthReasons = map[string]string{}
	}
	f.healthReasons[source] = reason
}

// healthReason returns why the device is not healthy, by the source that owns its health.
func (f *deviceFacts) healthReason(d *Device) string {
	for i := range d.Readings {
		r := &d.Readings[i]
		if r.Quantity == driver.Health && r.Value > 0 && r.Labels[0] != driver.HealthGood.String() {
			if reason := f.healthReasons[r.Origin.Source]; validLabel(reason) {
				return reason
			}
		}
	}
	return ""
}

// measured reports whether any reading measures what the device does. Health does not, and neither
// do errors reported for a device that can't be read.
func measured(readings []Reading) bool {
	for i := range readings {
		if readings[i].Quantity != driver.Health && !readings[i].event {
			return true
		}
	}
	return false
}

// healthOnly reports whether a sample has readings of health only.
func healthOnly(sample *driver.Sample) bool {
	for i := range sample.Readings {
		if sample.Readings[i].Quantity != driver.Health {
			return false
		}
	}
	return len(sample.Readings) > 0
}

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
