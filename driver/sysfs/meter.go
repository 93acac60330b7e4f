package sysfs

import "time"

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
