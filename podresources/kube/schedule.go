package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
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

	mu      sync.Mutex
	objects map[object]*scheduled
	wants   int                                          // the number of calls of want
	queue   workqueue.TypedDelayingInterface[*scheduled] // nil: nothing is read
	settled chan struct{}                                // closed when a request ends, and then replaced

	// While the API server fails, no request begins before retryAt, and the results of those that
	// began before do not count.
	down    bool
	retryAt time.Time
	worked  time.Time // when a request succeeded last
	outage  *retryDelay
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
	want                int       // the last call of want that had it
	wanted              time.Time // when that was

	next     time.Time    // when it is read next, or should have been; zero: the queue does not have it
	delays   wait.Backoff // from an answer to the next request
	reading  bool         // a request is being made
	changed  bool         // its users have changed since the last request began
	answered atomic.Bool  // at least one request was answered
	last     time.Time    // when the last answer arrived
	found    bool         // that answer was a claim that can be used
	bare     bool         // it was not allocated
	failed   time.Time    // when the last request failed; zero: it did not
	faulty   bool         // requests for it fail while others succeed
}

func newReader(config *Config, versions *versions, report func(took time.Duration, err error)) *reader {
	return &reader{
		config: config, versions: versions, report: report, budget: rate.NewLimiter(fetchRate, fetchBurst),
		objects: map[object]*scheduled{}, settled: make(chan struct{}), outage: newRetryDelay(config.Jitter),
	}
}

// setWanted sets the claims and pods to read. Claims that are new, whose users changed, or that
// disagree with them, are read soon. Those that have not been wanted for a while are forgotten.
func (r *reader) setWanted(wanted holders.Wanted) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wants++
	for claim, w := range wanted.Claims {
		r.add(object{namespace: claim.Namespace, name: claim.Name}, w, now, now)
	}
	for _, p := range wanted.Pods {
		o := object{namespace: p.Namespace, name: p.Name, uid: p.UID}
		r.add(o, holders.WantedClaim{}, p.NotBefore, now)
	}
	for o, s := range r.objects {
		if s.want != r.wants && !s.reading && now.Sub(s.wanted) > forgetAfter {
			delete(r.objects, o)
			if o.uid == "" {
				r.config.Book.ClaimForgotten(o.claim())
			}
		}
	}
}

// add records that an object is wanted. One that was not wanted before is read at a time.
func (r *reader) add(o object, w holders.WantedClaim, at, now time.Time) {
	s := r.objects[o]
	if s == nil {
		if len(r.objects) == maxWanted {
			return
		}
		s = &scheduled{object: o, WantedClaim: w}
		r.objects[o] = s
		s.restart()
	}
	changed, disputed := s.Users != w.Users, s.Disagrees != w.Disagrees
	s.WantedClaim, s.want, s.wanted, s.changed = w, r.wants, now, s.changed || changed
	if changed || disputed {
		s.restart()
	}
	switch {
	case s.next.IsZero():
		r.readBy(s, at, now)
	case s.changed && s.bare && s.Disagrees: // its devices are in use, and it was read before it had them
		r.readBy(s, now, now)
	case s.changed:
		r.readBy(s, s.last.Add(firstRefresh), now)
	}
	if disputed && s.Disagrees && !s.reading {
		r.readBy(s, s.last.Add(s.delays.Step()), now)
	}
}

// restart lets the delays of an object begin anew: with a short one while it lacks what is wanted.
func (s *scheduled) restart() {
	first := absentAfter
	if s.found && !s.Disagrees {
		first = firstRefresh
	}
	s.delays = doubling(first, refreshAfter)
}

// readBy has an object read at a time, if it is not to be read earlier.
func (r *reader) readBy(s *scheduled, at, now time.Time) {
	at = driver.Later(at, now)
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
		r.enqueue(s, now)
	}
}

// enqueue puts an object into the queue, which has it ready when it is to be read.
func (r *reader) enqueue(s *scheduled, now time.Time) {
	if r.queue != nil {
		r.queue.AddAfter(s, s.next.Sub(now))
	}
}

// newFirst is a queue in which objects without an answer come first.
type newFirst []*scheduled

func (q *newFirst) Touch(*scheduled) {}

func (q *newFirst) Push(s *scheduled) { *q = append(*q, s) }

func (q *newFirst) Len() int { return len(*q) }

func (q *newFirst) Pop() *scheduled {
	at := max(0, slices.IndexFunc(*q, func(s *scheduled) bool { return !s.answered.Load() }))
	s := (*q)[at]
	*q = slices.Delete(*q, at, at+1)
	return s
}

