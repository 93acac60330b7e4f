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
	b.update(func(e *Evidence) (news bool) {
		before, known := e.claims[claim]
		if known && before.Read.After(facts.Read) {
			return false
		}
		e.claims[claim], e.allClaims = facts, nil
		then := before.Read
		before.Read = facts.Read
		news = !known || !reflect.DeepEqual(before, facts)
		e.changed = e.changed || news || !e.podsChanged.Before(then)
		return news
	})
}

// ClaimDeleted processes that a claim did not exist when it was requested. Its last contents are
// kept: a pod that has started keeps its devices.
func (b *Book) ClaimDeleted(claim podresources.Claim, asked time.Time) {
	b.update(func(e *Evidence) (news bool) {
		facts, known := e.claims[claim]
		if !known || facts.Deleted || facts.Read.After(asked) {
			return false
		}
		facts.Deleted, facts.Read = true, asked
		e.claims[claim], e.allClaims, e.changed = facts, nil, true
		return true
	})
}

// ClaimForgotten drops what is known about a claim that is not read any more.
func (b *Book) ClaimForgotten(claim podresources.Claim) {
	b.update(func(e *Evidence) bool {
		if _, known := e.claims[claim]; known {
			delete(e.claims, claim)
			e.allClaims, e.changed = nil, true
		}
		return false
	})
}

// ClaimsListed processes the claims of the inventory file, which was read at the given time. The
// map must not be changed. A claim that the file does not have any more was deleted.
func (b *Book) ClaimsListed(claims map[podresources.Claim]podresources.ClaimFacts, read time.Time) {
	b.update(func(e *Evidence) bool {
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
		return true
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
