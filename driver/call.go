package driver

import (
	"context"
	"errors"
	"fmt"
)

// Call is a function that runs on a goroutine of its own, since a call into a vendor's library or a
// file system may never return: who waits for it stops waiting when a context ends, and finds the
// result later. A Call belongs to one goroutine.
type Call[T any] struct {
	done   chan struct{}
	result T
	late   bool
}

// Go starts a call of f. Its goroutine lasts until f returns. If f panics, the result is what
// panicked returns for that error, whose reason is ReasonPanic.
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

// Wait waits for the result until ctx ends. It is false if there is none then.
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

// Take returns the result if it is there.
func (c *Call[T]) Take() (result T, done bool) {
	select {
	case <-c.done:
		return c.result, true
	default:
		return result, false
	}
}

// Late reports whether the call was waited for, and had not returned.
func (c *Call[T]) Late() bool { return c.late }

// Hung returns the error of an operation, such as "call NVML", that did not return in time.
func Hung(operation string) error {
	return WithReason(ReasonHung, errors.New(operation+": no answer in time"))
}
