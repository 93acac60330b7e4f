package holders

import (
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Book keeps the evidence of one node, and what follows from it. It is safe for concurrent use, and
// does no I/O.
type Book struct {
	hint func()

	mu       sync.Mutex
	evidence Evidence
	version  int // counts the changes of evidence
	holdings Holdings
	made     int       // the version of holdings
	again    time.Time // when holdings may be others though nothing has changed; zero: never

	last     Answer    // that was taken
	heard    time.Time // of the last evidence of pods: an answer that was asked for before may be of others
	answered int       // the version after it

	changed time.Time // when a pod changed last, or the watch opened
	came    time.Time // when a pod came or started last, or its cgroup or a CDI spec came
	known   time.Time // until when it is known who holds what
	sure    bool      // the last answer was believed as a whole
	settled bool      // the same one again says the same
}

// NewBook returns an empty book. hint is called when what is held may have changed, which is to be
// seen soon. grace is how long a pod that a kubelet lacks after its restart is kept, where no
// cgroup proves that the pod is gone.
func NewBook(grace time.Duration, hint func()) *Book {
	return &Book{hint: hint, version: 1, evidence: Evidence{
		grace: grace, pods: map[string]*pod{}, claims: map[podresources.Claim]podresources.ClaimFacts{},
	}}
}

// take changes the evidence, and hints if that may change what is held.
func (b *Book) take(change func(e *Evidence) (held bool)) {
	b.mu.Lock()
	b.evidence.changed = false
	held := change(&b.evidence)
	if b.evidence.changed {
		b.version++
	}
	b.mu.Unlock()
	if held && b.hint != nil {
		b.hint()
	}
}

// PodsListed takes a complete list of the pods that are bound to the node, of the kubelet itself or
// of the API server.
func (b *Book) PodsListed(pods []podresources.PodFacts, local bool, asked time.Time) {
	b.take(func(e *Evidence) bool {
		e.listPods(pods, local, asked)
		b.heard = later(b.heard, asked)
		return true
	})
}

// PodChanged takes what a pod has become, when the event arrives.
func (b *Book) PodChanged(pod podresources.PodFacts, at time.Time) {
	b.take(func(e *Evidence) bool {
		before := e.pods[pod.UID]
		e.setPod(pod, at)
		b.changed, b.heard = at, later(b.heard, at)
		after := e.pods[pod.UID]
		if before == nil || pod.Started && !before.Started {
			b.came = at
		}
		return after != nil && (before == nil || before.state != after.state || before.Running != after.Running)
	})
}

// PodDeleted takes that a pod was deleted: its UID never holds again, unless a list that is asked
// for later has it.
func (b *Book) PodDeleted(uid string, at time.Time) {
	b.take(func(e *Evidence) bool {
		e.deletePod(uid, at)
		b.changed, b.heard = at, later(b.heard, at)
		return true
	})
}

// PodRead takes what the API server's object of one pod says, which was asked for by its name: the
// names of claims that the kubelet's own status leaves out.
func (b *Book) PodRead(pod podresources.PodFacts, _ time.Time) {
	b.take(func(e *Evidence) bool {
		known := e.pods[pod.UID]
		if known == nil {
			return false
		}
		after := *known
		after.learnNames(&pod)
		e.put(&after)
		return true
	})
}

// NominatedListed takes a complete list of the pods that wait to be bound to the node.
func (b *Book) NominatedListed(pods []podresources.PodFacts, asked time.Time) {
	b.take(func(e *Evidence) bool { e.listNominated(pods, asked); return true })
}

// NominatedChanged takes what a pod that waits to be bound has become.
func (b *Book) NominatedChanged(pod podresources.PodFacts, at time.Time) {
	b.take(func(e *Evidence) bool {
		known := e.pods[pod.UID] != nil
		e.setPod(pod, at)
		return !known
	})
}

// NominatedGone takes that a pod is no longer nominated.
func (b *Book) NominatedGone(uid string, at time.Time) {
	b.take(func(e *Evidence) bool { e.leaveNominated(uid, at); return false })
}

// ClaimRead takes what a claim's object says.
func (b *Book) ClaimRead(claim podresources.Claim, facts podresources.ClaimFacts) {
	b.take(func(e *Evidence) bool { return e.readClaim(claim, &facts) })
}

// ClaimDeleted takes that a claim did not exist when it was asked for.
func (b *Book) ClaimDeleted(claim podresources.Claim, asked time.Time) {
	b.take(func(e *Evidence) bool { return e.deleteClaim(claim, asked) })
}

// ClaimForgotten drops what is known of a claim that is not asked for any more.
func (b *Book) ClaimForgotten(claim podresources.Claim) {
	b.take(func(e *Evidence) bool {
		if _, known := e.claims[claim]; known {
			delete(e.claims, claim)
			e.allClaims, e.changed = nil, true
		}
		return false
	})
}

// ClaimsListed takes the claims of the inventory file, as of when it was read. The same map again
// costs nothing. It must not change.
func (b *Book) ClaimsListed(claims map[podresources.Claim]podresources.ClaimFacts, read time.Time) {
	b.take(func(e *Evidence) bool { return e.listClaims(claims, read) })
}

// Changed takes that a pod's cgroup or a CDI spec came or went.
func (b *Book) Changed(c podresources.Change) {
	b.take(func(e *Evidence) bool {
		if !c.Gone {
			b.came = later(b.came, c.At)
		}
		return e.changes.add(c, e.asked)
	})
}

// Expects reports whether something has come that the kubelet's last answer may not have yet.
func (b *Book) Expects() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.came.IsZero() && b.evidence.asked.Before(b.came.Add(expectedFor))
}

