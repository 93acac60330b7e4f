package holders

import (
	"maps"
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
		grace: grace, pods: map[string]*pod{}, named: map[podresources.Pod][]*pod{},
		claims: map[podresources.Claim]podresources.ClaimFacts{}, ended: map[podresources.Pod]endedUID{},
	}}
}

// update changes the evidence. If the holders may have changed, it calls the hint.
func (b *Book) update(change func(e *Evidence)) {
	b.mu.Lock()
	b.evidence.changed = false
	change(&b.evidence)
	changed := b.evidence.changed
	if changed {
		b.decided, b.settled = false, false
	}
	b.mu.Unlock()
	if changed && b.hint != nil {
		b.hint()
	}
}

// PodChanged processes a new or changed pod. at is when its event arrived.
func (b *Book) PodChanged(facts podresources.PodFacts, at time.Time) {
	b.update(func(e *Evidence) {
		b.changed, b.podsSeen = at, driver.Later(b.podsSeen, at)
		if e.setPod(facts, at) {
			b.appeared = at
		}
	})
}

// PodRead processes an object of a pod that was requested from the API server by name. It has the
// names of claims that the kubelet's own status omits.
func (b *Book) PodRead(facts podresources.PodFacts, _ time.Time) {
	b.update(func(e *Evidence) {
		if p := e.pods[facts.UID]; p != nil {
			was := *p
			p.learnNames(&facts)
			e.changed = e.changed || !reflect.DeepEqual(&was, p)
		}
	})
}

// NominatedChanged processes a new or changed pod that waits to be bound.
func (b *Book) NominatedChanged(pod podresources.PodFacts, at time.Time) {
	b.update(func(e *Evidence) { e.setPod(pod, at) })
}

// NominatedGone processes the end of a pod's nomination.
func (b *Book) NominatedGone(uid string, at time.Time) {
	b.update(func(e *Evidence) { e.leaveNominated(uid, at) })
}

// Changed processes that a pod's cgroup or a CDI spec appeared or disappeared.
func (b *Book) Changed(c podresources.Change) {
	b.mu.Lock()
	if !c.Gone {
		b.appeared = driver.Later(b.appeared, c.At)
	}
	news := b.evidence.changes.add(c, b.evidence.asked)
	b.mu.Unlock()
	if news && b.hint != nil {
		b.hint()
	}
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
	b.update(func(e *Evidence) {
		if e.failing.IsZero() {
			e.failing, e.changed = at, true
		}
		before := len(e.listed)
		if e.takeCgroups(cgroups, at); len(e.listed) != before {
			b.knownUntil = driver.Later(b.knownUntil, at)
		}
		b.believed, b.settled = false, false
	})
}

