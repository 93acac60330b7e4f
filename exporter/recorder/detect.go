package recorder

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// detector finds what happened between two snapshots.
type detector struct {
	devices map[driver.ID]condition
	before  map[driver.ID]condition // at the previous snapshot
	sources map[string]service
	ended   map[*book.HolderKey]bool
}

// condition is the condition of a device at a snapshot.
type condition struct {
	up        book.Up
	health    string
	taints    []string // with the effect NoExecute
	lastError time.Time

	sources   []string  // those that had readings while the device was readable
	listed    bool      // the inventory had it while it was readable
	downSince time.Time // the zero time: it is readable, or never was
	lost      bool      // its loss has been reported
	offBus    time.Time // when the driver last reported that it fell off the bus
}

// happening is an occurrence at a device or source.
type happening struct {
	kind   Kind
	code   string
	labels driver.Labels // of the error
	device *book.Device
	source string
	at     time.Time // time of the last occurrence
	onset  time.Time // time of its start; the zero time: at
	count  int
	claim  *book.Holder // the claim that ended or stalls, if any
	chart  *Chart       // the recording of its start, which the ring may have forgotten; nil: none
}

func newDetector() *detector {
	return &detector{
		devices: map[driver.ID]condition{}, before: map[driver.ID]condition{}, sources: map[string]service{},
		ended: map[*book.HolderKey]bool{},
	}
}

// observe returns what happened since the previous snapshot.
func (d *detector) observe(s *book.Snapshot) []happening {
	out := d.observeSources(s)
	d.before, d.devices = d.devices, d.before
	clear(d.devices)
	for i := range s.Devices {
		of := &s.Devices[i]
		c, known := d.before[of.ID]
		now := conditionOf(of, &c)
		failures := failuresOf(of, s)
		now.follow(&c, failures)
		out = append(out, failures...)
		if known {
			out = append(out, c.changes(now, of, s.Time)...)
			out = append(out, d.loss(&now, of, s)...)
		}
		d.devices[of.ID] = now
	}
	return append(out, d.ends(s)...)
}

