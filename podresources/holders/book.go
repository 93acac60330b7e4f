package holders

import (
	"reflect"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Book has the evidence of one node and decides from it who holds which device. It is safe for
// concurrent use, and does no I/O.
type Book struct {
	hint func()

	mu         sync.Mutex
	evidence   Evidence
	holdings   Holdings
	decided    bool      // holdings are those of evidence
	nextChange time.Time // when holdings may change without new evidence; zero: never

	last     Answer    // last processed answer
	podsSeen time.Time // time of the last evidence of pods: an answer requested before may have other pods

	changed    time.Time // when a pod last changed, or the watch was opened or closed
	appeared   time.Time // when a pod, its cgroup or a CDI spec last appeared, or a pod last started
	knownUntil time.Time // until when the holders are known
	believed   bool      // the last answer was believed as a whole
	settled    bool      // an answer that equals the last one would change nothing
}

// NewBook returns an empty book. hint is called when holders may have changed, so that the caller
// can observe soon. grace is how long a pod is kept that a restarted kubelet does not list, unless
// its cgroup proves that it has ended.
func NewBook(grace time.Duration, hint func()) *Book {
	return &Book{hint: hint, evidence: Evidence{
		grace: grace, pods: map[string]*pod{}, named: map[podresources.Pod][]string{},
		claims: map[podresources.Claim]podresources.ClaimFacts{}, ended: map[podresources.Pod]endedUID{},
	}}
}

// update changes the evidence. If the holders may have changed, it calls the hint.
func (b *Book) update(change func(e *Evidence) (held bool)) {
	b.mu.Lock()
	b.evidence.changed = false
	held := change(&b.evidence)
	if b.evidence.changed {
		b.decided, b.settled = false, false
	}
	b.mu.Unlock()
	if held && b.hint != nil {
		b.hint()
	}
}

// PodChanged processes a new or changed pod. at is when its event arrived.
func (b *Book) PodChanged(facts podresources.PodFacts, at time.Time) {
	b.update(func(e *Evidence) bool {
		held, appeared := e.setPod(facts, at)
		b.changed, b.podsSeen = at, driver.Later(b.podsSeen, at)
		if appeared {
			b.appeared = at
		}
		return held
	})
}

// PodRead processes an object of a pod that was requested from the API server by name. It has the
// names of claims that the kubelet's own status omits.
func (b *Book) PodRead(facts podresources.PodFacts, _ time.Time) {
	b.update(func(e *Evidence) bool {
		p := e.pods[facts.UID]
		if p == nil {
			return false
		}
		was := *p
		p.learnNames(&facts)
		e.changed = e.changed || !reflect.DeepEqual(&was, p)
		return true
	})
}

// NominatedChanged processes a new or changed pod that waits to be bound.
func (b *Book) NominatedChanged(pod podresources.PodFacts, at time.Time) {
	b.update(func(e *Evidence) (held bool) { held, _ = e.setPod(pod, at); return held })
}

// NominatedGone processes the end of a pod's nomination.
func (b *Book) NominatedGone(uid string, at time.Time) {
	b.update(func(e *Evidence) bool { e.leaveNominated(uid, at); return false })
}

// Changed processes that a pod's cgroup or a CDI spec appeared or disappeared.
func (b *Book) Changed(c podresources.Change) {
	b.update(func(e *Evidence) bool {
		if !c.Gone {
			b.appeared = driver.Later(b.appeared, c.At)
		}
		return e.changes.add(c, e.asked)
	})
}

// Expects reports whether something has appeared that the kubelet's last answer may not have yet.
func (b *Book) Expects() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.appeared.IsZero() && b.evidence.asked.Before(b.appeared.Add(expectedFor))
}

// Watching processes that a watch of the kubelet's own pods has listed all of them. began is when
// the watch began; zero: the watch has ended.
func (b *Book) Watching(began, at time.Time) {
	b.mu.Lock()
	b.evidence.watched, b.changed = began, at
	b.mu.Unlock()
}

// unidentified returns the listed pods without a known object.
func (b *Book) unidentified(listed map[podresources.Pod]struct{}) []podresources.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []podresources.Pod
	for name := range listed {
		if p := b.evidence.pods[b.evidence.uidOf(name)]; p == nil || p.state == Deleted {
			out = append(out, name)
		}
	}
	return out
}

// Answered processes an answer of the kubelet. It reports whether the whole answer is believed: not
// after a restart of the kubelet, until it knows its pods. An equal answer does nothing while
// nothing else changes.
func (b *Book) Answered(answer *Answer) (believed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.knownUntil = driver.Later(b.knownUntil, answer.Asked)
	if b.settled && b.last.Asked.After(b.podsSeen) && answer.repeats(&b.last) {
		b.evidence.asked = answer.Asked
		return true
	}
	b.evidence.answer(answer)
	doubts, settled := b.evidence.doubts()
	b.last, b.believed, b.settled, b.decided = *answer, !doubts, settled, false
	return b.believed
}

// NotAnswered processes that the kubelet did not answer, with the states of the pods' cgroups. Pods
// whose cgroups are gone hold nothing any more.
func (b *Book) NotAnswered(cgroups map[string]podresources.CgroupState, at time.Time) {
	b.update(func(e *Evidence) bool {
		if e.failing.IsZero() {
			e.failing, e.changed = at, true
		}
		before := len(e.listed)
		if e.takeCgroups(cgroups, at); len(e.listed) != before {
			b.knownUntil = driver.Later(b.knownUntil, at)
		}
		b.believed, b.settled = false, false
		return false
	})
}

// Cgroups processes the states of the cgroups of the pods that Book.unsure returned.
func (b *Book) Cgroups(states map[string]podresources.CgroupState, at time.Time) {
	b.update(func(e *Evidence) bool { e.takeCgroups(states, at); return false })
}

// UID returns the UID of the newest pod with that name and a known object, "" if there is none.
func (b *Book) UID(name podresources.Pod) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.evidence.uidOf(name)
}

// NumPods returns the number of pods with a known object.
func (b *Book) NumPods() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, p := range b.evidence.pods {
		if p.state != Deleted {
			n++
		}
	}
	return n
}

// Claims returns the facts about all claims. The map is immutable.
func (b *Book) Claims() map[podresources.Claim]podresources.ClaimFacts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.evidence.allFacts()
}

// Holds returns who holds what by all evidence, and the signs of changes since the view of time
// before. While nothing changes, the holdings are the same.
func (b *Book) Holds(now, before time.Time) (Holdings, Signs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.decided || !b.nextChange.IsZero() && !now.Before(b.nextChange) {
		b.nextChange = b.evidence.expire(now)
		b.holdings, b.decided = Holds(&b.evidence, now), true
	}
	return b.holdings, Signs{
		At: b.knownUntil, Changes: b.evidence.changes.since(before.Add(-changesBefore)),
		Watched: !b.evidence.watched.IsZero(),
	}
}
