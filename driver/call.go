package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Call is a function call that runs on its own goroutine, because a call into a vendor's library or
// a file system may never return. A caller can stop waiting when a context ends and take the result
// later. A Call is not safe for concurrent use.
type Call[T any] struct {
	done   chan struct{}
	result T
	late   bool // Wait returned without a result
}

// Go starts a call of f. Its goroutine ends when f returns. If f panics, the result is that of
// panicked, which is called with an error of ReasonPanic.
func Go[T any](f func() T, panicked func(error) T) *Call[T] {
	c := &Call[T]{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer func() {
			if p := recover(); p != nil {
				c.result = panicked(WithReason(ReasonPanic, fmt.Errorf("panic: %v", p)))
			}
		}()
		c.result = f()
	}()
	return c
}

// Wait waits for the result until ctx ends. done reports whether the call has returned.
func (c *Call[T]) Wait(ctx context.Context) (result T, done bool) {
	select {
	case <-c.done:
		return c.result, true
	case <-ctx.Done():
		result, done = c.Take()
		c.late = !done
		return result, done
	}
}

// Take returns the result if the call has returned, without waiting.
func (c *Call[T]) Take() (result T, done bool) {
	select {
	case <-c.done:
		return c.result, true
	default:
		return result, false
	}
}

// Late reports whether a Wait ended without a result.
func (c *Call[T]) Late() bool { return c.late }

// Hung returns the error, of ReasonHung, of an operation such as "call NVML" that did not return in
// time.
func Hung(operation string) error {
	return WithReason(ReasonHung, errors.New(operation+": no answer in time"))
}

// Pause waits for d. It returns false if ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
