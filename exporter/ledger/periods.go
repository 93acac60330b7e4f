package ledger

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Period is a holding period: the time in which a pod held a share of a device through a claim, as
// counters are charged by it. It does not change.
type Period struct {
	Device      driver.ID
	Claim       podresources.Claim
	ClaimUID    string // empty: unknown, or the device is of a device plugin
	ShareID     string
	Pod         podresources.Pod
	PodUID      string // empty: unknown
	Admin       bool
	Attribution join.Attribution // of the device at the begin
	From        time.Time
	To          time.Time // zero: it holds the device now
	// FromDoubt and ToDoubt are how far From and To may be off.
	FromDoubt, ToDoubt podresources.Doubt
	Older              bool // it held the device before the first answer of the kubelet, which From is
}

// mayHave reports whether a part of a span of time, or a moment, may lie in the period.
func (p *Period) mayHave(from, to time.Time) bool {
	return (p.Older || !p.From.Add(-p.FromDoubt.Early).After(to)) &&
		(p.To.IsZero() || p.To.Add(p.ToDoubt.Late).After(from))
}

// Covers reports whether all of a span of time, or a moment, lies in the period for sure.
func (p *Period) Covers(from, to time.Time) bool {
	return (p.Older || !p.From.Add(p.FromDoubt.Late).After(from)) &&
		(p.To.IsZero() || p.To.Add(-p.ToDoubt.Early).After(to))
}

// Timeline is who held which device when: all periods that have not ended ten minutes ago. It does
// not change, and nil is an empty one.
type Timeline struct{ periods map[driver.ID][]*Period }

// NewTimeline returns a timeline of these periods.
func NewTimeline(periods ...*Period) *Timeline {
	t := &Timeline{map[driver.ID][]*Period{}}
	for _, p := range periods {
		t.periods[p.Device] = append(t.periods[p.Device], p)
	}
	return t
}

// Held yields the periods of a device in which a part of a span of time, or a moment, may lie, by
// when they were known first. Those that cover it held the device for sure, all of that time.
func (t *Timeline) Held(device driver.ID, from, to time.Time) iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		if t == nil {
			return
		}
		for _, p := range t.periods[device] {
			if p.mayHave(from, to) && !yield(p) {
				return
			}
		}
	}
}

// All yields all periods of all devices.
func (t *Timeline) All() iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		if t == nil {
			return
		}
		for _, of := range t.periods {
			for _, p := range of {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// with returns the timeline with other periods of some devices. It is the same if there are none.
func (t *Timeline) with(changed map[driver.ID][]*Period) *Timeline {
	if len(changed) == 0 {
		return t
	}
	out := &Timeline{map[driver.ID][]*Period{}}
	if t != nil {
		maps.Copy(out.periods, t.periods)
	}
	for id, periods := range changed {
		if len(periods) == 0 {
			delete(out.periods, id)
		} else {
			out.periods[id] = periods
		}
	}
	return out
}

// forgetEvery is how often periods that ended long ago are forgotten.
const forgetEvery = time.Minute

// updateTimeline takes over what changed at this tick.
func (l *Ledger) updateTimeline(now time.Time) {
	forget := now.Sub(l.forgotten) >= forgetEvery
	if forget {
		l.forgotten = now
	}
	changed := map[driver.ID][]*Period{}
	for id, d := range l.devices {
		if forget {
			d.forgetPeriods(now)
		}
		if d.newPeriods {
			changed[id], d.newPeriods = slices.Clip(d.periods), false
		}
	}
	l.timeline = l.timeline.with(changed)
}

func (d *deviceBook) forgetPeriods(now time.Time) {
	old := func(p *Period) bool { return !p.To.IsZero() && now.Sub(p.To) > rememberFor }
	if slices.ContainsFunc(d.periods, old) {
		d.periods, d.newPeriods = slices.DeleteFunc(slices.Clone(d.periods), old), true
	}
}

// period returns the period of a holding. A new one began then. What was before a moment is
// decided.
func (h *holding) period(d *deviceBook, begun, decided time.Time) Period {
	p := Period{
		Device: d.id, Pod: h.pod, Attribution: d.joined.Attribution, From: begun, Older: h.from.IsZero(),
	}
	o := h.owner
	if o.period != nil {
		p = *o.period
	}
	p.Claim, p.ShareID, p.Admin = h.share.Claim, h.share.ShareID, h.share.Admin
	p.ClaimUID, p.PodUID = cmp.Or(h.share.ClaimUID, p.ClaimUID), cmp.Or(h.uid, p.PodUID)
	if o.claim != nil {
		p.ClaimUID, p.PodUID = o.claim.uid, o.pod.uid
	}
	if o.period == nil && !h.from.IsZero() {
		p.FromDoubt = widened(h.fromDoubt, begun.Sub(h.from))
	}
	if !h.to.IsZero() && p.To.IsZero() {
		p.To = later(p.From, later(h.to, decided))
		p.ToDoubt = widened(h.toDoubt, p.To.Sub(h.to))
	}
	return p
}

// widened returns the doubt of a time that takes effect later.
func widened(d podresources.Doubt, later time.Duration) podresources.Doubt {
	return podresources.Doubt{Early: d.Early + later, Late: max(0, d.Late-later)}
}

// setPeriod makes p the period of an owner, if it is another one than before.
func (d *deviceBook) setPeriod(o *owner, p Period) {
	if o.period != nil && *o.period == p {
		return
	}
	d.newPeriods = true
	before := o.period
	o.period = &p
	if i := slices.Index(d.periods, before); i >= 0 {
		d.periods = slices.Clone(d.periods) // a timeline has the other
		d.periods[i] = o.period
		return
	}
	d.periods = append(d.periods, o.period)
}