// follow reads objects when they are due, until ctx ends.
func (r *reader) follow(ctx context.Context) {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[*scheduled]{
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[*scheduled]{Queue: &newFirst{}}),
	})
	r.setQueue(queue)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var working sync.WaitGroup
	for range fetchAtOnce {
		working.Go(func() {
			for s, over := queue.Get(); !over; s, over = queue.Get() {
				if r.begin(s) {
					of, begun, err := r.read(ctx, s.object)
					r.settle(s, of, begun, err)
				}
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
		r.enqueue(s, now)
	}
}

// begin reports whether an object that the queue has ready is to be read, and records that it is.
func (r *reader) begin(s *scheduled) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.want != r.wants:
		s.next = time.Time{}
		return false
	case s.next.After(now):
		r.enqueue(s, now)
		return false
	}
	s.reading, s.changed = true, false
	return true
}

// admit waits until a request may begin.
func (r *reader) admit(ctx context.Context) error {
	if r.budget.Wait(ctx) != nil {
		<-ctx.Done() // no request can begin before
		return ctx.Err()
	}
	for {
		r.mu.Lock()
		pause := time.Until(r.retryAt)
		r.mu.Unlock()
		if pause <= 0 || !driver.Pause(ctx, pause) {
			return ctx.Err()
		}
	}
}

// settle records the result of a request, and schedules the next one. A request that failed because
// the API server fails stays due.
func (r *reader) settle(s *scheduled, of answer, begun time.Time, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.reading = false
	if apierrors.IsForbidden(err) {
		err = nil // the failure may be limited to one namespace
	}
	current := !begun.Before(r.retryAt)
	switch {
	case err == nil:
		s.failed, s.faulty = time.Time{}, false
		r.answer(s, of, now)
		if current {
			r.down, r.worked = false, now
			r.outage.reset()
		}
	case s.faulty || !s.failed.IsZero() && r.worked.After(s.failed):
		s.failed, s.faulty = now, true
		s.next = now.Add(r.spread(min(s.delays.Step(), maxDelay)))
	default:
		s.failed = now
		if current {
			r.down, r.retryAt = true, now.Add(r.outage.next(err))
		}
	}
	close(r.settled)
	r.settled = make(chan struct{})
	r.enqueue(s, now)
}

// answer records an answer about an object.
func (r *reader) answer(s *scheduled, of answer, now time.Time) {
	found := s.found
	s.found, s.bare, s.last = of.found, of.found && of.bare, now
	s.answered.Store(true)
	if found != of.found {
		s.restart()
	}
	delay := s.delays.Step()
	if !of.found && s.uid == "" {
		delay = min(delay, maxDelayPermanent)
	}
	s.next = now.Add(r.spread(delay))
}

// spread shortens a delay by up to a quarter.
func (r *reader) spread(d time.Duration) time.Duration {
	return d - time.Duration(r.config.Jitter()*float64(d)/4)
}

// expected reports whether a first answer about a claim is due.
func (r *reader) expected(s *scheduled, now time.Time) bool {
	return s.uid == "" && s.want == r.wants && !r.down && !s.answered.Load() && !s.next.After(now)
}

// wait returns when every wanted claim has been requested once, or requests fail, or ctx ends.
func (r *reader) wait(ctx context.Context) {
	for {
		now, open := time.Now(), false
		r.mu.Lock()
		settled := r.settled
		for _, s := range r.objects {
			open = open || r.expected(s, now)
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
	return s != nil && (r.expected(s, now) ||
		s.Disagrees && !s.last.After(s.wanted) && !s.faulty && s.want == r.wants && !r.down)
}

// maxObjectSize bounds a claim, pod or node, in bytes; etcd takes objects of 1.5 MiB.
const maxObjectSize = 4 << 20

// answer is the result of reading a claim.
type answer struct {
	found bool // it is a claim that can be used
	bare  bool // the claim was not allocated
}

// read requests an object by its name as soon as a request may begin, and gives the Book the
// answer. An object that does not exist is not an error.
func (r *reader) read(ctx context.Context, o object) (of answer, asked time.Time, err error) {
	if err := r.admit(ctx); err != nil {
		return of, asked, err
	}
	asked = time.Now()
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
	return of, asked, err
}

func (r *reader) readClaim(ctx context.Context, claim podresources.Claim, asked time.Time) (of answer, err error) {
	var raw json.RawMessage
	err = fetch(ctx, r.versions.get, claimPath(claim.Namespace, claim.Name), nil, maxObjectSize, &raw)
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
	err := fetch(ctx, r.config.API.Get, podPath(o.namespace, o.name), nil, maxObjectSize, &pod)
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
