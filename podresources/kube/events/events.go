// Package events writes Kubernetes Events about pods and ResourceClaims.
//
// client-go's recorder is not used: it drops events without counting them, its retries block the
// next events, and after a restart it creates a second object for the same event.
//
// Bounds (max…) are for what the API server sends.
package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

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

	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[identity] // nil before Run
	known   map[identity]*record                           // those that wait, or were written within rememberFor
	waiting int
}

// identity distinguishes events.
type identity struct {
	Object
	reason, message string
}

// record is an event that waits, was written, or tried to be.
type record struct {
	Event           // Times counts from the last attempt
	waits bool      // the queue has it
	tried time.Time // the last attempt
	count int32     // before that
	exist bool      // the API server has the event, as far as known
}

// New returns a writer.
func New(config Config) *Writer {
	return &Writer{config: config, limiter: rate.NewLimiter(pace, burst), known: map[identity]*record{}}
}

// Write queues an event. It does not block: if there are too many, the event is dropped and
// counted. It is safe for concurrent use.
func (w *Writer) Write(events ...Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range events {
		e := events[i]
		id := identity{e.Object, e.Reason, e.Message}
		r := w.known[id]
		switch {
		case e.UID == "":
			w.config.Count(UIDUnknown)
			continue
		case r != nil && r.waits:
			e.Times += r.Times
		case w.waiting == maxWaiting:
			w.config.Count(Result(driver.ReasonTooMany))
			continue
		case r == nil:
			r = &record{}
			w.known[id] = r
		}
		if r.Event = e; r.waits {
			continue
		}
		r.waits = true
		w.waiting++
		if w.queue != nil {
			w.queue.AddAfter(id, time.Until(r.tried.Add(repeatEvery)))
		}
	}
}

// Run writes events until ctx ends, and then for a short time the waiting ones. It first asks the
// API server whether it may.
func (w *Writer) Run(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	if err := Allowed(asking, w.config.API); driver.ReasonOf(err) == driver.ReasonForbidden {
		w.config.State(err)
	}
	cancel()
	delays := workqueue.NewTypedItemExponentialFailureRateLimiter[identity](time.Second, repeatEvery)
	queue := workqueue.NewTypedRateLimitingQueue(delays)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	w.mu.Lock()
	w.queue = queue
	for id := range w.known {
		queue.Add(id)
	}
	w.mu.Unlock()
	for id, over := queue.Get(); !over; id, over = queue.Get() {
		if w.limiter.Wait(ctx) == nil {
			w.write(ctx, id, false)
		}
		queue.Done(id)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	for id, r := range w.known { // nothing is written any more
		if r.waits {
			w.write(ending, id, true)
		}
	}
}

// write sends an event, and counts the result. Unless it is the last time, an event waits on if the
// API server can't be reached.
func (w *Writer) write(ctx context.Context, id identity, last bool) {
	w.mu.Lock()
	maps.DeleteFunc(w.known, func(_ identity, r *record) bool { return !r.waits && time.Since(r.tried) >= rememberFor })
	r := w.known[id]
	now := *r
	r.Times, r.tried = 0, time.Now()
	w.mu.Unlock()
	now.count += int32(now.Times)
	sent, result, err := w.send(ctx, w.object(&now), now.exist)
	w.config.State(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !last && again(err, w.queue.NumRequeues(id)) && time.Since(now.At) <= giveUpAfter {
		r.Times += now.Times
		w.queue.AddRateLimited(id)
		return
	}
	if err != nil {
		result = Result(driver.ReasonOf(err))
	} else {
		now.count, now.exist = sent.Count, true
	}
	r.count, r.exist, r.waits = now.count, now.exist, r.Times > 0
	w.config.Count(result)
	w.queue.Forget(id)
	if r.waits {
		w.queue.AddAfter(id, repeatEvery)
	} else {
		w.waiting--
	}
}

// again reports whether an event should be sent again, after this number of failures before.
func again(err error, failures int) bool {
	reason := driver.ReasonOf(err)
	if reason == driver.ReasonServerError {
		return failures+1 < maxServerErrors
	}
	return slices.Contains([]driver.Reason{
		driver.ReasonUnavailable, driver.ReasonTimeout, driver.ReasonRateLimited, driver.ReasonUnauthorized,
	}, reason)
}

const (
	component = "dra-exporter"
	// maxMessage is the highest length of a message in events.k8s.io.
	maxMessage = 1024
	// maxName is the highest length of the object's name in an event's name. Names have at most 253
	// bytes.
	maxName = 200
	// maxAnswer is the highest size of an answer, in bytes.
	maxAnswer = 1 << 20
)

// object returns the object of the API for an event. Its name is derived from the object and the
// event, so that after a restart the same event is found.
func (w *Writer) object(e *record) *corev1.Event {
	at := metav1.NewTime(e.At)
	version := "v1"
	if e.Kind == ResourceClaim {
		version = "resource.k8s.io/v1"
	}
	kind := corev1.EventTypeWarning
	if e.Normal {
		kind = corev1.EventTypeNormal
	}
	message := shorten(e.Message, maxMessage)
	sum := sha256.Sum256([]byte(strings.Join([]string{e.Kind, e.UID, e.Reason, message, w.config.Node}, "\x00")))
	name := strings.TrimRight(shorten(e.Name, maxName), ".-") + "." + hex.EncodeToString(sum[:8])
	return &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: version, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, UID: types.UID(e.UID),
		},
		Type: kind, Reason: e.Reason, Message: message, FirstTimestamp: at, LastTimestamp: at, Count: e.count,
		Source:              corev1.EventSource{Component: component, Host: w.config.Node},
		ReportingController: component, ReportingInstance: w.config.Node,
	}
}

