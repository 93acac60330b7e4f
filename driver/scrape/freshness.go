package scrape

import (
	"slices"
	"time"
)

// What is assumed and allowed of an endpoint's refresh period R.
const (
	assumedRefresh = time.Minute     // of an endpoint of which nothing is known
	maxRefresh     = 5 * time.Minute // learned ones above it are rare changes, not slow refreshes
	enoughGaps     = 3               // gaps between changes after which a longer R than the assumed is believed
	keptGaps       = 8               // so that one odd gap, as of a restart, is forgotten
)

// freshness finds out when a vendor's exporter refreshed the values that it serves, which is not
// when it was asked: dcgm-exporter collects every 30 s and repeats itself in between, node_exporter
// reads the kernel for every scrape.
//
// The values of an endpoint refresh together, so an answer that differs from the one before is
// dated at its scrape, and one that is equal is the old answer, with the old time. But hardware
// that idles gives equal answers however often it is read. When nothing has changed for longer than
// the refresh period R, a refresh with equal values must have happened within the last R: the
// answer is then dated now − R, the latest time of which that is sure.
//
// R is given by the configuration, or learned: the smallest of the last gaps between two changes
// plus one interval, since a change is seen up to one interval late. Until three gaps were seen it
// is not believed to be longer than the assumed period: that of the preset, or one minute. R = 0
// means fresh at every scrape.
type freshness struct {
	interval time.Duration
	given    bool                    // the configuration says assumed: nothing is learned
	assumed  time.Duration           // R until it is learned
	kept     [keptGaps]time.Duration // the last gaps between two changes, in a ring
	gaps     int                     // how many were seen

	changed time.Time // scrape at which the values last changed; at first: the first scrape
	seen    bool      // changed is a change that was seen, and so the end of a refresh
	at      time.Time // date of the last answer
}

func newFreshness(e Endpoint) freshness {
	f := freshness{interval: e.Interval, assumed: assumedRefresh}
	switch {
	case e.Refresh != nil:
		f.given, f.assumed = true, *e.Refresh
	case e.presetRefresh != nil:
		f.given, f.assumed = *e.presetRefresh == 0, *e.presetRefresh
	}
	return f
}

// date returns the time at which the values of an answer were true. changed reports whether they
// differ from those of the answer before. Neither the argument nor the result ever goes back.
func (f *freshness) date(now time.Time, changed bool) time.Time {
	if changed {
		f.learn(now)
		f.changed, f.at = now, later(f.at, now)
	}
	f.at = later(f.at, now.Add(-f.period()))
	return f.at
}

// learn takes note of a change. The first answer is none: the refresh before it may be any time
// ago.
func (f *freshness) learn(now time.Time) {
	if !f.seen {
		f.seen = !f.changed.IsZero()
		return
	}
	f.kept[f.gaps%keptGaps] = now.Sub(f.changed)
	f.gaps++
}

// period returns R as it is known now.
func (f *freshness) period() time.Duration {
	if f.given || f.gaps == 0 {
		return f.assumed
	}
	learned := min(slices.Min(f.kept[:min(f.gaps, keptGaps)])+f.interval, maxRefresh)
	if f.gaps < enoughGaps {
		return min(learned, f.assumed)
	}
	return learned
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
