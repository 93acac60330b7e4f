package kube

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// maxLookups bounds the pods that are looked up.
const maxLookups = 1 << 13

// podLookups requests single pods whose status has data that the kubelet's copy lacks: the names of
// claims that were created from templates, and the claim of extended resources. Both are complete
// before the pod is bound to its node, so each pod is requested once.
type podLookups struct {
	api       API
	selection *podresources.Selection
	pods      *podresources.PodSet
	budget    waiter // shared with the claims
	jitter    func() float64
	report    func(took time.Duration, err error)
	changed   func()
	now       func() time.Time
	wake      chan struct{}

	mu      sync.Mutex
	entries map[string]*podLookup // by UID
}

// waiter limits the rate of requests.
type waiter interface {
	WaitN(ctx context.Context, n int) error
}

// podLookup is one pod.
type podLookup struct {
	podresources.PodRef
	due   time.Time
	again time.Duration // after the next answer without the pod
}

// want sets the pods to look up.
func (l *podLookups) want(pods []podresources.WantedPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(pods) == 0 && len(l.entries) == 0 {
		return
	}
	entries := make(map[string]*podLookup, len(pods))
	now := l.now()
	for _, p := range pods[:min(len(pods), maxLookups)] {
		e := l.entries[p.UID]
		if e == nil {
			e = &podLookup{PodRef: p.PodRef, again: absentAfter}
		}
		if e.again == absentAfter { // not requested yet
			e.due = later(now, p.NotBefore)
		}
		entries[p.UID] = e
	}
	l.entries = entries
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// follow looks pods up when they are due, until ctx ends.
func (l *podLookups) follow(ctx context.Context) {
	delay := newRetryDelay(l.jitter)
	timer := time.NewTimer(refreshAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		for {
			e, next := l.next()
			if e == nil {
				timer.Reset(next)
				break
			}
			if l.budget.WaitN(ctx, 1) != nil {
				return
			}
			if err := l.lookUp(ctx, e); err == nil {
				delay.reset()
			} else if !pause(ctx, delay.next(err)) {
				return
			}
		}
	}
}

// next returns the pod that is due first, or nil and how long until one is.
func (l *podLookups) next() (*podLookup, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first *podLookup
	for _, e := range l.entries {
		if first == nil || e.due.Before(first.due) || e.due.Equal(first.due) && e.Compare(first.PodRef) < 0 {
			first = e
		}
	}
	if first == nil {
		return nil, refreshAfter
	}
	if wait := first.due.Sub(l.now()); wait > 0 {
		return nil, wait
	}
	return first, 0
}

// lookUp requests a pod. A pod that does not exist is not an error.
func (l *podLookups) lookUp(ctx context.Context, e *podLookup) error {
	begun := l.now()
	told, err := l.ask(ctx, e.PodRef)
	if err != nil {
		err = withReason(fmt.Errorf("get pod %s/%s: %w", e.Namespace, e.Name, err))
	}
	l.report(l.now().Sub(begun), err)
	l.mu.Lock()
	if told != nil {
		delete(l.entries, e.UID)
	} else {
		e.due = l.now().Add(e.again)
		e.again = min(2*e.again, refreshAfter)
	}
	l.mu.Unlock()
	if told != nil && l.pods.Tell(told) {
		l.changed()
	}
	return err
}

// ask reads a pod by its name, which needs no right to list pods. It returns nil if the pod does
// not exist, or is another one of that name.
func (l *podLookups) ask(ctx context.Context, ref podresources.PodRef) (*podresources.PodFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + url.PathEscape(ref.Namespace) + "/pods/" + url.PathEscape(ref.Name)
	body, err := l.api.Get(ctx, path, nil)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var pod corev1.Pod
	if err := decodeJSON(body, maxClaimSize, &pod); err != nil {
		return nil, err
	}
	_, facts, ok := podresources.NewPodFacts(&pod, l.selection)
	if !ok || facts.UID != ref.UID {
		return nil, nil
	}
	return &facts, nil
}

// userNames returns the pods that use a claim, according to the kubelet's list and to the pods' own
// objects, in a stable order.
func userNames(listed []podresources.Holder, users []podresources.WantedFor) []string {
	var names []string
	for i := range listed {
		names = append(names, listed[i].Name+"/"+listed[i].UID)
	}
	for i := range users {
		name := users[i].Name + "/" + users[i].UID
		if users[i].Ending {
			name += " ends"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
