//go:build cgo

package dcgm

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxAge is how long a value that is refreshed at a rhythm is believed: an engine that does not refresh it can't read it.
func maxAge(r rhythm) time.Duration { return 5*time.Second + 2*r.interval() }

// state is what is known of a device. It outlives sessions, so that what is counted here goes on.
type state struct {
	device
	table   []field
	latest  map[dcgm.Short]known
	traffic map[dcgm.Short]*integral
	xids    []xidCount
	health  knownHealth
	lost    bool // the engine said so of its last value
}

func newState(d device, table []field) *state {
	return &state{device: d, table: table, latest: map[dcgm.Short]known{}, traffic: map[dcgm.Short]*integral{}}
}

// is tells whether this is the state of a device.
func (d *state) is(other device) bool {
	return d.hardware.UUID == other.hardware.UUID && d.hardware.Parent == other.hardware.Parent && d.hardware.Instance == other.hardware.Instance
}

// renew takes the device as the engine describes it now. A MIG device whose instance is another one, though its numbers are
// the same, is a new one: what was known of the one before is forgotten.
func (d *state) renew(other device) {
	if d.of == instance && (d.profile != other.profile || !slices.Equal(d.events, other.events)) {
		*d = *newState(other, d.table)
		return
	}
	d.device = other
}

// name names the device in errors.
func (d *state) name() string {
	if d.hardware.UUID != "" {
		return d.hardware.UUID
	}
	return d.hardware.Parent + " MIG " + d.hardware.Instance
}

// noValuesError says that the engine has no values of a device.
type noValuesError struct{ lost bool }

func (e noValuesError) Error() string {
	if e.lost {
		return "DCGM has lost it"
	}
	return "DCGM has no new values"
}

// Reason names the error for the label reason.
func (e noValuesError) Reason() string {
	if e.lost {
		return "gpu_lost"
	}
	return "no_data"
}

// take takes a value that came at a time, by our clock.
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

// scope returns whose fields are the device's: a GPU in MIG mode is no whole one.
func (d *state) scope() scope {
	if mode, ok := d.latest[migMode]; ok && !mode.absent && mode.number != 0 {
		return d.of &^ wholeGPU
	}
	return d.of
}

// readings makes readings of what is known and not too old.
func (d *state) readings(now time.Time) []driver.Reading {
	var out []driver.Reading
	has := func(f *field) bool {
		return slices.ContainsFunc(out, func(r driver.Reading) bool { return r.Quantity == f.quantity && r.Labels == f.labels })
	}
	of, merged := d.scope(), 0.
	for i := range d.table {
		f := &d.table[i]
		k, ok := d.latest[f.id]
		if f.of&of == 0 || !ok || k.absent || now.Sub(k.came) > maxAge(f.rhythm) {
			continue
		}
		if last := len(out) - 1; merged > 0 && out[last].Labels == f.labels { // another unit of the engine
			merged++
			out[last].Value += (f.reading(k, now).Value - out[last].Value) / merged
			continue
		}
		if has(f) {
			continue
		}
		if f.rhythm == units {
			merged = 1
		}
		if f.rate {
			k.number = d.traffic[f.id].sum
		}
		out = append(out, f.reading(k, now))
	}
	if len(out) == 0 && d.values != (entity{}) {
		return nil
	}
	if !d.health.at.IsZero() && now.Sub(d.health.at) <= healthRhythm+maxAge(slow) {
		out = append(out, d.health.reading())
	}
	return append(out, d.countedXIDs(now)...)
}
