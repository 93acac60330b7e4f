// Package events writes Kubernetes Events about pods and ResourceClaims.
//
// client-go's recorder is not used: it drops events without counting them, its retries block the
// next events, and after a restart it creates a second object for the same event.
//
// Bounds (max…) are for what the API server sends.
package events

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/dra-exporter/dra-exporter/driver"
)

// API sends requests to the API server. Errors have a [driver.Reason].
type API interface {
	// Post opens the answer to a POST of a JSON object to path.
	Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error)
	// Patch opens the answer to a JSON merge patch of the object at path.
	Patch(ctx context.Context, path string, patch []byte) (io.ReadCloser, error)
}

// Kinds of objects.
const (
	Pod           = "Pod"
	ResourceClaim = "ResourceClaim"
)

// Object is the object of an event. It need not exist any more.
type Object struct{ Kind, Namespace, Name, UID string }

// Event is something that happened to an object. Events with the same object, reason and message
// are the same event.
type Event struct {
	Object
	Reason  string // a word in CamelCase
	Message string
	At      time.Time // when it happened last
	Times   int       // how often it happened since the event was given before
	Normal  bool      // it is not a warning
}

// Result is the outcome of an event: one of these, or the reason why it is lost.
type Result string

// The results of events that are not lost.
const (
	Created Result = "created"
	Updated Result = "updated" // the count of an event that exists was raised
)

// UIDUnknown is the reason why an event of an object without a UID is lost.
const UIDUnknown Result = "uid_unknown"

// Results returns the results that are expected in normal operation, and those of lost events that
// have no other metric.
func Results() []Result {
	return []Result{
		Created, Updated, UIDUnknown, Result(driver.ReasonTooMany), Result(driver.ReasonForbidden),
		Result(driver.ReasonAbsent), Result(driver.ReasonUnavailable), Result(driver.ReasonTimeout),
	}
}

// Config configures a [Writer].
type Config struct {
	API  API
	Node string // which reports the events
	// Count is called with the result of each event, and State with the outcome of each request: nil
	// for success. They must not block.
	Count func(Result)
	State func(error)
}

const (
	// pace and burst bound the requests of a node. The kubelet's own events are bounded to 50 a
	// second, 100 at once (eventRecordQPS, eventBurst).
	pace  = 1 // a second
	burst = 25
	// repeatEvery is the shortest time between two updates of the count of one event.
	repeatEvery = time.Minute
	// rememberFor is how long the count of an event is known.
	rememberFor = 10 * time.Minute
	// maxWaiting is the highest number of waiting events.
	maxWaiting = 256
	// giveUpAfter is the age at which an event is dropped while the API server can't be reached.
	giveUpAfter = 10 * time.Minute
	// maxServerErrors is how often an event is sent if the API server fails with an internal error.
	maxServerErrors = 3
	// requestTimeout is the timeout of a request.
	requestTimeout = 10 * time.Second
	// drainTimeout is how long Run sends waiting events after its context ends.
	drainTimeout = 2 * time.Second
)

// Writer writes events one after the other.
type Writer struct {
	config  Config
	limiter *rate.Limiter
	wake    chan struct{} // one element: something waits

	mu      sync.Mutex
	number  int
	waiting map[identity]*entry
	written map[identity]record // within the last rememberFor
}

// record is what is known of an event that was written, or tried to be.
type record struct {
	at     time.Time // of the last attempt
	count  int32
	exists bool // at the API server
}

// identity distinguishes events.
type identity struct {
	Object
	reason, message string
}

func (e *Event) identity() identity { return identity{e.Object, e.Reason, e.Message} }

// entry is an event that waits.
type entry struct {
	Event
	number int       // in the order of arrival
	due    time.Time // not before
	count  int32     // with the earlier ones
	exists bool      // the API server has the event, as far as known
}

// New returns a writer.
func New(config Config) *Writer {
	return &Writer{
		config: config, limiter: rate.NewLimiter(pace, burst), wake: make(chan struct{}, 1),
		waiting: map[identity]*entry{}, written: map[identity]record{},
	}
}

// Write queues an event. It does not block: if there are too many, the event is dropped and
// counted. It is safe for concurrent use.
func (w *Writer) Write(events ...Event) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range events {
		e := &events[i]
		id := e.identity()
		known := w.waiting[id]
		switch {
		case e.UID == "":
			w.config.Count(UIDUnknown)
		case known != nil:
			known.Times += e.Times
			known.At = e.At
		case len(w.waiting) >= maxWaiting:
			w.config.Count(Result(driver.ReasonTooMany))
		default:
			due := now
			if last, ok := w.written[id]; ok && last.at.Add(repeatEvery).After(now) {
				due = last.at.Add(repeatEvery)
			}
			w.number++
			w.waiting[id] = &entry{Event: *e, number: w.number, due: due}
		}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next removes and returns the event that is due, or returns how long to wait for one. After the
// end, events are due at once.
func (w *Writer) next(atEnd bool) (*entry, time.Duration) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.written, func(_ identity, last record) bool { return now.Sub(last.at) >= rememberFor })
	var first *entry
	for _, e := range w.waiting {
		if first == nil || e.due.Before(first.due) || e.due.Equal(first.due) && e.number < first.number {
			first = e
		}
	}
	switch {
	case first == nil:
		return nil, repeatEvery
	case first.due.After(now) && !atEnd:
		return nil, first.due.Sub(now)
	}
	id := first.identity()
	delete(w.waiting, id)
	last := w.written[id]
	first.count, first.exists = last.count+int32(first.Times), last.exists
	last.at = now
	w.written[id] = last
	return first, 0
}

// Run writes events until ctx ends, and then for a short time the waiting ones. It first asks the
// API server whether it may.
func (w *Writer) Run(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	if err := Allowed(asking, w.config.API); driver.ReasonOf(err) == driver.ReasonForbidden {
		w.config.State(err)
	}
	cancel()
	for ctx.Err() == nil {
		e, wait := w.next(false)
		if e == nil {
			w.sleep(ctx, wait)
			continue
		}
		if w.limiter.Wait(ctx) != nil {
			w.Write(e.Event)
			break
		}
		w.write(ctx, e)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	for e, _ := w.next(true); e != nil; e, _ = w.next(true) {
		w.write(ending, e)
	}
}

// sleep waits for a time, or until there is another event.
func (w *Writer) sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
}

// write sends an event, and counts the result. It tries again while the API server can't be
// reached.
func (w *Writer) write(ctx context.Context, e *entry) {
	failures := 0
	result, err := backoff.Retry(ctx, func() (Result, error) {
		sent, result, err := w.send(ctx, w.object(e), e.exists)
		w.config.State(err)
		if err == nil {
			e.count, e.exists = sent.Count, true
			return result, nil
		}
		failures++
		if !again(err, failures) || time.Since(e.At) > giveUpAfter {
			err = backoff.Permanent(err)
		}
		return "", err
	}, backoff.WithMaxElapsedTime(giveUpAfter))
	if err != nil {
		result = Result(driver.ReasonOf(err))
	}
	w.mu.Lock()
	w.written[e.identity()] = record{time.Now(), e.count, e.exists}
	w.mu.Unlock()
	w.config.Count(result)
}

// again reports whether an event should be sent again after this number of failures.
func again(err error, failures int) bool {
	reason := driver.ReasonOf(err)
	if reason == driver.ReasonServerError {
		return failures < maxServerErrors
	}
	return slices.Contains([]driver.Reason{
		driver.ReasonUnavailable, driver.ReasonTimeout, driver.ReasonRateLimited, driver.ReasonUnauthorized,
	}, reason)
}
