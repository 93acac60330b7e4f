package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Bounds of answers, for an API server that is honest but holds what drivers and users wrote.
const (
	maxList  = 64 << 20 // bytes of a page of a list
	maxEvent = 16 << 20 // bytes of an event; etcd takes objects of 1.5 MiB
)

// Objects of a page, for API servers without streaming lists (before Kubernetes 1.34): a page is
// held in memory, and a slice has up to 750 kB.
const (
	pageSize      = 500
	slicePageSize = 10
)

// sink receives the objects of a feed. It must not keep their JSON.
type sink interface {
	// fill begins a new set of all objects: add receives each object; done replaces the previous set,
	// unless the request fails before. The set is valid as of asked.
	fill() (add func(object json.RawMessage), done func(asked time.Time))
	// update receives an object that was added, changed or, if gone, deleted.
	update(object json.RawMessage, gone bool)
}

// feed follows the objects of one resource by client-go's Reflector: it streams all of them (or
// lists them, if the API server does not know that) and then watches them. After a failure it
// retries with a growing delay; until then the objects of the last successful request stay in use.
// No object is kept by client-go.
type feed struct {
	get      getter
	path     string
	selector string // of fields
	sink     sink
	// report receives the outcome of requests: nil when a watch follows a complete set of objects.
	report func(took time.Duration, err error)
	jitter func() float64
	limit  int64 // objects of a page

	// The set that is being filled.
	asked     time.Time
	add       func(json.RawMessage)
	done      func(asked time.Time)
	streaming bool // by a watch
	failed    error
}

// errNoStream makes the Reflector list the objects. It is none of those after which client-go
// v0.37.2 waits, up to a minute and without regard to the context, to stream them again.
var errNoStream = errors.New("the objects are not streamed")

// run follows the objects until ctx ends.
func (f *feed) run(ctx context.Context) {
	none := logr.Discard() // failures are reported
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: f.list, WatchFuncWithContext: f.watch,
	}, nil, f, cache.ReflectorOptions{Name: "feed", Logger: &none})
	reflector.WatchListPageSize = f.limit
	ctx = klog.NewContext(ctx, none)
	delay := newRetryDelay(f.jitter)
	for ctx.Err() == nil {
		begun := time.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		if time.Since(begun) >= maxDelay {
			delay.reset()
		}
		driver.Pause(ctx, delay.next(err))
	}
}

// begin begins a new set.
func (f *feed) begin(streaming bool) {
	f.asked, f.streaming = time.Now(), streaming
	f.add, f.done = f.sink.fill()
}

// list gets a page of the objects. A consistent one is asked for, whatever the Reflector would
// accept: what an older one lacks would count as deleted.
func (f *feed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if err := f.failed; err != nil {
		f.failed = nil
		return nil, err
	}
	if options.Continue == "" {
		f.begin(false)
	}
	begun := time.Now()
	query := f.query()
	if options.Limit > 0 {
		query.Set("limit", strconv.FormatInt(options.Limit, 10))
	}
	if options.Continue != "" {
		query.Set("continue", options.Continue)
	}
	list, err := f.page(ctx, query)
	if err != nil {
		return nil, f.fail(ctx, begun, fmt.Errorf("list: %w", err))
	}
	return list, nil
}

func (f *feed) page(ctx context.Context, query url.Values) (*metav1.List, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	body, err := f.get(ctx, f.path, query)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var page metav1.List
	if err := decodeJSON(body, maxList, &page); err != nil {
		return nil, err
	}
	if page.ResourceVersion == "" {
		return nil, fmt.Errorf("%w: not a list", errMalformed)
	}
	for i := range page.Items {
		f.add(page.Items[i].Raw)
	}
	page.Items = nil // Replace does not need them
	return &page, nil
}

// query returns the query of all requests.
func (f *feed) query() url.Values {
	if f.selector == "" {
		return url.Values{}
	}
	return url.Values{"fieldSelector": {f.selector}}
}

// watch opens a watch, which begins with all objects if the options say so. Such a one is asked for
// as of now, like a list.
func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	begun := time.Now()
	query := f.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	first := options.SendInitialEvents != nil && *options.SendInitialEvents
	if first {
		f.begin(true)
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", string(options.ResourceVersionMatch))
	} else {
		query.Set("resourceVersion", options.ResourceVersion)
	}
	timeout := watchTimeout + time.Duration(f.jitter()*float64(watchTimeout))
	query.Set("timeoutSeconds", strconv.Itoa(int(timeout.Seconds())))

	opened, cancel := context.WithCancelCause(ctx)
	watchdog := time.AfterFunc(pageTimeout, func() { cancel(context.DeadlineExceeded) }) // until it is open
	body, err := f.get(opened, f.path, query)
	if err != nil {
		if cause := context.Cause(opened); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		watchdog.Stop()
		cancel(nil)
		unsupported := first && apierrors.IsInvalid(err)
		if !unsupported && !isExpired(err) {
			err = f.fail(ctx, begun, fmt.Errorf("watch: %w", err))
		}
		if first && !unsupported && !isPermanent(err) {
			f.failed = err // a list would fail too
		}
		if first {
			err = errNoStream
		}
		return nil, err
	}
	watchdog.Reset(timeout + watchGrace) // its connection is dead
	if !first {
		f.report(time.Since(begun), nil)
	}
	e := &events{body: body, limit: &io.LimitedReader{R: body}, fail: func(err error) {
		_ = f.fail(opened, begun, fmt.Errorf("watch: %w", err))
	}}
	e.stop = func() {
		watchdog.Stop()
		cancel(nil)
	}
	if first {
		e.add = f.add
	}
	e.decoder = json.NewDecoder(e.limit)
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "decode")
	return watch.NewStreamWatcher(e, reporter), nil
}

