package exporter

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// minTicks is the number of intervals without a snapshot that Health always tolerates.
const minTicks = 3

// progress is the present phase of the sampler. It is safe for concurrent use.
type progress struct {
	phase    atomic.Pointer[phase]
	finished atomic.Pointer[time.Time] // time of the last tick, or of the sampler's start
}

// phase is a part of a tick in progress.
type phase struct {
	part  string // "": no tick is in progress
	begun time.Time
}

// enter records that a part of a tick begins.
func (p *progress) enter(part string, now time.Time) { p.phase.Store(&phase{part, now}) }

// finish records that a tick has ended.
func (p *progress) finish(now time.Time) {
	p.phase.Store(&phase{"", now})
	p.finished.Store(&now)
}

// Health returns an error if there has been no new snapshot for longer than MaxAge. The error names
// the part of the tick that has not returned. Health is safe for concurrent use.
func (s *Sampler) Health() error {
	last, at := s.progress.finished.Load(), s.progress.phase.Load()
	if last == nil { // not started
		return nil
	}
	now := s.Now()
	age := now.Sub(*last)
	switch {
	case age <= max(s.MaxAge, minTicks*s.Interval):
		return nil
	case at.part == "":
		return fmt.Errorf("no snapshot for %v", age.Round(time.Second))
	default:
		return fmt.Errorf("no snapshot for %v: %s has not returned for %v",
			age.Round(time.Second), at.part, now.Sub(at.begun).Round(time.Second))
	}
}

// longest keeps the duration of the longest tick of the last ten minutes. The zero value is ready
// to use.
type longest struct {
	began   time.Time // of the current minute
	minutes [10]time.Duration
}

// add adds a tick that ends now, and returns the duration of the longest one.
func (l *longest) add(took time.Duration, now time.Time) time.Duration {
	for n := 0; now.Sub(l.began) >= time.Minute && n < len(l.minutes); n++ {
		copy(l.minutes[1:], l.minutes[:])
		l.minutes[0], l.began = 0, l.began.Add(time.Minute)
	}
	if now.Sub(l.began) >= time.Minute {
		l.began = now
	}
	l.minutes[0] = max(l.minutes[0], took)
	return slices.Max(l.minutes[:])
}
