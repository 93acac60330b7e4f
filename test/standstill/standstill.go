// Package standstill records when a machine runs none of its programs, so that tests that compare
// times with another process's can allow for it. The cause is the hypervisor of a small virtual
// machine, or other load.
package standstill

import (
	"context"
	"sync"
	"time"
)

// Shortest is the shortest standstill that is recorded. The clock goes on meanwhile.
const Shortest = 50 * time.Millisecond

// Span is an interval of time.
type Span struct{ From, To time.Time }

// Overlap returns for how long one of others, which do not overlap each other, lay in the span.
func (s Span) Overlap(others []Span) time.Duration {
	sum := time.Duration(0)
	for _, other := range others {
		from, to := s.From, s.To
		if other.From.After(from) {
			from = other.From
		}
		if other.To.Before(to) {
			to = other.To
		}
		sum += max(0, to.Sub(from))
	}
	return sum
}

// Total returns the sum of the durations of spans.
func Total(spans []Span) time.Duration {
	sum := time.Duration(0)
	for _, s := range spans {
		sum += s.To.Sub(s.From)
	}
	return sum
}

// Watch records standstills until stop is called. found returns those so far; both may be called
// at any time, by any goroutine.
func Watch() (found func() []Span, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []Span
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(Shortest / 10)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now := time.Now()
			if now.Sub(last) > Shortest {
				mu.Lock()
				all = append(all, Span{last, now})
				mu.Unlock()
			}
			last = now
		}
	}()
	found = func() []Span {
		mu.Lock()
		defer mu.Unlock()
		return append([]Span(nil), all...)
	}
	return found, func() { cancel(); <-ended }
}
