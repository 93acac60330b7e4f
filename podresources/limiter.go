package podresources

import (
	"errors"
	"time"
)

// Bounds of the calls to the kubelet. Its own limit, 100 calls a second with a burst of 10, is one for all clients of the
// socket: what is taken here is taken from the device plugins and agents of others.
const (
	maxCalls   = 3
	callWindow = time.Second

	firstDelay          = time.Second
	maxDelay            = 5 * time.Second
	maxDelayTooLarge    = 30 * time.Second
	maxDelayUnavailable = 500 * time.Millisecond // who is away is not burdened, and its return is to be seen soon
)

// Limiter says when the kubelet may be called: 3 times in any second at most, and less while calls fail. The zero value
// is ready; it is used by one goroutine at a time, and the times that it is given do not go back.
type Limiter struct {
	// Jitter returns a number in [0, 1) that spreads the delays of many nodes; nil: none.
	Jitter func() float64

	last     [maxCalls]time.Time // the times of the last calls; the oldest is at next
	next     int
	failures int
	notUntil time.Time
}

// Next returns the earliest time at which a call is allowed; it may be past.
func (l *Limiter) Next() time.Time {
	next := l.notUntil
	if oldest := l.last[l.next]; !oldest.IsZero() && oldest.Add(callWindow).After(next) {
		next = oldest.Add(callWindow)
	}
	return next
}

// Allow tells whether a call may begin now, and counts it when it may.
func (l *Limiter) Allow(now time.Time) bool {
	if now.Before(l.Next()) {
		return false
	}
	l.last[l.next] = now
	l.next = (l.next + 1) % maxCalls
	return true
}

// Done says how the last call that was allowed ended. It counts from there, so that however late a call arrives, the
// kubelet sees no more than 3 in any second. A failure delays the next call: the first one of a row only if the kubelet
// said that there was too much.
func (l *Limiter) Done(now time.Time, err error) {
	l.last[(l.next+maxCalls-1)%maxCalls] = now
	if err == nil {
		l.failures, l.notUntil = 0, time.Time{}
		return
	}
	l.failures++
	l.notUntil = now.Add(l.delay(err))
}

// delay doubles from failure to failure up to the bound of that error, less up to a quarter by jitter.
func (l *Limiter) delay(err error) time.Duration {
	limit, doublings := maxDelay, l.failures-1
	switch {
	case errors.Is(err, ErrTooLarge):
		limit = maxDelayTooLarge
	case errors.Is(err, ErrRateLimited):
	case errors.Is(err, ErrUnavailable):
		limit = maxDelayUnavailable
		doublings--
	default:
		doublings--
	}
	if doublings < 0 {
		return 0
	}
	delay := min(limit, firstDelay<<min(doublings, 8))
	if l.Jitter != nil {
		delay -= time.Duration(l.Jitter() * float64(delay) / 4)
	}
	return delay
}