// shorten cuts a text to a number of bytes, between characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// send creates an event, or updates the count of the existing one. It returns the resulting object
// of the API server.
func (w *Writer) send(ctx context.Context, e *corev1.Event, known bool) (*corev1.Event, Result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + e.Namespace + "/events"
	change := map[string]any{"count": e.Count, "lastTimestamp": e.LastTimestamp}
	if known {
		out, err := w.patch(ctx, path+"/"+e.Name, change)
		if !isStatus(err, metav1.StatusReasonNotFound) { // the API server keeps events for an hour by default
			return out, Updated, err
		}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, "", fmt.Errorf("encode event: %w", err)
	}
	answer, err := w.config.API.Post(ctx, path, body)
	if err == nil {
		out, err := decode(answer)
		return out, Created, err
	}
	if !isStatus(err, metav1.StatusReasonAlreadyExists) {
		return nil, "", err
	}
	// An earlier process has created it. The answer to the first change has its count.
	delete(change, "count")
	before, err := w.patch(ctx, path+"/"+e.Name, change)
	if err != nil {
		return nil, "", err
	}
	out, err := w.patch(ctx, path+"/"+e.Name, map[string]any{"count": before.Count + e.Count})
	return out, Updated, err
}

func (w *Writer) patch(ctx context.Context, path string, change map[string]any) (*corev1.Event, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("encode change: %w", err)
	}
	answer, err := w.config.API.Patch(ctx, path, body)
	if err != nil {
		return nil, err
	}
	return decode(answer)
}

func decode(answer io.ReadCloser) (*corev1.Event, error) {
	defer func() { _ = answer.Close() }()
	out := &corev1.Event{}
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out); err != nil {
		return nil, driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode event: %w", err))
	}
	return out, nil
}

// isStatus reports whether an error is an answer of the API server with a reason.
func isStatus(err error, reason metav1.StatusReason) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Reason == reason
}

// reviews is the path at which the API server answers what the requesting user may do. Every user
// may ask.
const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// Allowed asks the API server whether events may be created and patched in every namespace. The
// error has the reason forbidden if not.
func Allowed(ctx context.Context, api API) error {
	for _, verb := range []string{"create", "patch"} {
		body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "events"},
			},
		})
		if err != nil {
			return fmt.Errorf("encode review: %w", err)
		}
		answer, err := api.Post(ctx, reviews, body)
		if err != nil {
			return fmt.Errorf("ask whether events may be written: %w", err)
		}
		var review authorizationv1.SelfSubjectAccessReview
		err = json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(&review)
		_ = answer.Close()
		if err != nil {
			return driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode review: %w", err))
		}
		if !review.Status.Allowed {
			return driver.WithReason(driver.ReasonForbidden, fmt.Errorf("may not %s events in every namespace", verb))
		}
	}
	return nil
}
