package driver

import (
	"context"
	"fmt"
	"time"
)

// Worker makes calls that may never return, such as samples of a source and reads of files: one at
// a time, each on a goroutine of its own and with a deadline. A call that hangs keeps the Worker
// from making another one, and blocks nothing else.
//
// Start, Wait and Take are for who waits for several workers side by side; Do is for who can go on
// without the result; Run is for a goroutine that has nothing else to do. A Worker belongs to one
// goroutine.
type Worker[T any] struct {
	Operation string        // in errors, such as "read CDI specs"
	Deadline  time.Duration // of the context of a call
	// Report is called, by the goroutine of the Worker, with the outcome of each call, and once
	// with ReasonHung for each call that hangs. It may be nil.
	Report func(Outcome[T])

	call  *Call[Outcome[T]] // nil: none is in progress
	begun time.Time
	hung  bool // the call in progress was reported as hung
}

// How long a read of files may take: until it is late for a tick, which goes on without it, and
// until its context ends.
const (
	ReadWait     = 250 * time.Millisecond
	ReadDeadline = 5 * time.Second
)

// NewReader returns a worker that reads files of the node. report, which may be nil, is called with
// how long a read took, or hangs by now, and with its error.
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
	Ended time.Time // zero: it has not ended, but hangs
	Took  time.Duration
}

// HangAfter is how long after its deadline a call counts as hung: longer than machines stand still.
const HangAfter = 2 * time.Second

// Start begins a call of f. It returns false if there is an earlier one whose outcome was not
// taken.
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

// Busy reports whether there is a call whose outcome was not taken.
func (w *Worker[T]) Busy() bool { return w.call != nil }

// Wait waits until the call that was started ends, or ctx does.
func (w *Worker[T]) Wait(ctx context.Context) {
	if w.call != nil {
		w.call.Wait(ctx)
	}
}

// Take returns the outcome of a call that has ended, once.
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

// Do makes a call and waits for its end, at most for so long. If it has not ended then, or an
// earlier one has not yet, it fails with ReasonHung.
func (w *Worker[T]) Do(
	ctx context.Context, atMost time.Duration, f func(context.Context) (T, error),
) (value T, err error) {
	w.Take() // of an earlier call, which is not what is asked for now
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

// Run makes a call and waits for its end, however long that takes, or for that of ctx, whose error
// it returns then. The call may end just after: Busy reports whether it hangs.
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

// settle gives a call whose context has ended a moment to end.
func (w *Worker[T]) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ReadWait)
	defer cancel()
	w.Wait(ctx)
	w.Take()
}