// fail reports the error of a request, unless it was canceled, and returns it with its reason.
func (f *feed) fail(ctx context.Context, begun time.Time, err error) error {
	err = withReason(err)
	if ctx.Err() == nil {
		f.report(time.Since(begun), err)
	}
	return err
}

// Replace implements [cache.ReflectorStore]: the set that was filled is complete.
func (f *feed) Replace([]any, string) error {
	f.done(f.asked)
	if f.streaming {
		f.report(time.Since(f.asked), nil)
	}
	return nil
}

// Add implements [cache.ReflectorStore].
func (f *feed) Add(o any) error { return f.Update(o) }

// Update implements [cache.ReflectorStore].
func (f *feed) Update(o any) error {
	f.sink.update(o.(*watched).raw, false)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (f *feed) Delete(o any) error {
	f.sink.update(o.(*watched).raw, true)
	return nil
}

// Resync implements [cache.ReflectorStore].
func (f *feed) Resync() error { return nil }

// watched is an object of a list or a watch: what client-go needs of it, and its JSON.
type watched struct {
	metav1.PartialObjectMetadata
	raw json.RawMessage // nil: it was added to the set that is being filled
}

// events decodes the events of a watch.
type events struct {
	body    io.ReadCloser
	limit   *io.LimitedReader
	decoder *json.Decoder
	add     func(json.RawMessage) // receives the objects that there are when the watch begins; nil: they are over
	fail    func(error)
	stop    func()
}

// Decode implements [watch.Decoder].
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	e.limit.N = maxEvent
	var event metav1.WatchEvent
	err := e.decoder.Decode(&event)
	if e.limit.N > 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return "", nil, io.EOF // the watch just ends
	}
	o := &watched{raw: event.Object.Raw}
	if err == nil {
		err = json.Unmarshal(o.raw, &o.PartialObjectMetadata)
	}
	if err != nil {
		err = answerError(err, e.limit)
		e.fail(err)
		return "", nil, err
	}
	switch kind := watch.EventType(event.Type); {
	case kind == watch.Error:
		var status metav1.Status
		_ = json.Unmarshal(o.raw, &status) // one without a reason ends the watch too
		if err := apierrors.FromObject(&status); !isExpired(err) {
			e.fail(fmt.Errorf("the server ended it: %w", err))
		}
		return kind, &status, nil
	case e.add != nil && kind != watch.Bookmark:
		e.add(o.raw)
		o.raw, o.Annotations = nil, nil
	case o.Annotations[metav1.InitialEventsAnnotationKey] == "true":
		e.add = nil
	}
	return watch.EventType(event.Type), o, nil
}

// Close implements [watch.Decoder].
func (e *events) Close() {
	e.stop()
	_ = e.body.Close()
}

// retryDelay computes the delay before the next attempt. The jitter spreads the nodes of a cluster,
// whose requests fail together while the API server is down.
type retryDelay struct {
	delays wait.Backoff
	jitter func() float64 // in [0, 1)
}

func newRetryDelay(jitter func() float64) *retryDelay {
	return &retryDelay{delays: doubling(firstDelay, maxDelayPermanent), jitter: jitter}
}

// next returns the delay after one more failure: twice the previous one up to a limit, less up to
// half of it as jitter.
func (d *retryDelay) next(err error) time.Duration {
	delay := d.delays.Step()
	if !isPermanent(err) {
		delay = min(delay, maxDelay)
	}
	return delay - time.Duration(d.jitter()*float64(delay)/2)
}

func (d *retryDelay) reset() { d.delays = doubling(firstDelay, maxDelayPermanent) }

// doubling returns delays of which each is twice the one before, up to the longest.
func doubling(first, longest time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: 2, Steps: math.MaxInt, Cap: longest}
}

// joinedReport combines the reports of two feeds into one source, which is up if both are.
type joinedReport struct {
	report func(took time.Duration, err error)

	mu sync.Mutex
	up [2]bool
}

// half returns the report function of one of the feeds.
func (j *joinedReport) half(i int) func(took time.Duration, err error) {
	return func(took time.Duration, err error) {
		j.mu.Lock()
		j.up[i] = err == nil
		whole := j.up[0] && j.up[1]
		j.mu.Unlock()
		if err != nil || whole {
			j.report(took, err)
		}
	}
}
