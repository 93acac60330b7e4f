package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// The budget of reads by name. A list or a watch of the claims of a namespace would return those of
// all nodes.
const (
	fetchRate   = 10 // a second
	fetchBurst  = 64 // a node starts 110 pods at most, and their holders must be known within 2 s
	fetchAtOnce = 8
	// maxWanted bounds the claims and pods that are read.
	maxWanted = 1 << 17
)

// reader reads the wanted claims and pods by their names, and gives the Book the answers.
type reader struct {
	config   *Config
	versions *versions
	report   func(took time.Duration, err error)
	budget   *rate.Limiter
	// The delays until an object is read again: after an answer; after one that lacks it, or
	// disagrees with what the node says; and after a failure.
	refresh, soon, failing workqueue.TypedRateLimiter[*scheduled]

	wanting sync.Mutex // is held while want runs

	mu      sync.Mutex
	objects map[object]*scheduled
	wants   int                                          // the number of calls of want
	queue   workqueue.TypedDelayingInterface[*scheduled] // nil: nothing is read
	settled chan struct{}                                // closed when a request ends, and then replaced

	// While the API server fails, no request begins before retryAt. failures counts how often that
	// was set: results of requests that began before do not set it again.
	down      bool // the last request failed, for a reason that is not specific to its object
	failures  int
	successes int
	retryAt   time.Time
	outage    *retryDelay
}

// object is an object that is read by its name: a pod or, without UID, a claim.
type object struct{ namespace, name, uid string }

func (o object) claim() podresources.Claim {
	return podresources.Claim{Namespace: o.namespace, Name: o.name}
}

// scheduled is an object that is wanted, or was until recently.
type scheduled struct {
	object
	holders.WantedClaim           // of a claim, as it was wanted last
	notBefore           time.Time // it is not requested before
	want                int       // the last call of want that had it
	wanted              time.Time // when that was

	answered atomic.Bool   // at least one request was answered
	found    bool          // the last answer was a claim
	bare     bool          // it was not allocated
	reading  bool          // a request is being made
	changed  bool          // its users have changed since the last answer
	last     time.Time     // when the last answer arrived; zero: none has
	delay    time.Duration // from then until the next request
	soon     time.Duration // the same while that answer disagrees; 0: it does not, or is not compared yet
	wake     time.Time     // when the queue has it ready; zero: the queue does not have it

	// The last request failed, after that many successes of others; faulty: it fails while others
	// succeed, so that its next request is not before retryAt.
	failed, faulty bool
	successes      int
	retryAt        time.Time
}

func newReader(config *Config, versions *versions, report func(took time.Duration, err error)) *reader {
	delays := workqueue.NewTypedItemExponentialFailureRateLimiter[*scheduled]
	return &reader{
		config: config, versions: versions, report: report, budget: rate.NewLimiter(fetchRate, fetchBurst),
		refresh: delays(firstRefresh, refreshAfter), soon: delays(absentAfter, refreshAfter),
		failing: delays(firstDelay, maxDelay),
		objects: map[object]*scheduled{}, settled: make(chan struct{}),
		outage: newRetryDelay(config.Jitter),
	}
}

// setWanted sets the claims and pods to read. Claims that are new, whose users changed, or that
// disagree with them, are read soon.
func (r *reader) setWanted(wanted holders.Wanted) {
	r.wanting.Lock()
	defer r.wanting.Unlock()
	for _, claim := range r.schedule(wanted) {
		r.config.Book.ClaimForgotten(claim)
	}
}

// schedule updates the wanted objects, and returns the claims that have not been wanted for a
// while.
func (r *reader) schedule(wanted holders.Wanted) (forgotten []podresources.Claim) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wants++
	for claim, w := range wanted.Claims {
		r.add(object{namespace: claim.Namespace, name: claim.Name}, w, time.Time{}, now)
	}
	for _, p := range wanted.Pods {
		o := object{namespace: p.Namespace, name: p.Name, uid: p.UID}
		r.add(o, holders.WantedClaim{}, p.NotBefore, now)
	}
	for o, s := range r.objects {
		if s.want == r.wants {
			r.enqueue(s, now)
		} else if !s.reading && now.Sub(s.wanted) > forgetAfter {
			delete(r.objects, o)
			r.forgetDelays(s)
			r.failing.Forget(s)
			if o.uid == "" {
				forgotten = append(forgotten, o.claim())
			}
		}
	}
	return forgotten
}

// add records that an object is wanted.
func (r *reader) add(o object, w holders.WantedClaim, notBefore, now time.Time) {
	s := r.objects[o]
	if s == nil {
		if len(r.objects) == maxWanted {
			return
		}
		s = &scheduled{object: o, WantedClaim: w}
		r.objects[o] = s
	}
	if s.Users != w.Users {
		s.changed, s.soon = true, 0
		r.forgetDelays(s)
	}
	if s.found && s.soon == 0 && w.Disagrees {
		s.soon = r.soon.When(s)
	} else if s.found && !w.Disagrees {
		r.soon.Forget(s)
	}
	s.WantedClaim, s.notBefore, s.want, s.wanted = w, notBefore, r.wants, now
}

