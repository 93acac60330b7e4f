package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The budget of the claims. Each is read by its name, and only those that the kubelet lists: a list
// or a watch by namespace would return those of all nodes.
const (
	fetchRate    = 10 // a second
	fetchBurst   = 64 // a node starts 110 pods at most, and who holds what must be known within 2 s
	fetchAtOnce  = 8
	fetchTimeout = 5 * time.Second
	maxClaimSize = 4 << 20 // bytes; etcd takes objects of 1.5 MiB

	// refreshAfter is how long the facts of a claim are used before it is read again. The
	// allocation does not change while a pod holds it, and the status of devices is read again soon
	// after the allocation and when the claim's pods change.
	refreshAfter = 10 * time.Minute
	// firstRefresh is the time until a claim is read again for the first time: by then its driver
	// has prepared it, and most likely set its status. The time doubles with each request. It is
	// also the shortest time between two requests because of changes of the claim's pods.
	firstRefresh = 5 * time.Second
	// absentAfter is the time until a claim is read again that does not exist, may not be read, or
	// lacks devices that the kubelet lists. It doubles with each request.
	absentAfter = 2 * time.Second
	// forgetAfter is how long a claim is kept after the kubelet no longer lists it.
	forgetAfter = time.Minute
)

// claimSet holds the facts of the claims that the kubelet lists.
type claimSet struct {
	api      API
	versions *negotiator
	labels   []podresources.Chosen
	jitter   func() float64
	report   func(took time.Duration, err error)
	now      func() time.Time
	wake     chan struct{}
	budget   *rate.Limiter
	updated  func() // the facts of a claim became known or changed

	mu       sync.Mutex
	entries  map[podresources.Claim]*claimEntry
	facts    map[podresources.Claim]podresources.ClaimFacts // made of entries; shared: never changed
	changed  bool
	down     bool          // the last request failed
	settled  chan struct{} // closed when a request ends, and then replaced
	rejected driver.Rejections
}

// claimEntry is one claim.
type claimEntry struct {
	facts   podresources.ClaimFacts
	known   bool
	asked   bool      // at least one request for it has ended
	holding holding   // as the kubelet listed it last
	due     time.Time // when to ask again
	last    time.Time // when it was asked for last
	again   time.Duration
	wanted  time.Time // when the kubelet listed it last
	judged  bool      // whether the last response was compared with the kubelet's list
	misses  int       // number of consecutive responses that lack devices of the kubelet's list
}

// holding is a comparable summary of the kubelet's data about a claim. When it changes, the claim
// is read again.
type holding struct {
	devices   int
	pods      string
	uncovered bool // the claim does not list all of the devices, or its reservations are not those expected
}

func newClaimSet() *claimSet {
	return &claimSet{
		wake: make(chan struct{}, 1), settled: make(chan struct{}), entries: map[podresources.Claim]*claimEntry{},
		budget: rate.NewLimiter(fetchRate, fetchBurst),
	}
}

// want sets the claims that the kubelet lists and the pods use now. Claims that are new, whose
// devices changed, that lack devices of the kubelet's list, or that are not reserved for a pod that
// uses them, are read soon.
func (s *claimSet) want(allocations []podresources.Allocation, users map[podresources.Claim][]podresources.WantedFor) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for claim, h := range s.holdings(allocations, users) {
		s.wantOne(claim, h, now)
	}
	for claim, e := range s.entries {
		if now.Sub(e.wanted) > forgetAfter {
			delete(s.entries, claim)
			s.changed = true
		}
	}
	s.signal()
}

// holdings collects the data of the kubelet and the pods about each claim.
func (s *claimSet) holdings(
	allocations []podresources.Allocation, users map[podresources.Claim][]podresources.WantedFor,
) map[podresources.Claim]holding {
	holdings := map[podresources.Claim]holding{}
	for i := range allocations {
		a := &allocations[i]
		if a.Claim.Name == "" {
			continue
		}
		h, seen := holdings[a.Claim]
		if !seen {
			h.pods = strings.Join(userNames(a.Holders, users[a.Claim]), " ")
		}
		h.devices++
		if e := s.entries[a.Claim]; e != nil && e.known && !e.facts.Covers(a) {
			h.uncovered = true
		}
		holdings[a.Claim] = h
	}
	for claim, pods := range users {
		h, listed := holdings[claim]
		if !listed {
			h.pods = strings.Join(userNames(nil, pods), " ")
		}
		if e := s.entries[claim]; e != nil && e.known {
			h.uncovered = h.uncovered || slices.ContainsFunc(pods, func(p podresources.WantedFor) bool {
				return p.Ending == e.facts.ReservedFor(p.UID)
			})
		}
		holdings[claim] = h
	}
	return holdings
}

