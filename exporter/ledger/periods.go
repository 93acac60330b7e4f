package ledger

import (
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

// periodList are the periods of a device, by when they were known first. Timelines have the slice,
// which is therefore never changed.
type periodList struct {
	periods    []*Period
	newPeriods bool // since the timeline took them over
}

// setPeriod puts a period in place of another one, nil if it is new, and returns it; or the other
// one, if it says the same.
func (l *periodList) setPeriod(before *Period, p Period) *Period {
	if before != nil && *before == p {
		return before
	}
	l.newPeriods = true
	if i := slices.Index(l.periods, before); i >= 0 {
		l.periods = slices.Clone(l.periods)
		l.periods[i] = &p
	} else {
		l.periods = append(l.periods, &p)
	}
	return &p
}

// endPeriod ends a period.
func (l *periodList) endPeriod(p *Period, at time.Time) {
	ended := *p
	ended.To = later(p.From, at)
	l.setPeriod(p, ended)
}

// forgetPeriods forgets the periods that ended long ago.
func (l *periodList) forgetPeriods(now time.Time) {
	old := func(p *Period) bool { return !p.To.IsZero() && now.Sub(p.To) > rememberFor }
	if slices.ContainsFunc(l.periods, old) {
		l.periods, l.newPeriods = slices.DeleteFunc(slices.Clone(l.periods), old), true
	}
}
