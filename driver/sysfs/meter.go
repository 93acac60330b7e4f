package sysfs

import "time"

// minWindow is the shortest time over which a count of milliseconds says something.
const minWindow = 100 * time.Millisecond

// Meter makes a rate of a counter of the kernel: of the time between two samples, or of at least
// 100 ms. The zero Meter has not begun.
type Meter struct {
	at  time.Time // when the window began; zero: none has
	raw uint64    // the count then

	perSecond float64
	rateAt    time.Time // when the window of the rate ended; zero: there is no rate
}

// Advance takes a count. Where it fell the counter has started again: what it was in the meantime
// is unknown, and a new window begins.
func (m *Meter) Advance(raw uint64, at time.Time) {
	window := at.Sub(m.at)
	switch {
	case m.at.IsZero() || raw < m.raw || window < 0:
		*m = Meter{at: at, raw: raw}
	case window >= minWindow:
		*m = Meter{at: at, raw: raw, perSecond: float64(raw-m.raw) / window.Seconds(), rateAt: at}
	}
}

// Stop forgets the count: the next one begins a window.
func (m *Meter) Stop() { *m = Meter{} }

// Rate returns by how much the counter rose in a second, over the window that ended last, and when
// that was; false: unknown.
func (m *Meter) Rate() (perSecond float64, at time.Time, ok bool) {
	return m.perSecond, m.rateAt, !m.rateAt.IsZero()
}