// wantOne records the kubelet's data about a claim.
func (s *claimSet) wantOne(claim podresources.Claim, h holding, now time.Time) {
	e := s.entries[claim]
	if e == nil {
		if len(s.entries) == maxClaims {
			return
		}
		e = &claimEntry{due: now, again: firstRefresh, holding: h}
		s.entries[claim] = e
	}
	if e.holding.devices != h.devices || e.holding.pods != h.pods {
		e.again, e.misses, e.judged = firstRefresh, 0, false
		e.due = earlier(e.due, later(now, e.last.Add(firstRefresh)))
	}
	e.holding, e.wanted = h, now
	switch {
	case !e.asked || e.judged:
	case h.uncovered:
		e.due = earlier(e.due, e.last.Add(min(absentAfter<<min(e.misses, 10), refreshAfter)))
		e.misses++
		e.judged = true
	default:
		e.misses, e.judged = 0, true
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *claimSet) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// wait returns when every claim that the kubelet lists has been requested once, or requests fail,
// or ctx ends. After it, claims with admin access are known as such and not taken for owners.
func (s *claimSet) wait(ctx context.Context) {
	for {
		s.mu.Lock()
		settled, open := s.settled, false
		for _, e := range s.entries {
			open = open || !e.asked
		}
		open = open && !s.down
		s.mu.Unlock()
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

// pending reports whether a response about the claim is expected that may change who holds its
// devices: the claim is new, or lacks devices of the kubelet's list. It returns false while
// requests fail.
func (s *claimSet) pending(claim podresources.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[claim]
	return e != nil && !s.down && (!e.asked || e.holding.uncovered && !e.due.After(s.now()))
}

// known returns the facts of the claims. The map is immutable.
func (s *claimSet) known() map[podresources.Claim]podresources.ClaimFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed {
		s.facts = make(map[podresources.Claim]podresources.ClaimFacts, len(s.entries))
		for claim, e := range s.entries {
			if e.known {
				s.facts[claim] = e.facts
			}
		}
		s.changed = false
	}
	return s.facts
}

// follow requests claims when they are due, until ctx ends.
func (s *claimSet) follow(ctx context.Context) {
	delay := newRetryDelay(s.jitter)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		next, ok := s.fetchDue(ctx, delay)
		if !ok {
			return
		}
		timer.Reset(next)
	}
}

// fetchDue requests some claims that are due, and waits after a failure. It returns the time until
// the next call, and false if ctx ended.
func (s *claimSet) fetchDue(ctx context.Context, delay *retryDelay) (time.Duration, bool) {
	due, next := s.due()
	if len(due) == 0 {
		return next, true
	}
	if s.budget.WaitN(ctx, len(due)) != nil {
		return 0, false
	}
	if _, err := s.fetchAll(ctx, due); err != nil {
		return 0, pause(ctx, delay.next(err))
	}
	delay.reset()
	return 0, true
}

// due returns some of the claims that are due, new ones first, or the time until one is.
func (s *claimSet) due() ([]podresources.Claim, time.Duration) {
	now := s.now()
	next := refreshAfter
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []podresources.Claim
	for claim, e := range s.entries {
		if wait := e.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		due = append(due, claim)
	}
	slices.SortFunc(due, func(a, b podresources.Claim) int {
		return s.entries[a].last.Compare(s.entries[b].last)
	})
	return due[:min(len(due), fetchAtOnce)], next
}

// fetchAll requests the claims concurrently. refused is the reason why some may not be read; err,
// why requests failed.
func (s *claimSet) fetchAll(ctx context.Context, claims []podresources.Claim) (refused, err error) {
	errs := make([]error, len(claims))
	var fetching sync.WaitGroup
	for i, claim := range claims {
		fetching.Go(func() { errs[i] = s.fetch(ctx, claim) })
	}
	fetching.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, e := range errs {
		if apierrors.IsForbidden(e) { // perhaps in one namespace alone
			refused = e
		} else {
			err = errors.Join(err, e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err != nil
	close(s.settled)
	s.settled = make(chan struct{})
	return refused, err
}

// fetch requests a claim. A claim that does not exist is not an error.
func (s *claimSet) fetch(ctx context.Context, claim podresources.Claim) error {
	begun := s.now()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	raw, err := s.get(ctx, claim)
	if isPathMissing(err) {
		s.versions.forget()
	} else if apierrors.IsNotFound(err) {
		s.report(s.now().Sub(begun), nil)
		s.settle(claim, nil, nil)
		s.markDeleted(claim, begun)
		return nil
	}
	if err != nil {
		err = withReason(fmt.Errorf("get claim %s/%s: %w", claim.Namespace, claim.Name, err))
		s.report(s.now().Sub(begun), err)
		if apierrors.IsForbidden(err) {
			s.settle(claim, nil, nil)
		}
		return err
	}
	s.report(s.now().Sub(begun), nil)
	rejected := driver.Rejections{}
	name, facts, ok := parseClaim(raw, s.labels, rejected)
	if !ok || name != claim {
		rejected.Add(driver.ReasonMalformedClaim, 1)
		s.settle(claim, nil, rejected)
		return nil
	}
	facts.Read = begun
	s.settle(claim, &facts, rejected)
	return nil
}

func (s *claimSet) get(ctx context.Context, claim podresources.Claim) (json.RawMessage, error) {
	path, _, err := s.versions.path(ctx,
		"namespaces/"+url.PathEscape(claim.Namespace)+"/resourceclaims/"+url.PathEscape(claim.Name))
	if err != nil {
		return nil, err
	}
	body, err := s.api.Get(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	raw, err := io.ReadAll(limited(body, maxClaimSize))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return raw, nil
}

// settle records the response for a claim, nil if there is none that can be used, and schedules the
// next request.
func (s *claimSet) settle(claim podresources.Claim, facts *podresources.ClaimFacts, rejected driver.Rejections) {
	now, news := s.now(), false
	defer func() { // after the lock is released
		if news {
			s.updated()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejected == nil {
		s.rejected = driver.Rejections{}
	}
	s.rejected.AddAll(rejected)
	e := s.entries[claim]
	if e == nil {
		return
	}
	e.asked, e.last, e.judged = true, now, false
	limit := refreshAfter
	if facts != nil {
		news = !e.known || !sameAllocation(&e.facts, facts)
		e.facts, e.known = *facts, true
	} else {
		limit = maxDelayPermanent
		if e.again == firstRefresh {
			e.again = absentAfter
		}
	}
	s.changed = true
	e.due = now.Add(e.again - time.Duration(s.jitter()*float64(e.again)/4))
	e.again = min(2*e.again, limit)
}

// markDeleted records that a claim whose facts are known does not exist any more.
func (s *claimSet) markDeleted(claim podresources.Claim, read time.Time) {
	s.mu.Lock()
	e := s.entries[claim]
	news := e != nil && e.known && !e.facts.Deleted
	if e != nil && e.known {
		e.facts.Deleted, e.facts.Read, s.changed = true, read, true
	}
	s.mu.Unlock()
	if news {
		s.updated()
	}
}

// sameAllocation reports whether two answers allocate the same devices, for the same pods.
func sameAllocation(a, b *podresources.ClaimFacts) bool {
	return a.Deleted == b.Deleted && maps.Equal(a.Reserved, b.Reserved) &&
		slices.EqualFunc(a.Results, b.Results, func(x, y podresources.ClaimResult) bool {
			return x.Device == y.Device && x.ShareID == y.ShareID && x.Admin == y.Admin
		})
}

// rejections returns the number of rejections so far, by reason.
func (s *claimSet) rejections() driver.Rejections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}
