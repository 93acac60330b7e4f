package accuracy

import (
	"context"
	"time"
)

// A machine that does not let its programs run for so long stands still: what happens meanwhile nobody can see, and no clock stops.
// The hypervisor of a small virtual machine does that, or a load beside the test.
const standstill = 50 * time.Millisecond

// margin is how far from a pod's time a standstill bears on what it is charged: what a device did between two readings, a second apart, is
// divided by time.
const margin = time.Second

// mostlyRan is the part of a pod's time, as short as 2 s, in which the machine may stand still before the pod may go unseen.
const mostlyRan = 0.2

// span is some time.
type span struct{ from, to time.Time }

// watchMachine notes when the machine stands still, until the function is called that it returns.
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

// overlap returns how long the machine stood still in a span.
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

// total returns how long spans are together.
func total(spans []span) time.Duration {
	sum := time.Duration(0)
	for _, s := range spans {
		sum += s.to.Sub(s.from)
	}
	return sum
}
