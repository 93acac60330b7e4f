// Package standstill records the times in which a machine runs none of its programs, because of the
// hypervisor of a small virtual machine or other load. Tests that compare times of two processes
// use it.
package standstill

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Shortest is the shortest standstill that is recorded. The clock continues during a standstill.
const Shortest = 50 * time.Millisecond

// Span is an interval of time.
type Span struct{ From, To time.Time }

// Overlap returns the total time of others within the span. The others must not overlap each other.
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

// Watch records standstills until stop is called. found returns those so far. Both are safe for
// concurrent use.
func Watch() (found func() []Span, stop func()) {
	return watch(Shortest/10, func(passed time.Duration) time.Duration {
		if passed > Shortest {
			return passed
		}
		return 0
	})
}

// WatchPressure records when some program waited for a processor, by the kernel's count ("some" in
// /proc/pressure/cpu). Each span is the wait within a tenth of a second, and ends with it. Without
// that file there are no spans.
func WatchPressure() (found func() []Span, stop func()) {
	before, _ := waited()
	return watch(100*time.Millisecond, func(passed time.Duration) time.Duration {
		now, err := waited()
		if err != nil {
			return 0
		}
		more := now - before
		before = now
		return min(more, passed)
	})
}

// waited returns for how long some program has waited for a processor since the machine started.
func waited() (time.Duration, error) {
	content, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, err
	}
	some, _, _ := strings.Cut(string(content), "\n")
	_, total, _ := strings.Cut(some, " total=")
	microseconds, err := strconv.ParseInt(total, 10, 64)
	return time.Duration(microseconds) * time.Microsecond, err
}

// watch records spans: how much of the time that has passed since the last look, at its end.
func watch(every time.Duration, of func(passed time.Duration) time.Duration) (found func() []Span, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []Span
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			now := time.Now()
			if part := of(now.Sub(last)); part > 0 {
				mu.Lock()
				all = append(all, Span{now.Add(-part), now})
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
