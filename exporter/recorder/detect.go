package recorder

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// detector compares each snapshot with the one before, and finds what happened.
type detector struct {
	errors  map[errorKey]float64
	devices map[driver.ID]condition
	ended   map[*ledger.HolderKey]bool
}

// errorKey is a counter of errors of a device or holder, by its key, which is a pointer that stays.
type errorKey struct {
	owner  any
	labels driver.Labels
}

// condition is what the snapshot before said of a device.
type condition struct {
	up        ledger.Up
	health    string
	taints    []string // with the effect NoExecute
	lastError time.Time
}

// happening is something that happened to a device.
type happening struct {
	kind   Kind
	code   string
	labels driver.Labels // of an error
	device *ledger.Device
	at     time.Time
	count  int
	claim  *ledger.HolderKey // that ended; else nil
}

// named reports whether an event of the error names a process whose pod is known.
func (h *happening) named() bool {
	return slices.ContainsFunc(h.device.Events, func(e join.Event) bool {
		return e.Named && e.Quantity == driver.Errors && e.Labels == h.labels
	})
}

// rise is an increase of a holder's counter of errors.
type rise struct {
	labels driver.Labels
	holder *ledger.HolderKey
	pod    bool
}

func newDetector() *detector {
	return &detector{
		errors: map[errorKey]float64{}, devices: map[driver.ID]condition{}, ended: map[*ledger.HolderKey]bool{},
	}
}

// observe returns what happened since the snapshot before, and which holders' counters of errors
// rose.
func (d *detector) observe(s *ledger.Snapshot) ([]happening, []rise) {
	before := d.errors
	d.errors = make(map[errorKey]float64, len(before))
	var out []happening
	devices := make(map[driver.ID]condition, len(s.Devices))
	for i := range s.Devices {
		of := &s.Devices[i]
		c, known := d.devices[of.ID]
		now := conditionOf(of)
		out = append(out, d.failures(before, of, c, s.Time)...)
		if known {
			out = append(out, c.changes(now, of, s.Time)...)
		}
		if c.health != "" && now.health == "" {
			now.health = c.health // it was not read: it is as before
		}
		devices[of.ID] = now
	}
	d.devices = devices
	var rises []rise
	rises = d.rises(rises, before, s.Claims, false)
	rises = d.rises(rises, before, s.Pods, true)
	rises = d.rises(rises, before, s.Young, true)
	return append(out, d.ends(s)...), rises
}

func conditionOf(d *ledger.Device) condition {
	c := condition{up: d.Up, lastError: d.LastError}
	for i := range d.Values {
		v := &d.Values[i]
		if v.Quantity == driver.Health && v.Value > 0 && c.health != "unhealthy" {
			c.health = v.Labels[0]
		}
	}
	for _, t := range d.Entry.Taints {
		if t.Effect == "NoExecute" {
			c.taints = append(c.taints, t.String())
		}
	}
	return c
}

// bad reports whether a device is in a condition that concerns all of its holders.
func (c condition) bad() bool {
	return c.up == ledger.Down || c.health == "unhealthy" || len(c.taints) > 0
}

// changes returns what changed for the worse since the condition before.
func (c condition) changes(now condition, of *ledger.Device, at time.Time) []happening {
	var out []happening
	if c.up == ledger.UpNow && now.up == ledger.Down {
		out = append(out, happening{kind: DeviceLost, code: string(of.Missing), device: of, at: at, count: 1})
	}
	if c.health != "" && c.health != "unhealthy" && now.health == "unhealthy" {
		out = append(out, happening{kind: Unhealthy, device: of, at: at, count: 1})
	}
	for _, taint := range now.taints {
		if !slices.Contains(c.taints, taint) {
			out = append(out, happening{kind: NoExecuteTaint, code: taint, device: of, at: at, count: 1})
		}
	}
	return out
}

// failures returns the errors that a device's counters have counted since before.
func (d *detector) failures(before map[errorKey]float64, of *ledger.Device, c condition, now time.Time) []happening {
	var out []happening
	for i := range of.Values {
		v := &of.Values[i]
		if v.Quantity != driver.Errors || ofError(v.Labels) == "" {
			continue
		}
		more := d.count(before, errorKey{of.Key, v.Labels}, v.Value)
		if more <= 0 {
			continue
		}
		at := now
		if of.LastError.After(c.lastError) && now.Sub(of.LastError) < evidence {
			at = of.LastError
		}
		out = append(out, happening{
			kind: ofError(v.Labels), code: v.Labels[1], labels: v.Labels, device: of, at: at, count: max(1, int(more)),
		})
	}
	return out
}

// count notes the present count, and returns by how much it rose.
func (d *detector) count(before map[errorKey]float64, key errorKey, value float64) float64 {
	d.errors[key] = value
	return value - before[key]
}

// rises appends the holders whose counters of errors rose.
func (d *detector) rises(out []rise, before map[errorKey]float64, holders []ledger.Holder, pod bool) []rise {
	for i := range holders {
		h := &holders[i]
		if h.LastError.IsZero() || h.IsAggregated() {
			continue
		}
		for j := range h.Values {
			v := &h.Values[j]
			if v.Quantity == driver.Errors && ofError(v.Labels) != "" &&
				d.count(before, errorKey{h.HolderKey, v.Labels}, v.Value) > 0 {
				out = append(out, rise{v.Labels, h.HolderKey, pod})
			}
		}
	}
	return out
}

// ends returns the claims that ended while their devices were in a bad condition, or within a
// minute of an error that hit the claim. Where the ledger keeps no errors by holder, an error of
// the device counts for each of its claims.
func (d *detector) ends(s *ledger.Snapshot) []happening {
	byHolder := s.Catalogue.OrStandard().Spec(driver.Errors).Sharing == driver.Witnessed
	var out []happening
	ended := make(map[*ledger.HolderKey]bool, len(d.ended))
	for i := range s.Claims {
		h := &s.Claims[i]
		if h.Ended.IsZero() {
			continue
		}
		ended[h.HolderKey] = true
		c, last := d.devices[h.Device], h.LastError
		if !byHolder {
			last = c.lastError
		}
		if d.ended[h.HolderKey] || !c.bad() && (last.IsZero() || h.Ended.Sub(last) >= recentError) {
			continue
		}
		at := slices.IndexFunc(s.Devices, func(of ledger.Device) bool { return of.ID == h.Device })
		if at >= 0 {
			out = append(out, happening{
				kind: ClaimEndsInError, device: &s.Devices[at], at: h.Ended, count: 1, claim: h.HolderKey,
			})
		}
	}
	d.ended = ended
	return out
}

// within reports whether a device is another one, or a partition of it.
func within(device, of *ledger.Device) bool {
	if device.ID == of.ID {
		return true
	}
	return device.Parent != "" &&
		(driver.ID{Driver: device.ID.Driver, Pool: device.ID.Pool, Device: device.Parent}) == of.ID
}
