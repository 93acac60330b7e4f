package sysfs

import (
	"slices"
	"time"
)

// minWindow is the minimum time over which the rate of a counter in milliseconds is computed.
const minWindow = 100 * time.Millisecond

// Meter computes the rate of a counter of the kernel over the time between two samples, at least
// 100 ms. The zero Meter is ready to use.
type Meter struct {
	at  time.Time // when the window began; zero: none has
	raw uint64    // the count then

	perSecond float64
	rateAt    time.Time // when the window of the rate ended; zero: there is no rate
}

// Advance adds a value of the counter. A value that fell was reset: the increase is unknown, and a
// new window starts.
func (m *Meter) Advance(raw uint64, at time.Time) {
	window := at.Sub(m.at)
	switch {
	case m.at.IsZero() || raw < m.raw || window < 0:
		*m = Meter{at: at, raw: raw}
	case window >= minWindow:
		*m = Meter{at: at, raw: raw, perSecond: float64(raw-m.raw) / window.Seconds(), rateAt: at}
	}
}

// Stop resets the meter: the next value starts a new window.
func (m *Meter) Stop() { *m = Meter{} }

// Rate returns the rate per second over the last window and the end of this window, or false if the
// rate is unknown.
func (m *Meter) Rate() (perSecond float64, at time.Time, ok bool) {
	return m.perSecond, m.rateAt, !m.rateAt.IsZero()
}

// Due returns the devices that are due for a full read: those whose last full read was at least
// every ago. It returns no more than most of them, those that waited longest. at returns the time
// of the last full read, zero if there was none.
func Due[D comparable](devices []D, at func(D) time.Time, now time.Time, every time.Duration, most int) map[D]bool {
	var late []D
	for _, d := range devices {
		if age := now.Sub(at(d)); age >= every || age < 0 {
			late = append(late, d)
		}
	}
	slices.SortStableFunc(late, func(a, b D) int { return at(a).Compare(at(b)) })
	due := make(map[D]bool, most)
	for _, d := range late[:min(len(late), most)] {
		due[d] = true
	}
	return due
}
