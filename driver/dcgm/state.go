//go:build cgo

package dcgm

import (
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// maxAge is how long a value of a schedule is used. A value that the engine does not refresh for
// longer cannot be read.
func maxAge(r schedule) time.Duration { return 5*time.Second + 2*r.interval() }

// state is the state of a device. It outlives sessions, so that counters continue.
type state struct {
	device
	table   []field
	latest  map[dcgm.Short]known
	traffic map[dcgm.Short]*integral
	xids    nvidia.XIDs
	health  knownHealth
	lost    bool // by the status of its last value
}

func newState(d device, table []field) *state {
	return &state{device: d, table: table, latest: map[dcgm.Short]known{}, traffic: map[dcgm.Short]*integral{}}
}

// is reports whether this is the state of a device.
func (d *state) is(other device) bool {
	return d.hardware.UUID == other.hardware.UUID && d.hardware.Parent == other.hardware.Parent &&
		d.hardware.Instance == other.hardware.Instance
}

// renew updates the device. A MIG device with another instance is a new device, even if its numbers
// are the same: its state is reset.
func (d *state) renew(other device) {
	if d.of == instance && (d.profile != other.profile || !slices.Equal(d.events, other.events)) {
		*d = *newState(other, d.table)
		return
	}
	d.device = other
}

// name returns the name of the device for errors.
func (d *state) name() string {
	if d.hardware.UUID != "" {
		return d.hardware.UUID
	}
	return d.hardware.Parent + " MIG " + d.hardware.Instance
}

// noValues returns the error of a device without values.
func noValues(lost bool) error {
	if lost {
		return driver.WithReason(driver.ReasonGPULost, errors.New("DCGM has lost it"))
	}
	return driver.WithReason(driver.ReasonNoData, errors.New("DCGM has no new values"))
}

// take stores a value that was received at a time by our clock.
func (d *state) take(v value, came time.Time) {
	if before, ok := d.latest[v.id]; ok && v.at.Before(before.at) {
		return
	}
	d.latest[v.id] = known{v, came}
	d.lost = v.lost
	if v.absent || !slices.ContainsFunc(d.table, func(f field) bool { return f.id == v.id && f.rate }) {
		return
	}
	if d.traffic[v.id] == nil {
		d.traffic[v.id] = &integral{}
	}
	d.traffic[v.id].take(v.number, v.at)
}

// scope returns the scopes of the device's fields in its present MIG mode.
func (d *state) scope() scope {
	if mode, ok := d.latest[migMode]; ok && !mode.absent && mode.number != 0 {
		return d.of &^ wholeGPU
	}
	return d.of
}

// readings returns the readings of the values that are not too old.
func (d *state) readings(now time.Time) []driver.Reading {
	var out []driver.Reading
	of := d.scope()
	for i := range d.table {
		f := &d.table[i]
		k, ok := d.latest[f.id]
		if f.of&of == 0 || !ok || k.absent || now.Sub(k.came) > maxAge(f.schedule) {
			continue
		}
		if readings, ok := d.coded(f, k, now); ok {
			out = append(out, readings...)
			continue
		}
		if slices.ContainsFunc(out, func(r driver.Reading) bool { return r.Quantity == f.quantity && r.Labels == f.labels }) {
			continue
		}
		if f.rate {
			k.number = d.traffic[f.id].sum
		}
		out = append(out, f.reading(k, now))
	}
	return nvidia.Attention(out)
}

// report adds the device's health and XID errors, which the engine also reports for a device that
// cannot be read.
func (d *state) report(s *driver.Sample, now time.Time) {
	if now.Sub(d.health.At) <= healthInterval+maxAge(slow) {
		s.Readings, s.HealthReason = append(s.Readings, d.health.Reading), d.health.reason
	}
	d.xids.Report(s, now)
}
