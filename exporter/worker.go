package exporter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// worker runs one source apart from all others: it has one goroutine, which a source that hangs keeps, and which
// nobody waits for.
type worker struct {
	source   driver.Source
	deadline time.Duration
	wake     chan struct{}

	mu      sync.Mutex
	begun   time.Time // of the call under way; zero: idle
	samples []driver.Sample
	ended   time.Time // of the last call that came to an end
	took    time.Duration
	err     error
	fresh   bool // the last call's outcome was not reported yet
	hung    bool // reported as hung
}

func newWorker(source driver.Source, deadline time.Duration) *worker {
	return &worker{source: source, deadline: deadline, wake: make(chan struct{}, 1)}
}

// start begins a call unless one is under way. It returns false in that case.
func (w *worker) start(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun.IsZero() {
		return false
	}
	w.begun = now
	w.wake <- struct{}{}
	return true
}

// run makes the calls until ctx ends; each end of a call is told to done, which has room for it.
func (w *worker) run(ctx context.Context, done chan<- *worker) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.call(ctx)
		done <- w
	}
}

func (w *worker) call(ctx context.Context) {
	begun := time.Now()
	samples, err := w.sample(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples, w.err, w.ended, w.took = samples, err, time.Now(), time.Since(begun)
	w.begun, w.fresh, w.hung = time.Time{}, true, false
}

// sample makes one call. A source that panics has failed, and no more than that.
func (w *worker) sample(ctx context.Context) (samples []driver.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.deadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			samples, err = nil, panicError{p}
		}
	}()
	return w.source.Sample(ctx)
}

// panicError is what a source panicked with.
type panicError struct{ value any }

func (e panicError) Error() string { return fmt.Sprintf("source panicked: %v", e.value) }
func (panicError) Reason() string  { return "panic" }

var errHung = errors.New("source did not return after its deadline")

// outcome is what became of the calls of a source since the outcome before.
type outcome struct {
	samples []driver.Sample
	ended   time.Time
	took    time.Duration
	err     error
	fresh   bool // a call came to an end
}

// hangs is how long after its deadline a call counts as hung.
const hangs = time.Second

// outcome returns the newest samples, none when they are older than maxAge. A call that hangs is reported once.
func (w *worker) outcome(now time.Time, maxAge time.Duration) outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := outcome{samples: w.samples, ended: w.ended, took: w.took, err: w.err, fresh: w.fresh}
	w.fresh = false
	if !w.begun.IsZero() && now.Sub(w.begun) > w.deadline+hangs {
		o.err, o.fresh, o.took = errHung, !w.hung, now.Sub(w.begun)
		w.hung = true
	}
	if now.Sub(w.ended) > maxAge {
		o.samples = nil
	}
	return o
}

// reason names an error for the label reason.
func reason(err error) string {
	var named interface{ Reason() string }
	switch {
	case errors.As(err, &named):
		return named.Reason()
	case errors.Is(err, errHung):
		return "hung"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "canceled"
	default:
		return "error"
	}
}
