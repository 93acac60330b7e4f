package join

import (
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
