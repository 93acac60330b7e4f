package exporter

import (
	"context"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// worker samples one source. A source that hangs blocks only its worker.
type worker struct {
	driver.Worker[[]driver.Sample]
	source driver.Source
	last   driver.Outcome[[]driver.Sample]
}

func newWorker(
	source driver.Source, deadline time.Duration, report func(driver.Outcome[[]driver.Sample]),
) *worker {
	return &worker{source: source, Worker: driver.Worker[[]driver.Sample]{
		Operation: "sample " + source.Name(), Deadline: deadline, Report: report,
	}}
}

// start begins to sample. It returns false if a call is in progress.
func (w *worker) start(ctx context.Context) bool {
	w.take()
	return w.Start(ctx, w.source.Sample)
}

// take stores the outcome of a call that has ended.
func (w *worker) take() {
	if o, ended := w.Take(); ended {
		w.last = o
	}
}

// samples returns the newest samples, and why the source failed. It returns none if they are older
// than maxAge, since the source hangs.
func (w *worker) samples(now time.Time, maxAge time.Duration) ([]driver.Sample, driver.Reason) {
	w.take()
	if now.Sub(w.last.Ended) > maxAge {
		return nil, driver.ReasonHung
	}
	return w.last.Value, driver.ReasonOf(w.last.Err)
}

// owners asks [Owners] for the holders. While the kubelet hangs, it keeps the last answer.
type owners struct {
	driver.Worker[podresources.Observation]
	source Owners
	last   observed
}

// observed is the newest answer.
type observed struct {
	podresources.Observation
	fresh bool // no tick has used it yet
}

// observe asks, unless a request is in progress. It waits up to wait for the answer, and returns
// the newest one.
func (o *owners) observe(ctx context.Context, wait time.Duration) observed {
	o.take()
	o.Start(ctx, o.source.Observe)
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	o.Wait(waiting)
	o.take()
	answer := o.last
	o.last.fresh, o.last.Rejected = false, nil
	return answer
}

// take stores an answer that has arrived.
func (o *owners) take() {
	answer, ended := o.Take()
	switch {
	case ended && driver.ReasonOf(answer.Err) == driver.ReasonPanic: // the answer has no view
		o.last.fresh = true
	case ended:
		o.last = observed{Observation: answer.Value, fresh: true}
	}
}
