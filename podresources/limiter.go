package podresources

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Bounds of the calls to the kubelet. All clients of the socket share the kubelet's own limit of
// 100 calls a second with a burst of 10.
const (
	maxCalls   = 3
	callWindow = time.Second
	// expectedPause is the shortest time between two calls that are expected to show a change, and
	// otherPause the shortest time between any other call and the last one. So some of the calls of a
	// second are left for changes.
	expectedPause = callWindow / maxCalls
	otherPause    = 2 * callWindow / maxCalls

	firstDelay          = time.Second
	maxDelay            = 5 * time.Second
	maxDelayTooLarge    = 30 * time.Second
	maxDelayUnavailable = 500 * time.Millisecond // short, so that a restart of the kubelet is noticed soon
)

// Limiter limits calls to the kubelet to 3 in any second, and fewer while calls fail. The zero
// value is ready; it is used by one goroutine at a time, and the times that it is given do not go
// back.
type Limiter struct {
	// Jitter returns a number in [0, 1) that spreads the delays of many nodes; nil: none.
	Jitter func() float64

	calls    [maxCalls]time.Time // the times of the last calls, oldest first
	expected time.Time           // of the last call that was expected to show a change
	failed   bool                // the last call failed
	delays   backoff.ExponentialBackOff
	notUntil time.Time
}

// Next returns the earliest time at which a call is allowed; expected means that the call is
// expected to show a change. The time may be in the past.
func (l *Limiter) Next(expected bool) time.Time {
	next := driver.Later(l.notUntil, l.calls[0].Add(callWindow))
	if expected {
		return driver.Later(next, l.expected.Add(expectedPause))
	}
	return driver.Later(next, l.calls[maxCalls-1].Add(otherPause))
}

// Allow reports whether a call may begin now, and counts it when it may.
func (l *Limiter) Allow(now time.Time, expected bool) bool {
	if now.Before(l.Next(expected)) {
		return false
	}
	copy(l.calls[:], l.calls[1:])
	l.calls[maxCalls-1] = now
	if expected {
		l.expected = now
	}
	return true
}

// Done records how the last allowed call ended. The limit counts from then, so that the kubelet
// sees no more than 3 calls in any second however late a call arrives. A failure delays the next
// call; the first failure of a row does so only if the kubelet said that there were too many calls.
func (l *Limiter) Done(now time.Time, err error) {
	l.calls[maxCalls-1] = now
	if err == nil {
		l.failed, l.notUntil = false, time.Time{}
		l.delays.Reset()
		return
	}
	l.notUntil = now.Add(l.delay(err))
	l.failed = true
}

// delay returns the delay after one more failure: twice the previous one up to a limit, less up to
// a quarter of it as jitter.
func (l *Limiter) delay(err error) time.Duration {
	limit, atOnce := maxDelay, !l.failed
	switch {
	case errors.Is(err, ErrTooLarge):
		limit, atOnce = maxDelayTooLarge, false
	case errors.Is(err, ErrRateLimited):
		atOnce = false
	case errors.Is(err, ErrUnavailable):
		limit = maxDelayUnavailable
	}
	if atOnce {
		return 0
	}
	l.delays.InitialInterval, l.delays.MaxInterval, l.delays.Multiplier = firstDelay, limit, 2
	delay := min(l.delays.NextBackOff(), limit)
	if l.Jitter != nil {
		delay -= time.Duration(l.Jitter() * float64(delay) / 4)
	}
	return delay
}
