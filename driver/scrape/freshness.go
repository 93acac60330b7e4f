package scrape

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Parameters of the estimate of an endpoint's refresh period.
const (
	assumedRefresh = time.Minute     // of an endpoint without other information
	maxRefresh     = 5 * time.Minute // longer gaps are rare changes, not a long refresh period
	enoughGaps     = 3               // gaps needed before a period above the assumed one is used
	keptGaps       = 8               // so that a single odd gap, as after a restart, is forgotten
)

// freshness estimates when an exporter last refreshed the values that it serves. dcgm-exporter
// collects values every 30 s and repeats them in between; node_exporter reads the kernel for each
// scrape.
//
// The values of an endpoint are refreshed together. A response that differs from the one before has
// the time of its scrape; an equal one has the time of the one before, since hardware that idles
// may give equal values. If nothing has changed for longer than the refresh period R, there was a
// refresh with equal values within the last R: the response then has the time now − R.
//
// R is configured, or estimated as the smallest of the last gaps between two changes plus one
// interval, since a change is noticed up to one interval late. Before three gaps, the estimate is
// at most the assumed period: that of the preset, or one minute. R = 0 means that values are
// refreshed for each scrape.
type freshness struct {
	interval time.Duration
	given    bool                    // assumed is configured and not estimated
	assumed  time.Duration           // R before there is an estimate
	kept     [keptGaps]time.Duration // the last gaps between changes, a ring buffer
	gaps     int                     // number of gaps so far

	changed time.Time // scrape at which the values last changed, or the first scrape
	seen    bool      // changed is the time of a change, not of the first scrape
	at      time.Time // time of the last response
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

// date returns the time of measurement of the values of a response, given the time of the scrape,
// which never decreases. changed reports whether the values differ from those of the response
// before. The result never decreases.
func (f *freshness) date(now time.Time, changed bool) time.Time {
	if changed {
		f.learn(now)
		f.changed, f.at = now, driver.Later(f.at, now)
	}
	f.at = driver.Later(f.at, now.Add(-f.period()))
	return f.at
}

// learn records the gap before a change. The first response is not a change, and the gap before the
// first change is unknown.
func (f *freshness) learn(now time.Time) {
	if !f.seen {
		f.seen = !f.changed.IsZero()
		return
	}
	f.kept[f.gaps%keptGaps] = now.Sub(f.changed)
	f.gaps++
}

// period returns the present estimate of R.
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
