package timeline

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

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
