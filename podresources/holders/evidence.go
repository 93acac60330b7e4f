package holders

import (
	"maps"
	"reflect"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Evidence is all that is known about who holds what. Only the methods of [Book] change it.
type Evidence struct {
	pods  map[string]*pod               // by UID
	named map[podresources.Pod][]string // UIDs of the pods that have, or had, a name

	// The kubelet's answers.
	kubelet     kubelet
	listed      map[podresources.Pod]*listedPod
	allocations []podresources.Allocation     // of the last answer, with those of kept pods
	given       []podresources.Allocation     // of the last answer, unchanged
	identified  bool                          // the UID of a listed pod has become known since allocations were set
	asked       time.Time                     // when the last answer was requested; zero: there was none
	failing     time.Time                     // since when the kubelet has not answered; zero: it answers
	grace       time.Duration                 // how long a pod with an unknown cgroup is kept after a restart
	watched     time.Time                     // when the open watch of the kubelet's pods began; zero: none is open
	ended       map[podresources.Pod]endedUID // the last pod of each name that had no known object

	claims     map[podresources.Claim]podresources.ClaimFacts // from the API server
	fileClaims map[podresources.Claim]podresources.ClaimFacts // from the inventory file, with deleted ones
	inFile     map[podresources.Claim]podresources.ClaimFacts // from the inventory file when it was last read
	fileRead   time.Time
	allClaims  map[podresources.Claim]podresources.ClaimFacts // of both; nil: to be computed

	changes changeLog
	changed bool // since Book reset it: who holds what, or why, may have changed
}

// readClaim processes the object of a claim. news reports whether it was new or changed.
func (e *Evidence) readClaim(claim podresources.Claim, facts *podresources.ClaimFacts) (news bool) {
	before, known := e.claims[claim]
	if known && before.Read.After(facts.Read) {
		return false
	}
	e.claims[claim], e.allClaims = *facts, nil
	news = !known || !sameFacts(&before, facts)
	e.changed = e.changed || news || e.changedSince(before.Read, facts.Read)
	return news
}

// deleteClaim processes the deletion of a claim. Its last contents are kept: a pod that has started
// keeps its devices.
func (e *Evidence) deleteClaim(claim podresources.Claim, asked time.Time) (news bool) {
	facts, known := e.claims[claim]
	if !known || facts.Deleted || facts.Read.After(asked) {
		return false
	}
	facts.Deleted, facts.Read = true, asked
	e.claims[claim], e.allClaims, e.changed = facts, nil, true
	return true
}

// sameFacts reports whether two objects of a claim are equal, except for the time at which they
// were read.
func sameFacts(a, b *podresources.ClaimFacts) bool {
	then := *a
	then.Read = b.Read
	return reflect.DeepEqual(&then, b)
}

// changedSince reports whether a pod was first seen, or changed its state, between two readings of
// a claim. Then an unchanged claim can have new consequences.
func (e *Evidence) changedSince(first, second time.Time) bool {
	between := func(t time.Time) bool { return !t.Before(first) && t.Before(second) }
	for _, p := range e.pods {
		if between(p.seen) || between(p.since) {
			return true
		}
	}
	return false
}

// listClaims processes the claims of the inventory file, unless they are the same as at the last
// call. A claim that the file does not have any more was deleted.
func (e *Evidence) listClaims(claims map[podresources.Claim]podresources.ClaimFacts, read time.Time) (news bool) {
	if read.Equal(e.fileRead) && sameMap(claims, e.inFile) {
		return false
	}
	e.inFile, e.fileRead = claims, read
	all := maps.Clone(claims)
	if all == nil {
		all = map[podresources.Claim]podresources.ClaimFacts{}
	}
	for claim, facts := range e.fileClaims {
		if _, there := claims[claim]; there {
			continue
		}
		if !facts.Deleted {
			facts.Deleted, facts.Read = true, read
		}
		if read.Sub(facts.Read) <= keepDeleted {
			all[claim] = facts
		}
	}
	e.fileClaims, e.allClaims, e.changed = all, nil, true
	return true
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
