// Package timeline has who held which device when: what incidents, receipts, the recorder and the
// page ask of the past. It is pure: no I/O, no clock.
package timeline

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Timeline has the holders of each device over time: all periods that have not ended more than ten
// minutes ago, or fewer if the ledger's history is too long. It is immutable. nil is empty.
type Timeline map[driver.ID][]*Period

// Held yields the periods of a device that may include a moment or a part of a span of time, in the
// order in which they became known. See [Period.Covers] for certainty.
func (t Timeline) Held(device driver.ID, from, to time.Time) iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		for _, p := range t[device] {
			if p.mayHave(from, to) && !yield(p) {
				return
			}
		}
	}
}

// All yields all periods of all devices.
func (t Timeline) All() iter.Seq[*Period] {
	return func(yield func(*Period) bool) {
		for _, of := range t {
			for _, p := range of {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// With returns the timeline with other periods of some devices; the same timeline if there are
// none.
func (t Timeline) With(changed map[driver.ID][]*Period) Timeline {
	if len(changed) == 0 {
		return t
	}
	out := Timeline{}
	maps.Copy(out, t)
	maps.Copy(out, changed)
	maps.DeleteFunc(out, func(_ driver.ID, periods []*Period) bool { return len(periods) == 0 })
	return out
}

// Period is a holding period: the time in which a pod held a share of a device through a claim, as
// it is charged. It is immutable.
type Period struct {
	Hold        podresources.HoldID // 0: it ended in an earlier process
	Device      driver.ID
	Claim       podresources.Claim
	ClaimUID    string // empty: unknown, or a device plugin allocated the device
	ShareID     string
	Pod         podresources.Pod
	PodUID      string // empty: unknown
	Admin       bool
	Attribution join.Attribution // of the device when the period began
	From        time.Time
	To          time.Time // zero: it holds the device now
	// FromDoubt and ToDoubt are the possible errors of From and To.
	FromDoubt, ToDoubt podresources.Doubt
	Older              bool // it held the device before the kubelet's first answer; From is the time of that answer
}

// mayHave reports whether the period may include a moment, or a part of a span of time.
func (p *Period) mayHave(from, to time.Time) bool {
	return (p.Older || !p.From.Add(-p.FromDoubt.Early).After(to)) &&
		(p.To.IsZero() || p.To.Add(p.ToDoubt.Late).After(from))
}

// Covers reports whether the period certainly includes a moment, or all of a span of time.
func (p *Period) Covers(from, to time.Time) bool {
	return (p.Older || !p.From.Add(p.FromDoubt.Late).After(from)) &&
		(p.To.IsZero() || p.To.Add(-p.ToDoubt.Early).After(to))
}

// Periods are the periods of a device, in the order in which they became known. Timelines share the
// slice, so it does not change.
type Periods struct {
	all     []*Period
	changed bool // since News
}

// All returns the periods. It must not be changed.
func (l *Periods) All() []*Period { return l.all }

// News returns the periods, and whether they have changed since the last call.
func (l *Periods) News() (all []*Period, changed bool) {
	changed, l.changed = l.changed, false
	return slices.Clip(l.all), changed
}

// Set replaces a period, or adds one if before is nil. It returns the new period, or before if they
// are equal.
func (l *Periods) Set(before *Period, p Period) *Period {
	if before != nil && *before == p {
		return before
	}
	l.changed = true
	if i := slices.Index(l.all, before); i >= 0 {
		l.all = slices.Clone(l.all)
		l.all[i] = &p
	} else {
		l.all = append(l.all, &p)
	}
	return &p
}

// End ends a period.
func (l *Periods) End(p *Period, at time.Time) {
	ended := *p
	ended.To = driver.Later(p.From, at)
	l.Set(p, ended)
}

// Forget forgets the periods that ended before a moment, and returns their number.
func (l *Periods) Forget(moment time.Time) int {
	old := func(p *Period) bool { return !p.To.IsZero() && p.To.Before(moment) }
	if !slices.ContainsFunc(l.all, old) {
		return 0
	}
	before := len(l.all)
	l.all, l.changed = slices.DeleteFunc(slices.Clone(l.all), old), true
	return before - len(l.all)
}
