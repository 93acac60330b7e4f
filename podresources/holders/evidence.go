package holders

import (
	"maps"
	"reflect"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Evidence is all that is known of who holds what. Only the methods of [Book] change it.
type Evidence struct {
	pods  map[string]*pod             // by UID
	names map[podresources.Pod]string // the UIDs of the newest of pods; nil: to be made

	// The kubelet's answers.
	kubelet     kubelet
	listed      map[podresources.Pod]*listedPod
	allocations []podresources.Allocation // what it lists, with the pods that are kept
	given       []podresources.Allocation // what it said, before
	filled      bool                      // allocations differ from given, not by UIDs alone
	asked       time.Time                 // when the last answer was asked for; zero: there was none
	failing     time.Time                 // since when it has not answered; zero: it does
	grace       time.Duration             // how long a pod without cgroup is kept after a restart
	watched     time.Time                 // when the open watch of the kubelet's pods began; zero: none is open

	claims     map[podresources.Claim]podresources.ClaimFacts // of the API server
	fileClaims map[podresources.Claim]podresources.ClaimFacts // of the inventory file
	inFile     map[podresources.Claim]podresources.ClaimFacts // what the file had last
	fileRead   time.Time
	allClaims  map[podresources.Claim]podresources.ClaimFacts // of both; nil: to be made

	changes changeLog
	changed bool // since the Book looked: who holds what, or why, may be something else than before
}

// readClaim takes what a claim's object says.
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

// deleteClaim takes that a claim does not exist any more. What it said before is kept: a pod that
// has started keeps its devices.
func (e *Evidence) deleteClaim(claim podresources.Claim, asked time.Time) (news bool) {
	facts, known := e.claims[claim]
	if !known || facts.Deleted || facts.Read.After(asked) {
		return false
	}
	facts.Deleted, facts.Read = true, asked
	e.claims[claim], e.allClaims, e.changed = facts, nil, true
	return true
}

// sameFacts reports whether two answers say the same of a claim, whenever they were asked for.
func sameFacts(a, b *podresources.ClaimFacts) bool {
	then := *a
	then.Read = b.Read
	return reflect.DeepEqual(&then, b)
}

// changedSince reports whether a pod was seen first, or changed its state, between two readings of
// a claim: the second one decides what the first one did not.
func (e *Evidence) changedSince(first, second time.Time) bool {
	between := func(t time.Time) bool { return !t.Before(first) && t.Before(second) }
	for _, p := range e.pods {
		if between(p.seen) || between(p.since) {
			return true
		}
	}
	return false
}

// listClaims takes the claims of the inventory file, as it was read at a time, unless they were
// taken last. A claim that it does not have any more was deleted.
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

// allFacts returns the claims of the API server and of the file; the former take precedence.
func (e *Evidence) allFacts() map[podresources.Claim]podresources.ClaimFacts {
	if e.allClaims == nil {
		e.allClaims = make(map[podresources.Claim]podresources.ClaimFacts, len(e.fileClaims)+len(e.claims))
		maps.Copy(e.allClaims, e.fileClaims)
		maps.Copy(e.allClaims, e.claims)
	}
	return e.allClaims
}
