package scrape

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// freshness dates the values of an exporter. dcgm-exporter collects values every 30 s and repeats
// them in between; node_exporter reads the kernel for each scrape.
//
// The values of an endpoint are refreshed together. A response that differs from the one before has
// the time of its scrape; an equal one has the time of the one before, since hardware that idles
// may give equal values. If nothing has changed for longer than the refresh period R, there was a
// refresh with equal values within the last R: the response then has the time now − R. R = 0 means
// that values are refreshed for each scrape.
type freshness struct {
	refresh time.Duration // R
	at      time.Time     // time of the last response
}

// date returns the time of measurement of the values of a response, given the time of the scrape,
// which never decreases. changed reports whether the values differ from those of the response
// before. The result never decreases.
func (f *freshness) date(now time.Time, changed bool) time.Time {
	if changed {
		f.at = driver.Later(f.at, now)
	}
	f.at = driver.Later(f.at, now.Add(-f.refresh))
	return f.at
}