// Watching takes that a watch of the kubelet's own pods that began at a time has listed them all;
// zero: that it has ended.
func (b *Book) Watching(began, at time.Time) {
	b.mu.Lock()
	b.evidence.watched, b.changed = began, at
	b.mu.Unlock()
}

// Quiet reports whether there is no need to ask the kubelet: its last answer still holds. Then it
// is known who holds what until shortly before now.
func (b *Book) Quiet(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := b.evidence.asked // an answer that was asked for before a change says nothing of it
	if longest := now.Add(-catchUp); longest.Before(since) {
		since = longest
	}
	quiet := !b.evidence.watched.IsZero() && b.sure && now.Sub(b.evidence.asked) < pollInterval &&
		b.changed.Before(since) && len(b.evidence.changes.since(since)) == 0
	if quiet {
		b.known = later(b.known, now.Add(-watchLag))
	}
	return quiet
}

// unsure returns the pods, by UID, of which the state of the cgroup decides who holds what: with an
// answer that is not taken yet, or without one. answered says whether the kubelet answers.
func (b *Book) unsure(answer *Answer, answered bool) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.evidence.unsureOf(answer, answered)
}

// nameless returns the listed pods of which no object is known.
func (b *Book) nameless(listed map[podresources.Pod]struct{}) []podresources.Pod {
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

// Answered takes an answer of the kubelet. It returns whether the answer is believed as a whole:
// false after a restart of the kubelet, until it knows its pods. The same answer again, while
// nothing else changes, costs nothing.
func (b *Book) Answered(answer *Answer) (believed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = later(b.known, answer.Asked)
	if b.answered == b.version && b.settled && b.last.Asked.After(b.heard) && answer.repeats(&b.last) {
		b.evidence.asked = answer.Asked
		return true
	}
	b.evidence.answer(answer)
	b.version++
	b.sure, b.settled = !b.evidence.doubts(), b.evidence.settled()
	b.last, b.answered = *answer, b.version
	return b.sure
}

// NotAnswered takes that the kubelet was asked in vain, and what is known of the pods' cgroups.
func (b *Book) NotAnswered(cgroups map[string]podresources.CgroupState, at time.Time) {
	b.take(func(e *Evidence) bool {
		if e.noAnswer(cgroups, at) {
			b.known = later(b.known, at)
		}
		b.sure, b.settled = false, false
		return false
	})
}

// Cgroups takes the states of the cgroups of pods that Book.unsure returned.
func (b *Book) Cgroups(states map[string]podresources.CgroupState, at time.Time) {
	if len(states) > 0 {
		b.take(func(e *Evidence) bool { e.takeCgroups(states, at); return false })
	}
}

// UID returns the UID of the newest pod of that name of which an object is known, else "".
func (b *Book) UID(name podresources.Pod) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.evidence.uidOf(name)
}

// NumPods returns the number of pods of which an object is known.
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

// Claims returns the facts of all claims. The map does not change, and must not be changed.
func (b *Book) Claims() map[podresources.Claim]podresources.ClaimFacts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.evidence.allFacts()
}

// Holds returns who holds what by all evidence, and the times at which holds may have begun or
// ended since a view of that time. While nothing changes, the holdings are the same.
func (b *Book) Holds(now, before time.Time) (Holdings, Signs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made != b.version || !b.again.IsZero() && !now.Before(b.again) {
		b.evidence.dropNominated(now)
		b.holdings, b.made = Holds(&b.evidence, now), b.version
		b.again = b.evidence.nextChange(now)
	}
	return b.holdings, Signs{
		At: b.known, Changes: b.evidence.changes.since(before.Add(-changesBefore)), Watched: !b.evidence.watched.IsZero(),
	}
}