// forgetDelays resets the delays after answers.
func (r *reader) forgetDelays(s *scheduled) {
	r.refresh.Forget(s)
	r.soon.Forget(s)
}

// due returns when an object is to be read.
func (r *reader) due(s *scheduled) time.Time {
	due := s.notBefore
	if !s.last.IsZero() {
		wait := s.delay
		if s.changed {
			wait = min(wait, firstRefresh)
		}
		if s.changed && s.bare && s.Disagrees { // its devices are in use, and it was read before it had them
			wait = 0
		}
		if s.Disagrees && s.soon > 0 {
			wait = min(wait, s.soon)
		}
		due = s.last.Add(wait)
	}
	return driver.Later(due, driver.Later(s.retryAt, r.retryAt))
}

// enqueue puts an object into the queue, ready when it is due or before.
func (r *reader) enqueue(s *scheduled, now time.Time) {
	due := driver.Later(r.due(s), now)
	if r.queue != nil && !s.reading && (s.wake.IsZero() || due.Before(s.wake)) {
		s.wake = due
		r.queue.AddAfter(s, due.Sub(now))
	}
}

// newFirst is the order of a queue: objects without an answer first.
type newFirst struct{ fresh, rest workqueue.Queue[*scheduled] }

func (q newFirst) Touch(*scheduled) {}

func (q newFirst) Push(s *scheduled) {
	if s.answered.Load() {
		q.rest.Push(s)
	} else {
		q.fresh.Push(s)
	}
}

func (q newFirst) Len() int { return q.fresh.Len() + q.rest.Len() }

func (q newFirst) Pop() *scheduled {
	if q.fresh.Len() > 0 {
		return q.fresh.Pop()
	}
	return q.rest.Pop()
}

// follow reads objects when they are due, until ctx ends.
func (r *reader) follow(ctx context.Context) {
	order := newFirst{workqueue.DefaultQueue[*scheduled](), workqueue.DefaultQueue[*scheduled]()}
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[*scheduled]{
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[*scheduled]{Queue: order}),
	})
	r.setQueue(queue)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var working sync.WaitGroup
	for range fetchAtOnce {
		working.Go(func() {
			for {
				s, over := queue.Get()
				if over {
					return
				}
				r.process(ctx, s)
				queue.Done(s)
			}
		})
	}
	working.Wait()
	r.setQueue(nil)
}

// setQueue sets the queue, to which all objects are added.
func (r *reader) setQueue(queue workqueue.TypedDelayingInterface[*scheduled]) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = queue
	for _, s := range r.objects {
		s.wake = time.Time{}
		r.enqueue(s, now)
	}
}

// process reads an object that the queue has ready, if it is due.
func (r *reader) process(ctx context.Context, s *scheduled) {
	failures, due := r.begin(s)
	if !due {
		return
	}
	var of answer
	err := r.budget.Wait(ctx)
	if err == nil {
		of, err = r.read(ctx, s.object)
	}
	r.settle(s, failures, of, err)
}

// begin records that a request for an object begins. It reports whether the object is due, and
// otherwise puts it back.
func (r *reader) begin(s *scheduled) (failures int, due bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.wake = time.Time{}
	if s.want != r.wants {
		return 0, false
	}
	if r.due(s).After(now) {
		r.enqueue(s, now)
		return 0, false
	}
	s.reading, s.changed = true, false
	return r.failures, true
}

// settle records the result of a request, and schedules the next one.
func (r *reader) settle(s *scheduled, failures int, of answer, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reading = false
	if apierrors.IsForbidden(err) {
		err = nil // the failure may be limited to one namespace
	}
	if err != nil {
		r.fail(s, failures, err, now)
	} else {
		s.last = now
		s.delay = r.spread(r.answer(s, of))
		if failures == r.failures {
			r.down = false
			r.successes++
			r.outage.reset()
		}
	}
	close(r.settled)
	r.settled = make(chan struct{})
	if s.want == r.wants {
		r.enqueue(s, now)
	}
}

// spread shortens a delay by up to a quarter.
func (r *reader) spread(d time.Duration) time.Duration {
	return d - time.Duration(r.config.Jitter()*float64(d)/4)
}

