package exporter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// worker runs one source. It has a goroutine of its own; if the source hangs, that is blocked and
// nothing else.
type worker struct {
	source   driver.Source
	deadline time.Duration
	wake     chan struct{}

	mu      sync.Mutex
	begun   time.Time // of the call in progress; zero: idle
	samples []driver.Sample
	ended   time.Time // of the last call that ended
	took    time.Duration
	err     error
	fresh   bool // its outcome was not returned yet
	hung    bool // reported as hung
}

func newWorker(source driver.Source, deadline time.Duration) *worker {
	return &worker{source: source, deadline: deadline, wake: make(chan struct{}, 1)}
}

// start begins a call, unless one is in progress. In that case it returns false.
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

// run makes calls until ctx ends, and sends to done at the end of each. done has room for it.
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

// sample makes one call. A panic of the source becomes an error.
func (w *worker) sample(ctx context.Context) (samples []driver.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.deadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			samples, err = nil, driver.WithReason(driver.ReasonPanic, fmt.Errorf("source panicked: %v", p))
		}
	}()
	return w.source.Sample(ctx)
}

var errHung = driver.WithReason(driver.ReasonHung, errors.New("source did not return after its deadline"))

// outcome is the result of a source's calls since the previous outcome.
type outcome struct {
	samples []driver.Sample
	ended   time.Time
	took    time.Duration
	err     error
	fresh   bool // a call has ended since
}

// hangAfter is how long after its deadline a call counts as hung.
const hangAfter = time.Second

// outcome returns the newest samples, none if they are older than maxAge. A call that hangs is
// reported once.
func (w *worker) outcome(now time.Time, maxAge time.Duration) outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := outcome{samples: w.samples, ended: w.ended, took: w.took, err: w.err, fresh: w.fresh}
	w.fresh = false
	if !w.begun.IsZero() && now.Sub(w.begun) > w.deadline+hangAfter {
		o.err, o.fresh, o.took = errHung, !w.hung, now.Sub(w.begun)
		w.hung = true
	}
	if now.Sub(w.ended) > maxAge {
		o.samples = nil
	}
	return o
}
