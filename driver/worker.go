package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Worker makes calls that may never return, such as samples of a source and reads of files: one at
// a time, each on its own goroutine and with a deadline. While a call hangs, the Worker makes no
// other call; nothing else is blocked.
//
// Use Start, Wait and Take to wait for several workers in parallel, Do to wait for a limited time,
// and Run to wait until the call ends. A Worker is not safe for concurrent use.
type Worker[T any] struct {
	Operation string        // for error texts, such as "read CDI specs"
	Deadline  time.Duration // timeout of the context of each call
	// Report, if not nil, is called by the goroutine that uses the Worker: with the outcome of each
	// call, and once with an error of ReasonHung for each call that hangs.
	Report func(Outcome[T])

	call  *Call[Outcome[T]] // nil: no call is in progress
	begun time.Time
	hung  bool // the call in progress has been reported as hung
}

// Limits of the duration of a read of files.
const (
	ReadWait     = 250 * time.Millisecond // after which a tick continues without the result
	ReadDeadline = 5 * time.Second        // after which the context of the read ends
)

// NewReader returns a worker that reads files of the node. report, if not nil, is called with the
// duration of each read, or the time for which it has been hanging, and with its error.
func NewReader[T any](operation string, report func(time.Duration, error)) *Worker[T] {
	w := &Worker[T]{Operation: operation, Deadline: ReadDeadline}
	if report != nil {
		w.Report = func(o Outcome[T]) { report(o.Took, o.Err) }
	}
	return w
}

// Outcome is the outcome of a call.
type Outcome[T any] struct {
	Value T
	Err   error
	Ended time.Time // zero: the call hangs
	Took  time.Duration
}

// HangAfter is the time after its deadline at which a call is reported as hung. It is longer than a
// machine is suspended or starved.
const HangAfter = 2 * time.Second

// Start starts a call of f. It returns false if the outcome of an earlier call was not taken yet.
func (w *Worker[T]) Start(ctx context.Context, f func(context.Context) (T, error)) bool {
	if w.call != nil {
		return false
	}
	begun := time.Now()
	w.begun, w.hung = begun, false
	outcome := func(value T, err error) Outcome[T] {
		now := time.Now()
		return Outcome[T]{Value: value, Err: err, Ended: now, Took: now.Sub(begun)}
	}
	w.call = Go(func() Outcome[T] {
		ctx, cancel := context.WithTimeout(ctx, w.Deadline)
		defer cancel()
		return outcome(f(ctx))
	}, func(err error) Outcome[T] {
		var none T
		return outcome(none, fmt.Errorf("%s: %w", w.Operation, err))
	})
	return true
}

// Busy reports whether there is a call whose outcome was not taken yet.
func (w *Worker[T]) Busy() bool { return w.call != nil }

// Wait waits until the call in progress or ctx ends.
func (w *Worker[T]) Wait(ctx context.Context) {
	if w.call != nil {
		w.call.Wait(ctx)
	}
}

// Take returns the outcome of a call that has ended, without waiting. Each outcome is returned
// once.
func (w *Worker[T]) Take() (o Outcome[T], ended bool) {
	if w.call == nil {
		return o, false
	}
	if o, ended = w.call.Take(); ended {
		w.call = nil
		w.report(o)
		return o, true
	}
	if took := time.Since(w.begun); !w.hung && took > w.Deadline+HangAfter {
		w.hung = true
		w.report(Outcome[T]{Err: Hung(w.Operation), Took: took})
	}
	return Outcome[T]{}, false
}

func (w *Worker[T]) report(o Outcome[T]) {
	if w.Report != nil {
		w.Report(o)
	}
}

// Do makes a call and waits for its result, at most for the time atMost. It returns an error of
// ReasonHung if the call has not ended by then, or if an earlier call has not ended.
func (w *Worker[T]) Do(
	ctx context.Context, atMost time.Duration, f func(context.Context) (T, error),
) (value T, err error) {
	w.Take() // drop the outcome of an earlier call
	if !w.Start(ctx, f) {
		return value, Hung(w.Operation)
	}
	waiting, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	w.Wait(waiting)
	o, ended := w.Take()
	if !ended {
		return value, Hung(w.Operation)
	}
	return o.Value, o.Err
}

// Run makes a call and waits for its result without a time limit, after any earlier call. If ctx
// ends first, Run gives the call ReadWait to return and returns the error of ctx; Busy reports
// whether the call is still in progress.
func (w *Worker[T]) Run(ctx context.Context, f func(context.Context) (T, error)) (value T, err error) {
	for started := false; ; {
		started = started || w.Start(ctx, f)
		waiting, cancel := context.WithTimeout(ctx, w.Deadline+HangAfter+time.Millisecond)
		w.Wait(waiting)
		cancel()
		if o, ended := w.Take(); ended && started {
			return o.Value, o.Err
		}
		if err := ctx.Err(); err != nil {
			w.settle(context.WithoutCancel(ctx))
			return value, fmt.Errorf("%s: %w", w.Operation, err)
		}
	}
}

// settle gives a call whose context has ended a short time to return.
func (w *Worker[T]) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ReadWait)
	defer cancel()
	w.Wait(ctx)
	w.Take()
}

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

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