// answer records an answer, and returns the time until the next request.
func (r *reader) answer(s *scheduled, of answer) time.Duration {
	r.failing.Forget(s)
	s.failed, s.faulty = false, false
	if of.found != s.found {
		r.soon.Forget(s)
	}
	s.found, s.bare, s.soon, s.Disagrees = of.found, of.found && of.bare, 0, false
	s.answered.Store(true)
	switch {
	case s.uid != "":
		return r.soon.When(s)
	case of.found:
		return r.refresh.When(s)
	case r.refresh.NumRequeues(s) > 0: // it was known
		return min(r.refresh.When(s), maxDelayPermanent)
	default:
		return min(r.soon.When(s), maxDelayPermanent)
	}
}

// fail records that a request failed: because the API server fails, or for a reason that is
// specific to its object.
func (r *reader) fail(s *scheduled, failures int, err error, now time.Time) {
	s.changed = true // what it was requested for is still unknown
	s.faulty = s.faulty || s.failed && s.successes != r.successes
	s.failed, s.successes = true, r.successes
	switch {
	case s.faulty:
		s.retryAt = now.Add(r.spread(r.failing.When(s)))
	case failures == r.failures:
		r.down = true
		r.failures++
		r.retryAt = now.Add(r.outage.next(err))
	}
}

// expected reports whether a request for a claim is due or being made.
func (r *reader) expected(s *scheduled, now time.Time) bool {
	return s.uid == "" && s.want == r.wants && !r.down && !r.due(s).After(now)
}

// wait returns when every wanted claim has been requested once, or requests fail, or ctx ends.
func (r *reader) wait(ctx context.Context) {
	for {
		now, open := time.Now(), false
		r.mu.Lock()
		settled := r.settled
		for _, s := range r.objects {
			open = open || !s.answered.Load() && r.expected(s, now)
		}
		r.mu.Unlock()
		if !open {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-settled:
		}
	}
}

// pending reports whether an answer about the claim is expected that may change who holds its
// devices: the claim is new, or disagrees and will be read again. It returns false while requests
// fail.
func (r *reader) pending(claim podresources.Claim) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.objects[object{namespace: claim.Namespace, name: claim.Name}]
	return s != nil && (!s.answered.Load() && r.expected(s, now) ||
		s.Disagrees && !s.faulty && s.want == r.wants && !r.down)
}

// maxObjectSize bounds a claim, pod or node, in bytes; etcd takes objects of 1.5 MiB.
const maxObjectSize = 4 << 20

// answer is the result of reading a claim.
type answer struct {
	found bool // it is a claim that can be used
	bare  bool // the claim was not allocated
}

// read requests an object by its name, and gives the Book the answer. An object that does not exist
// is not an error.
func (r *reader) read(ctx context.Context, o object) (of answer, err error) {
	asked := time.Now()
	kind := "claim"
	if o.uid == "" {
		of, err = r.readClaim(ctx, o.claim(), asked)
	} else {
		kind, err = "pod", r.readPod(ctx, o, asked)
	}
	if err != nil {
		err = withReason(fmt.Errorf("get %s %s/%s: %w", kind, o.namespace, o.name, err))
	}
	r.report(time.Since(asked), err)
	return of, err
}

func (r *reader) readClaim(ctx context.Context, claim podresources.Claim, asked time.Time) (of answer, err error) {
	var raw json.RawMessage
	err = fetch(ctx, maxObjectSize, &raw, func(ctx context.Context) (io.ReadCloser, error) {
		return r.versions.claim(ctx, claim)
	})
	switch {
	case apierrors.IsNotFound(err) && !errors.Is(err, errNotServed):
		r.config.Book.ClaimDeleted(claim, asked)
		return of, nil
	case err != nil:
		return of, err
	}
	rejected := driver.Rejections{}
	name, facts, ok := parseClaim(raw, r.config.Selection.ClaimLabels, rejected)
	of = answer{found: ok && name == claim, bare: len(facts.Results) == 0}
	if !of.found {
		rejected.Add(driver.ReasonMalformedClaim, 1)
	}
	if len(rejected) > 0 {
		r.config.Reject(SourceClaims, rejected)
	}
	if of.found {
		facts.Read = asked
		r.config.Book.ClaimRead(claim, facts)
	}
	return of, nil
}

// readPod reads a pod by its name, which does not require the right to list pods. An answer about
// another pod with that name is ignored.
func (r *reader) readPod(ctx context.Context, o object, asked time.Time) error {
	var pod corev1.Pod
	err := fetch(ctx, maxObjectSize, &pod, func(ctx context.Context) (io.ReadCloser, error) {
		return r.config.API.Get(ctx, podPath(o.namespace, o.name), nil)
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, facts, ok := podresources.NewPodFacts(&pod, &r.config.Selection); ok && facts.UID == o.uid {
		r.config.Book.PodRead(facts, asked)
	}
	return nil
}

// known returns the numbers of the claims to read, and of those that were found.
func (r *reader) known() (claims, found int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, s := range r.objects {
		if o.uid != "" {
			continue
		}
		claims++
		if s.found {
			found++
		}
	}
	return claims, found
}
