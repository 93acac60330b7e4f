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

// Timeline has the holders of each device over time: all periods that have not ended more than ten
// minutes ago, or fewer ([MaxHistory]). It is immutable. nil is empty.
type Timeline struct{ periods map[driver.ID][]*Period }

// NewTimeline returns a timeline of these periods.
func NewTimeline(periods ...*Period) *Timeline {
	t := &Timeline{map[driver.ID][]*Period{}}
	for _, p := range periods {
		t.periods[p.Device] = append(t.periods[p.Device], p)
	}
	return t
}

// Held yields the periods of a device that may include a moment or a part of a span of time, in the
// order in which they became known. See [Period.Covers] for certainty.
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

// with returns the timeline with changed periods of some devices; the same timeline if there are
// none.
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

// periodList has the periods of a device in the order in which they became known. Timelines share
// the slice, so it is immutable.
type periodList struct {
	periods    []*Period
	newPeriods bool // since the timeline last took them over
}

// setPeriod replaces a period, or adds one if before is nil. It returns the new period, or before
// if they are equal.
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
	ended.To = driver.Later(p.From, at)
	l.setPeriod(p, ended)
}

// forgetPeriods forgets the periods that ended before a moment, and returns their number.
func (l *periodList) forgetPeriods(moment time.Time) int {
	old := func(p *Period) bool { return !p.To.IsZero() && p.To.Before(moment) }
	if !slices.ContainsFunc(l.periods, old) {
		return 0
	}
	before := len(l.periods)
	l.periods, l.newPeriods = slices.DeleteFunc(slices.Clone(l.periods), old), true
	return before - len(l.periods)
}