// Cgroups processes the states of the cgroups of the pods that Book.unsure returned.
func (b *Book) Cgroups(states map[string]podresources.CgroupState, at time.Time) {
	b.update(func(e *Evidence) { e.takeCgroups(states, at) })
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

// Evidence is all that is known about who holds what. Only the methods of [Book] change it.
type Evidence struct {
	pods  map[string]*pod             // by UID
	named map[podresources.Pod][]*pod // those that have, or had, a name

	// The kubelet's answers.
	kubelet     kubelet
	listed      map[podresources.Pod]*listedPod
	allocations []podresources.Allocation     // of the last answer, with those of kept pods
	asked       time.Time                     // when the last answer was requested; zero: there was none
	failing     time.Time                     // since when the kubelet has not answered; zero: it answers
	grace       time.Duration                 // how long a pod with an unknown cgroup is kept after a restart
	watched     time.Time                     // when the open watch of the kubelet's pods began; zero: none is open
	ended       map[podresources.Pod]endedUID // the last pod of each name that had no known object

	claims     map[podresources.Claim]podresources.ClaimFacts // from the API server
	fileClaims map[podresources.Claim]podresources.ClaimFacts // from the inventory file, with deleted ones
	allClaims  map[podresources.Claim]podresources.ClaimFacts // of both; nil: to be computed

	podsChanged time.Time // the latest time at which a pod was first seen, or changed its state

	changes changeLog
	changed bool // since Book reset it: who holds what, or why, may have changed
}

// ClaimRead processes the object of a claim. An unchanged one has new consequences if a pod was
// first seen, or changed its state, since the claim was last read.
func (b *Book) ClaimRead(claim podresources.Claim, facts podresources.ClaimFacts) {
	b.update(func(e *Evidence) {
		before, known := e.claims[claim]
		if known && before.Read.After(facts.Read) {
			return
		}
		e.claims[claim], e.allClaims = facts, nil
		then := before.Read
		before.Read = facts.Read
		e.changed = !known || !e.podsChanged.Before(then) || !reflect.DeepEqual(before, facts)
	})
}

// ClaimDeleted processes that a claim did not exist when it was requested. Its last contents are
// kept: a pod that has started keeps its devices.
func (b *Book) ClaimDeleted(claim podresources.Claim, asked time.Time) {
	b.update(func(e *Evidence) {
		if facts, known := e.claims[claim]; known && !facts.Deleted && !facts.Read.After(asked) {
			facts.Deleted, facts.Read = true, asked
			e.claims[claim], e.allClaims, e.changed = facts, nil, true
		}
	})
}

// ClaimForgotten drops what is known about a claim that is not read any more.
func (b *Book) ClaimForgotten(claim podresources.Claim) {
	b.update(func(e *Evidence) {
		if _, known := e.claims[claim]; known {
			delete(e.claims, claim)
			e.allClaims, e.changed = nil, true
		}
	})
}

// ClaimsListed processes the claims of the inventory file, which was read at the given time. The
// map must not be changed. A claim that the file does not have any more was deleted.
func (b *Book) ClaimsListed(claims map[podresources.Claim]podresources.ClaimFacts, read time.Time) {
	b.update(func(e *Evidence) {
		all := make(map[podresources.Claim]podresources.ClaimFacts, len(claims))
		for claim, facts := range e.fileClaims {
			if !facts.Deleted {
				facts.Deleted, facts.Read = true, read
			}
			if read.Sub(facts.Read) <= keepDeleted {
				all[claim] = facts
			}
		}
		maps.Copy(all, claims)
		e.fileClaims, e.allClaims, e.changed = all, nil, true
	})
}

// allFacts returns the claims from the API server and from the file. Those from the API server take
// precedence.
func (e *Evidence) allFacts() map[podresources.Claim]podresources.ClaimFacts {
	if e.allClaims == nil {
		e.allClaims = make(map[podresources.Claim]podresources.ClaimFacts, len(e.fileClaims)+len(e.claims))
		maps.Copy(e.allClaims, e.fileClaims)
		maps.Copy(e.allClaims, e.claims)
	}
	return e.allClaims
}

// Answer is an answer of the kubelet's PodResources service.
type Answer struct {
	Asked   time.Time                     // when it was asked for
	Arrived time.Time                     // when it arrived; the kubelet produced it in between
	Kubelet podresources.Instance         // the kubelet process that gave it; empty: unknown
	Pods    map[podresources.Pod]struct{} // all listed pods, including those without devices
	// Allocations are the listed allocations. They must not be changed. An unchanged slice is cheap.
	Allocations []podresources.Allocation
	// UIDs are the UIDs, from files of the node, of listed pods without a known object.
	UIDs map[podresources.Pod]string
	// Cgroups are the states of the cgroups of the pods that Book.unsure returned.
	Cgroups map[string]podresources.CgroupState
}

// repeats reports whether the answer has the same contents as an earlier one.
func (a *Answer) repeats(before *Answer) bool {
	return a.Kubelet == before.Kubelet && driver.SameMap(a.Pods, before.Pods) &&
		maps.Equal(a.UIDs, before.UIDs) && maps.Equal(a.Cgroups, before.Cgroups) &&
		driver.SameSlice(a.Allocations, before.Allocations)
}

// kubelet is what is known about the kubelet process that answers.
type kubelet struct {
	instance podresources.Instance
	// since is when its first answer, or an earlier watch of its pods, was requested; zero: its
	// instance is unknown.
	since time.Time
	// ready is when the first of its answers arrived that lists a pod from the API server. Static pods
	// are listed earlier. Zero: it may not know pods from the API server yet.
	ready time.Time
}

// answer processes an answer.
func (e *Evidence) answer(a *Answer) {
	if e.kubelet.instance == "" || a.Kubelet != e.kubelet.instance {
		e.kubelet = kubelet{instance: a.Kubelet}
		if a.Kubelet != "" {
			e.kubelet.since = a.Asked
		}
		if a.Kubelet != "" && !e.watched.IsZero() && e.watched.Before(a.Asked) {
			e.kubelet.since = e.watched // the watch is of this kubelet: a restart would have ended it
		}
	}
	e.failing = time.Time{}
	e.takeCgroups(a.Cgroups, a.Asked)
	maps.DeleteFunc(e.ended, func(_ podresources.Pod, of endedUID) bool { return a.Asked.Sub(of.at) > keepDeleted })
	next := e.listPodsOf(a)
	for name, before := range e.listed {
		if _, has := a.Pods[name]; !has && e.unlistPod(name, before, a) {
			next[name] = before
		}
	}
	e.endUnlisted(next, a)
	e.listed, e.asked = next, a.Asked
	e.takeRows(a.Allocations)
}

// listPodsOf returns the pods that an answer lists. It notes whether one is a pod from the API
// server: one with a claim, which a static pod can't have, or one whose UID is not the hash of a
// manifest.
func (e *Evidence) listPodsOf(a *Answer) map[podresources.Pod]*listedPod {
	next := make(map[podresources.Pod]*listedPod, len(a.Pods))
	ofServer := false
	for name := range a.Pods {
		l := &listedPod{uid: e.uidAnswered(a, name), kubelet: a.Kubelet}
		next[name] = l
		p := e.pods[l.uid]
		ofServer = ofServer || l.uid != "" && !podresources.IsStaticUID(l.uid) && (p == nil || !p.Static)
		e.listPod(l, a.Asked)
	}
	for i := range a.Allocations {
		ofServer = ofServer || !a.Allocations[i].ByPlugin()
		for j := range a.Allocations[i].Holders {
			if l := next[a.Allocations[i].Holders[j].Pod]; l != nil {
				l.devices = true
			}
		}
	}
	if ofServer && e.kubelet.ready.IsZero() {
		e.kubelet.ready = driver.Later(a.Asked, a.Arrived)
	}
	return next
}