func conditionOf(d *book.Device, before *condition) condition {
	c := condition{
		up: d.Up, lastError: d.LastError, sources: sourcesOf(d, before.sources), listed: !d.Entry.Unlisted,
	}
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

// bad reports whether a device's condition affects all of its holders.
func (c *condition) bad() bool {
	return c.lost || c.health == "unhealthy" || len(c.taints) > 0
}

// changes returns what got worse since the earlier condition.
func (c *condition) changes(now condition, of *book.Device, at time.Time) []happening {
	var out []happening
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

// failuresOf returns the errors that a device's counters counted at the snapshot.
func failuresOf(of *book.Device, s *book.Snapshot) []happening {
	var out []happening
	for i := range s.Failures {
		f := &s.Failures[i]
		kind := ofError(f.Labels)
		if f.Device != of.ID || kind == "" || !opens(kind, f.Labels, s.Catalogue.OrStandard()) {
			continue
		}
		n := slices.IndexFunc(out, func(h happening) bool { return h.labels == f.Labels })
		if n < 0 {
			n = len(out)
			out = append(out, happening{kind: kind, code: f.Labels[1], labels: f.Labels, device: of, at: f.To, onset: f.To})
		}
		h := &out[n]
		h.count += max(1, int(f.Count))
		h.at = driver.Later(h.at, f.To)
		if f.To.Before(h.onset) {
			h.onset = f.To
		}
	}
	return out
}

// ends returns the claims that ended while a device was in a bad condition, or within a minute of
// an error that hit the claim. If the ledger does not keep errors by holder, an error of the device
// counts for each of its claims.
func (d *detector) ends(s *book.Snapshot) []happening {
	byHolder := s.Catalogue.OrStandard().Spec(driver.Errors).Sharing == driver.Witnessed
	var out []happening
	ended := make(map[*book.HolderKey]bool, len(d.ended))
	for h := range endedClaims(s) {
		ended[h.HolderKey] = true
		c, last := d.devices[h.Device], h.LastError
		if !byHolder {
			last = c.lastError
		}
		if d.ended[h.HolderKey] || !c.bad() && (last.IsZero() || h.Ended.Sub(last) >= recentError) {
			continue
		}
		if at := s.IndexOf(h.Device); at >= 0 {
			out = append(out, happening{
				kind: ClaimEndsInError, device: &s.Devices[at], at: h.Ended, count: 1, claim: h,
			})
		}
	}
	d.ended = ended
	return out
}

// endedClaims yields the rows of ended claims.
func endedClaims(s *book.Snapshot) iter.Seq[*book.Holder] {
	return func(yield func(*book.Holder) bool) {
		for _, rows := range [2][]book.Holder{s.EarlierClaims, s.Claims} {
			for i := range rows {
				if !rows[i].Ended.IsZero() && !yield(&rows[i]) {
					return
				}
			}
		}
	}
}

// within reports whether device is of, or a partition of it.
func within(device, of *book.Device) bool {
	if device.ID == of.ID {
		return true
	}
	return device.Parent != "" &&
		(driver.ID{Driver: device.ID.Driver, Pool: device.ID.Pool, Device: device.Parent}) == of.ID
}

// service is the history of a source.
type service struct {
	most   int           // highest number of devices with readings
	failed driver.Reason // at the previous snapshot
	since  time.Time     // since when it has failed for this reason
	down   bool          // its failure has been reported
}

// noneOfAll is the code for a source that answers, and has no readings of any device although it
// had those of several.
const noneOfAll = string(driver.ReasonNoData)

// observeSources returns the sources that have begun to fail as a whole. A source whose only device
// the driver has lost does not count.
func (d *detector) observeSources(s *book.Snapshot) []happening {
	var out []happening
	for i := range s.Sources {
		of := &s.Sources[i]
		known := d.sources[of.Name]
		if of.Failed != known.failed || of.Failed == "" {
			known.failed, known.since = of.Failed, s.Time
		}
		known.most = max(known.most, of.Read)
		code := ""
		switch {
		case known.most == 0 || of.Failed == driver.ReasonGPULost:
		case of.Down():
			code = string(of.Failed)
		case of.Read == 0 && known.most > 1:
			code = noneOfAll
		}
		if code != "" && !known.down {
			onset := s.Time
			if of.Failed != "" && s.Time.Sub(known.since) <= evidence {
				onset = known.since
			}
			out = append(out, happening{kind: SourceDown, code: code, source: of.Name, at: s.Time, onset: onset, count: 1})
		}
		known.down = code != ""
		d.sources[of.Name] = known
	}
	return out
}

// sourcesOf returns the names of the sources with readings of a device, without suffixes. It
// returns before if they are the same.
func sourcesOf(d *book.Device, before []string) []string {
	var room [4]string
	out := room[:0]
	for i := range d.Values {
		name := d.Values[i].Origin.Source
		if d.Values[i].Quantity != driver.Health && name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if slices.Equal(out, before) {
		return before
	}
	return slices.Clone(out)
}

// follow adds the history from the previous condition.
func (c *condition) follow(before *condition, failures []happening) {
	if before.health != "" && c.health == "" {
		c.health = before.health // not read: unchanged
	}
	c.offBus = before.offBus
	for i := range failures {
		if failures[i].kind == XID && xid.Of(failures[i].code, xid.NoSeverity).First == xid.OffBus {
			c.offBus = failures[i].at
		}
	}
	if c.up != book.UpNow {
		c.sources, c.listed, c.downSince, c.lost = before.sources, before.listed, before.downSince, before.lost
	}
}

// The codes of a lost device: the evidence besides being unreadable.
const (
	lostByDriver = string(driver.ReasonGPULost) // the driver reports an error that means a loss
	lostByBus    = "xid_79"                     // the driver's log says that it fell off the bus
	lostBySource = "absent"                     // its source answers without it
	lostUnread   = "unreadable"                 // its source answers, but can't read it
	lostBySlices = "unlisted"                   // the inventory no longer has it
)

// offBusWithin is the longest time between an XID 79 and the device becoming unreadable, in either
// order.
const offBusWithin = 5 * time.Minute

// lossText describes the evidence of a loss.
func lossText(code string) string {
	return cmp.Or(map[string]string{
		lostByDriver: "its driver says so", lostByBus: "it fell off the bus (XID 79)",
		lostUnread: "its source answers and can't read it", lostBySlices: "its driver no longer lists it",
	}[code], "its source answers without it")
}

// loss returns a happening if a device is newly lost: it was readable, is not any more, and there
// is evidence besides the missing answer.
func (d *detector) loss(now *condition, of *book.Device, s *book.Snapshot) []happening {
	if now.up != book.Down {
		now.downSince, now.lost = time.Time{}, false
		return nil
	}
	if len(now.sources) == 0 {
		return nil // it has never been readable
	}
	if now.downSince.IsZero() {
		now.downSince = s.Time
	}
	if now.lost {
		return nil
	}
	witness := d.witnessOf(now, of)
	if witness == "" {
		return nil
	}
	now.lost = true
	return []happening{{kind: DeviceLost, code: witness, device: of, at: s.Time, onset: now.downSince, count: 1}}
}

// witnessOf returns the evidence that an unreadable device is lost; "": none. A source that answers
// with impossible values, or with what is no number, has not lost the device; but a device of which
// it knows nothing, while it reads others, is gone, whatever the others say.
func (d *detector) witnessOf(now *condition, of *book.Device) string {
	if away := now.downSince.Sub(now.offBus); !now.offBus.IsZero() && away.Abs() <= offBusWithin {
		return lostByBus
	}
	unreadable := of.Device.Missing == join.MissingUnreadable // its source knows it
	answer := true
	for _, name := range now.sources {
		source := d.sources[name]
		if source.failed == driver.ReasonGPULost && unreadable {
			return lostByDriver
		}
		garbled := source.failed == driver.ReasonMalformed && of.Device.Missing != join.MissingNoMatch
		answer = answer && !source.down && !garbled
	}
	switch {
	case now.listed && of.Entry.Unlisted:
		return lostBySlices
	case !answer, of.Device.Missing == join.MissingRejected:
		return ""
	case unreadable:
		return lostUnread
	default:
		return lostBySource
	}
}
