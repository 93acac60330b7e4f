package accuracy

import (
	"context"
	"time"
)

// The machine is stalled if it does not run its programs for this long. Nothing can be measured
// meanwhile, while the clock goes on. The cause is the hypervisor of a small virtual machine, or
// other load.
const standstill = 50 * time.Millisecond

// margin is how far outside a pod's time a stall affects its figures: the use between two readings,
// a second apart, is divided by time.
const margin = time.Second

// maxStalled is the share of a pod's time, which is at least 2 s, from which on the pod may be
// missed if the machine is stalled.
const maxStalled = 0.2

// span is an interval of time.
type span struct{ from, to time.Time }

// watchMachine records when the machine is stalled. The function that it returns ends it.
func watchMachine() func() []span {
	ctx, cancel := context.WithCancel(context.Background())
	found := make(chan []span)
	go func() {
		var still []span
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(standstill / 10)
			now := time.Now()
			if now.Sub(last) > standstill {
				still = append(still, span{last, now})
			}
			last = now
		}
		found <- still
	}()
	return func() []span {
		cancel()
		return <-found
	}
}

// overlap returns how long the machine was stalled in a span.
func (s span) overlap(still []span) time.Duration {
	sum := time.Duration(0)
	for _, other := range still {
		from, to := s.from, s.to
		if other.from.After(from) {
			from = other.from
		}
		if other.to.Before(to) {
			to = other.to
		}
		sum += max(0, to.Sub(from))
	}
	return sum
}

// total returns the sum of the durations of spans.
func total(spans []span) time.Duration {
	sum := time.Duration(0)
	for _, s := range spans {
		sum += s.to.Sub(s.from)
	}
	return sum
}
