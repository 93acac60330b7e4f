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
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// The budget of the claims. They are got one by one, by name, and only those that the kubelet names: a list or a watch
// by namespace would bring those of all nodes.
const (
	fetchRate    = 10 // a second
	fetchBurst   = 32
	fetchAtOnce  = 8
	fetchTimeout = 5 * time.Second
	maxClaimSize = 4 << 20 // bytes; etcd takes objects of 1.5 MiB

	// refreshAfter is how long what a claim says is used; what is allocated does not change while a pod holds it, and
	// what drivers say of the devices is looked at again soon after the allocation, and when the claim's pods change.
	refreshAfter = 10 * time.Minute
	// firstRefresh is when a claim is looked at again for the first time: by then its driver has prepared it, and most
	// likely said what it had to. The time doubles from look to look. It is also the shortest time between two looks
	// for changes of the claim's pods.
	firstRefresh = 5 * time.Second
	// absentAfter is how long a claim that is not there, may not be seen, or does not list what the kubelet lists, is
	// not asked for again; it doubles from time to time.
	absentAfter = 2 * time.Second
	// forgetAfter is how long a claim that the kubelet names no more is remembered.
	forgetAfter = time.Minute
)

// claimSet is what is known of the claims that the kubelet names.
type claimSet struct {
	api      API
	versions *negotiator
	labels   []podresources.Chosen
	jitter   func() float64
	report   func(took time.Duration, err error)
	now      func() time.Time
	wake     chan struct{}

	mu       sync.Mutex
	entries  map[podresources.Claim]*claimEntry
	facts    map[podresources.Claim]podresources.ClaimFacts // made of entries; shared: never changed
	changed  bool
	down     bool          // the last request failed
	settled  chan struct{} // closed when a request ends; then it is another one
	rejected map[string]uint64
}

// claimEntry is one claim.
type claimEntry struct {
	facts   podresources.ClaimFacts
	known   bool
	asked   bool      // at least one request for it ended
	holding holding   // as the kubelet listed it last
	due     time.Time // when to ask again
	last    time.Time // when it was asked for last
	again   time.Duration
	wanted  time.Time // when the kubelet named it last
	judged  bool      // whether the last answer lists what the kubelet lists was looked at
	misses  int       // how many answers in a row did not
}

// holding is what the kubelet says of a claim, made comparable: changes of it are reasons to look at the claim.
type holding struct {
	devices   int
	pods      string
	uncovered bool // the claim does not list all of the devices
}

func newClaimSet() *claimSet {
	return &claimSet{wake: make(chan struct{}, 1), settled: make(chan struct{}), entries: map[podresources.Claim]*claimEntry{}}
}

// want says which claims the kubelet names now. Those that are new, that hold something else than before, or that
// do not list what the kubelet lists, are asked for soon.
func (s *claimSet) want(allocations []podresources.Allocation) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for claim, h := range s.holdings(allocations) {
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

// holdings gathers what the kubelet says of each claim.
func (s *claimSet) holdings(allocations []podresources.Allocation) map[podresources.Claim]holding {
	holdings := map[podresources.Claim]holding{}
	for i := range allocations {
		a := &allocations[i]
		if a.Claim.Name == "" {
			continue
		}
		h, seen := holdings[a.Claim]
		if !seen {
			for _, holder := range a.Holders {
				h.pods += holder.Name + "/" + holder.UID + " "
			}
		}
		h.devices++
		if e := s.entries[a.Claim]; e != nil && e.known && !e.facts.Covers(a) {
			h.uncovered = true
		}
		holdings[a.Claim] = h
	}
	return holdings
}

// wantOne notes what the kubelet says of a claim.
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
		e.again = firstRefresh
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

// wait returns when every claim that the kubelet names has been asked for once, or can not be now, or when ctx ends. So
// whoever waits learns of an administrator's claim before it is taken for an owner.
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

// known returns what the claims say. The map does not change, and is not to be changed.
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

// follow asks for claims when they are due, until ctx ends.
func (s *claimSet) follow(ctx context.Context) {
	limiter := rate.NewLimiter(fetchRate, fetchBurst)
	delay := backoff{jitter: s.jitter}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		next, ok := s.fetchDue(ctx, limiter, &delay)
		if !ok {
			return
		}
		timer.Reset(next)
	}
}

// fetchDue asks for some claims that are due, and waits after a failure. It returns when to go on; false: ctx ended.
func (s *claimSet) fetchDue(ctx context.Context, limiter *rate.Limiter, delay *backoff) (time.Duration, bool) {
	due, next := s.due()
	if len(due) == 0 {
		return next, true
	}
	if limiter.WaitN(ctx, len(due)) != nil {
		return 0, false
	}
	if _, err := s.fetchAll(ctx, due); err != nil {
		return 0, pause(ctx, delay.next(err))
	}
	delay.reset()
	return 0, true
}

// due returns some of the claims that are due, those that were never asked for first, and else how long until one is.
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

// fetchAll asks for the claims at once. refused is why some may not be seen; err, why the API server could not be asked.
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

// fetch asks for a claim. That it is not there is no error.
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
		return nil
	}
	if err != nil {
		err = reasonError{fmt.Errorf("get claim %s/%s: %w", claim.Namespace, claim.Name, err)}
		s.report(s.now().Sub(begun), err)
		if apierrors.IsForbidden(err) {
			s.settle(claim, nil, nil)
		}
		return err
	}
	s.report(s.now().Sub(begun), nil)
	rejected := tally{}
	name, facts, ok := parseClaim(raw, s.labels, rejected)
	if !ok || name != claim {
		rejected.add(ReasonMalformedClaim, 1)
		s.settle(claim, nil, rejected)
		return nil
	}
	s.settle(claim, &facts, rejected)
	return nil
}

func (s *claimSet) get(ctx context.Context, claim podresources.Claim) (json.RawMessage, error) {
	path, _, err := s.versions.path(ctx, "namespaces/"+url.PathEscape(claim.Namespace)+"/resourceclaims/"+url.PathEscape(claim.Name))
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

// settle takes the answer for a claim, nil where there is none that can be used, and says when to ask again.
func (s *claimSet) settle(claim podresources.Claim, facts *podresources.ClaimFacts, rejected tally) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for reason, n := range rejected {
		if s.rejected == nil {
			s.rejected = map[string]uint64{}
		}
		s.rejected[reason] += uint64(n)
	}
	e := s.entries[claim]
	if e == nil {
		return
	}
	e.asked, e.last, e.judged = true, now, false
	limit := refreshAfter
	if facts != nil {
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

// rejections returns what was rejected so far, by reason.
func (s *claimSet) rejections() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}
