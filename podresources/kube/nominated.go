package kube

import (
	"context"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// SourceNominated is the source of the pods that wait to be bound to the node.
const SourceNominated = "nominated"

const (
	// maxNominated bounds the kept pods.
	maxNominated = 1024
	// keepNominated is how long a pod is kept that is no longer nominated: it was bound to the node,
	// and the source of the node's pods has it soon.
	keepNominated = 5 * time.Second
	// neededAfter is the time until it is checked again whether a device has binding conditions.
	neededAfter = 10 * time.Second
	// nominatedAfter is the time until pods that may not be listed are requested again.
	nominatedAfter = 10 * time.Minute
)

// nominatedQuery selects the pods for which the scheduler has chosen the node and which it has not
// bound. The scheduler sets status.nominatedNodeName before it waits for the binding conditions of
// a claim's devices (KEP-5278, on since Kubernetes 1.35). The API server keeps an index of
// spec.nodeName: it looks at pods without a node alone.
func nominatedQuery(node string) url.Values {
	return url.Values{"fieldSelector": {"spec.nodeName=,status.nominatedNodeName=" + node}}
}

// nominatedSet are the pods that wait to be bound to the node.
type nominatedSet struct {
	now     func() time.Time
	changed func()

	mu   sync.Mutex
	pods map[string]nominatedPod // by UID
}

// nominatedPod is one pod; left is when it was no longer nominated, zero: it is.
type nominatedPod struct {
	podresources.PodFacts
	left time.Time
}

// Replace makes the set consist of these pods, and of those that left it a moment ago.
func (s *nominatedSet) Replace(pods []podresources.PodFacts, now time.Time) {
	there := make(map[string]bool, len(pods))
	for i := range pods {
		there[pods[i].UID] = true
		s.Set(pods[i], now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, p := range s.pods {
		if !there[uid] && p.left.IsZero() {
			p.left = now
			s.pods[uid] = p
		}
	}
}

// Set adds a pod, or replaces what was known of it.
func (s *nominatedSet) Set(pod podresources.PodFacts, now time.Time) {
	if s.set(pod, now) {
		s.changed()
	}
}

// set does so, and reports whether the pod is new.
func (s *nominatedSet) set(pod podresources.PodFacts, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.pods[pod.UID]
	if !known && len(s.pods) == maxNominated {
		return false
	}
	pod.Seen = now
	if known {
		pod.Seen = before.Seen
	}
	s.pods[pod.UID] = nominatedPod{PodFacts: pod}
	return !known
}

// Remove notes that a pod is no longer nominated.
func (s *nominatedSet) Remove(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.pods[uid]; known {
		p.left = s.now()
		s.pods[uid] = p
	}
}

// with returns the pods of the node with those that wait to be bound to it. The argument is not
// changed.
func (s *nominatedSet) with(bound map[string]podresources.PodFacts) map[string]podresources.PodFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, shared := s.now(), true
	for uid, p := range s.pods {
		_, arrived := bound[uid]
		if !p.left.IsZero() && (arrived || now.Sub(p.left) > keepNominated) {
			delete(s.pods, uid)
			continue
		}
		if arrived {
			continue
		}
		if shared {
			bound, shared = maps.Clone(bound), false
		}
		if bound == nil {
			bound = map[string]podresources.PodFacts{}
		}
		bound[uid] = p.PodFacts
	}
	return bound
}

// WithNominated returns the pods of the node, by UID, with those that wait to be bound to it: the
// claims that are reserved for them hold their devices. The argument is not changed.
func (n *Node) WithNominated(bound map[string]podresources.PodFacts) map[string]podresources.PodFacts {
	return n.nominated.with(bound)
}

// FollowNominated updates the pods that wait to be bound to the node until ctx ends, with one list
// and watch from when needed first returns true: when a device of the node has binding conditions.
// If they may not be listed, none is known, which is not a failure of the source: Config.Absent is
// called, and they are requested again every ten minutes.
func (n *Node) FollowNominated(ctx context.Context, needed func() bool) {
	for !needed() {
		if !pause(ctx, neededAfter) {
			return
		}
	}
	for ctx.Err() == nil {
		n.followNominated(ctx)
		if !pause(ctx, nominatedAfter-time.Duration(n.config.Jitter()*float64(nominatedAfter)/2)) {
			return
		}
	}
}

// followNominated follows the pods until they may not be listed, or ctx ends.
func (n *Node) followNominated(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := n.newPodFeed(&n.nominated, nominatedQuery(n.config.Name))
	f.report = func(took time.Duration, err error) {
		if !isPermanent(err) {
			n.config.Report(SourceNominated, took, err)
			return
		}
		n.nominated.Replace(nil, n.config.Now())
		n.config.Absent(SourceNominated, err)
		stop()
	}
	f.run(ctx)
}
