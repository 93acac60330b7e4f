package kube

import (
	"context"
	"time"
)

// Delays after failures. Many nodes fail together, when the API server is away: they must not return together.
const (
	firstDelay        = time.Second
	maxDelay          = time.Minute
	maxDelayPermanent = 3 * time.Minute // what is forbidden or absent stays so for a while
)

// backoff is the delay between attempts that fail.
type backoff struct {
	jitter   func() float64 // in [0, 1); spreads the nodes
	failures int
}

// next returns how long to wait after one more failure: twice as long as after the one before, and up to a half less.
func (b *backoff) next(err error) time.Duration {
	limit := maxDelay
	if isPermanent(err) {
		limit = maxDelayPermanent
	}
	delay := min(limit, firstDelay<<min(b.failures, 10))
	b.failures++
	return delay - time.Duration(b.jitter()*float64(delay)/2)
}

func (b *backoff) reset() { b.failures = 0 }

// pause waits; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
