package podresources

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// PodSet is the set of the node's pods, by UID: a pod that is recreated under its name and the one
// before it are two pods. The zero value is an empty set. Its methods are safe for concurrent use.
type PodSet struct {
	mu     sync.Mutex
	pods   map[string]PodFacts
	shared bool           // pods was handed out and must not be changed
	names  map[Pod]string // newest of pods; nil: to be made
}

// Replace makes the set consist of these pods, and of those that are gone and not forgotten.
func (s *PodSet) Replace(pods []PodFacts, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := make(map[string]PodFacts, len(pods))
	for i := range pods {
		if len(fresh) < maxPods {
			fresh[pods[i].UID] = merge(s.pods, pods[i], now)
		}
	}
	for uid, before := range s.pods {
		if _, there := fresh[uid]; !there && before.Gone {
			fresh[uid] = before
		}
	}
	s.pods, s.shared, s.names = fresh, false, nil
}

// Set adds a pod, or replaces what was known of it.
func (s *PodSet) Set(facts PodFacts, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.pods[facts.UID]
	if !known && len(s.pods) >= 2*maxPods {
		return
	}
	s.own()
	if !known || facts.Ending {
		facts.Replaced = s.replace(&facts, !known)
	}
	s.pods[facts.UID] = merge(s.pods, facts, now)
}

// replace notes which pods a new pod of their name replaces. It reports whether another pod has
// replaced this one, which is not said of one that runs: the API server's clock, which creation
// times are of, may have been set back.
func (s *PodSet) replace(facts *PodFacts, isNew bool) (replaced bool) {
	for uid, other := range s.pods {
		switch {
		case other.Pod != facts.Pod || uid == facts.UID || other.Static:
		case other.Created.After(facts.Created):
			replaced = replaced || facts.Ending && !facts.Static
		case isNew && !other.Replaced:
			other.Replaced = true
			s.pods[uid] = other
		}
	}
	return replaced
}

// merge returns the facts of a pod with what earlier ones of the same pod said and these leave out.
func merge(pods map[string]PodFacts, facts PodFacts, now time.Time) PodFacts {
	facts.Seen = now
	if facts.Ending {
		facts.EndingSince = now
	}
	before, known := pods[facts.UID]
	if !known {
		return facts
	}
	facts.Seen = before.Seen
	if before.Ending && facts.Ending {
		facts.EndingSince = before.EndingSince
	}
	facts.Ended = facts.Ended || before.Ended
	facts.Started = facts.Started || before.Started
	facts.Gone = facts.Gone || before.Gone
	facts.Replaced = facts.Replaced || before.Replaced
	if before.Told && !facts.Told {
		facts.tell(&before)
	}
	return facts
}

// tell adds to the facts what the API server's status of the same pod said.
func (p *PodFacts) tell(told *PodFacts) {
	p.Told = true
	p.ExtendedClaim, p.ExtendedUses = told.ExtendedClaim, told.ExtendedUses
	p.Claims = slices.Clone(p.Claims)
	p.Claims = slices.DeleteFunc(p.Claims, func(c PodClaim) bool {
		return c.Claim == "" && !slices.ContainsFunc(told.Claims, func(t PodClaim) bool { return t.Name == c.Name })
	})
	for i := range p.Claims {
		for _, t := range told.Claims {
			if p.Claims[i].Claim == "" && t.Name == p.Claims[i].Name {
				p.Claims[i].Claim = t.Claim
			}
		}
	}
}

// Tell adds to a pod of the set what the API server's status of it says; false: it is not in the
// set.
func (s *PodSet) Tell(told *PodFacts) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts, known := s.pods[told.UID]
	if !known {
		return false
	}
	s.own()
	facts.tell(told)
	s.pods[told.UID] = facts
	return true
}

// Remove notes that a pod is gone. It stays in the set until [PodSet.Forget]: what the kubelet
// said before may still list it. A static pod does not stay: it may come back with its UID, the
// deletion of its mirror pod at the API server does not end it, and it has no claims, so that it
// holds what the kubelet lists.
func (s *PodSet) Remove(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.pods[uid]
	if !ok {
		return
	}
	s.own()
	if len(s.pods) > maxPods || known.Static {
		delete(s.pods, uid)
		return
	}
	known.Gone = true
	s.pods[uid] = known
}

// Forget takes the pods that are gone out of the set, except those that the kubelet lists.
func (s *PodSet) Forget(listed []Allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := map[string]Pod{}
	for uid, facts := range s.pods {
		if facts.Gone {
			gone[uid] = facts.Pod
		}
	}
	if len(gone) == 0 {
		return
	}
	for i := range listed {
		for _, h := range listed[i].Holders {
			for uid, pod := range gone {
				if h.UID == uid || h.UID == "" && h.Pod == pod {
					delete(gone, uid)
				}
			}
		}
	}
	s.own()
	for uid := range gone {
		delete(s.pods, uid)
	}
}

// own makes the map one that may be changed.
func (s *PodSet) own() {
	switch {
	case s.pods == nil:
		s.pods = map[string]PodFacts{}
	case s.shared:
		s.pods = maps.Clone(s.pods)
	}
	s.shared, s.names = false, nil
}

// All returns the pods by UID. The map will not change, and must not be changed.
func (s *PodSet) All() map[string]PodFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = true
	return s.pods
}

// Get returns the pod of that UID.
func (s *PodSet) Get(uid string) (PodFacts, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts, ok := s.pods[uid]
	return facts, ok
}

// UID returns the UID of the pod of that name, "" where it is unknown. Of several pods of one name
// it is the newest by creation time.
func (s *PodSet) UID(pod Pod) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = newest(s.pods)
	}
	return s.names[pod]
}

// newest returns the newest pod of each name.
func newest(pods map[string]PodFacts) map[Pod]string {
	out := make(map[Pod]string, len(pods))
	for uid := range pods {
		facts := pods[uid]
		if other, twice := out[facts.Pod]; !twice || newerPod(facts, pods[other]) {
			out[facts.Pod] = uid
		}
	}
	return out
}

// newerPod reports whether a was created after b, both being pods of one name. One that was
// replaced is older than one that was not, and then one that is gone than one that is not: the API
// server's clock, which creation times are of, may have been set back. Pods that were created in
// the same second, or that have no creation time, are ordered by which was seen first.
func newerPod(a, b PodFacts) bool {
	if a.Replaced != b.Replaced {
		return b.Replaced
	}
	if a.Gone != b.Gone {
		return b.Gone
	}
	if c := a.Created.Compare(b.Created); c != 0 {
		return c > 0
	}
	if c := a.Seen.Compare(b.Seen); c != 0 {
		return c > 0
	}
	return a.UID > b.UID
}
