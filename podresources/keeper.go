package podresources

import (
	"slices"
	"time"
)

// State is the state of a pod according to its cgroup.
type State uint8

// The states.
const (
	StateUnknown State = iota // never seen, or without processes
	StateAlive                // exists, with processes
	StateGone                 // existed, and was removed
)

// String returns the state's name, for logs.
func (s State) String() string {
	switch s {
	case StateAlive:
		return "alive"
	case StateGone:
		return "gone"
	default:
		return "unknown"
	}
}

// Keeper decides which of the kubelet's responses take effect, and keeps the present allocations.
// It does no I/O, and is not safe for concurrent use.
//
// A kubelet that has restarted answers successfully with nothing for about a second, and for as
// long as the API server is away. So an answer without a single holder, after one that had some, is
// not believed of
//
//   - a pod whose cgroup has processes, for as long as it has;
//   - a pod of which nothing is known, until Grace has passed since the first of these answers.
//
// A pod whose cgroup is seen gone holds nothing from that moment on, also while the kubelet does
// not answer. An answer with any holder proves that the kubelet knows its pods, and is believed as
// a whole.
type Keeper struct {
	// Grace is how long empty answers are not believed of pods in StateUnknown.
	Grace time.Duration
	// PodState reports whether the pod of that UID, never "", lives; nil: that is never known.
	PodState func(uid string) State
	// PodUID returns the UID of a pod, "" where it is unknown; nil: it always is.
	PodUID func(pod Pod, now time.Time) string

	allocations []Allocation
	given       []Allocation // what the present ones were made of; nil: it is not kept
	at          time.Time
	emptySince  time.Time // of the first of the empty answers that are not believed; zero: the last answer is believed
}

// Observe records a response that arrived at a time, or the error in its place. The allocations
// must not change afterwards. The same ones again cost little, and give the same result as long as
// the UIDs are the same.
func (k *Keeper) Observe(allocations []Allocation, err error, now time.Time) {
	switch {
	case err != nil:
		k.drop(func(state State) bool { return state == StateGone })
	case len(allocations) > 0 || len(k.allocations) == 0:
		k.believe(allocations, now)
	default:
		k.doubt(now)
	}
}

// Allocations returns the present allocations. They are immutable.
func (k *Keeper) Allocations() []Allocation { return k.allocations }

// At returns the time of the last response that took effect, zero if there was none.
func (k *Keeper) At() time.Time { return k.at }

// Doubting reports whether the last response was empty and has not taken effect for all holders.
func (k *Keeper) Doubting() bool { return !k.emptySince.IsZero() && len(k.allocations) > 0 }

// believe takes an answer as a whole.
func (k *Keeper) believe(allocations []Allocation, now time.Time) {
	filled := allocations
	if sameSlice(allocations, k.given) {
		filled = k.allocations
	}
	k.allocations, k.given = k.withUIDs(filled, now), allocations
	k.at, k.emptySince = now, time.Time{}
}

// sameSlice reports whether both slices are of the same memory.
func sameSlice(a, b []Allocation) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}

// doubt drops, at an empty answer, the holders for which it is true.
func (k *Keeper) doubt(now time.Time) {
	if k.emptySince.IsZero() {
		k.emptySince = now
	}
	graceOver := now.Sub(k.emptySince) >= k.Grace
	k.drop(func(state State) bool { return state == StateGone || state == StateUnknown && graceOver })
	if len(k.allocations) == 0 {
		k.believe(nil, now)
	}
}

// drop takes the holders away whose pods are in a state that ends holding. What was returned before
// does not change.
func (k *Keeper) drop(ends func(State) bool) {
	ended := make(map[string]bool) // by UID
	dropped := func(h Holder) bool {
		end, known := ended[h.UID]
		if !known {
			end = ends(k.state(h.UID))
			ended[h.UID] = end
		}
		return end
	}
	kept := make([]Allocation, 0, len(k.allocations))
	for _, a := range k.allocations {
		if slices.ContainsFunc(a.Holders, dropped) {
			a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), dropped)
		}
		if len(a.Holders) > 0 {
			kept = append(kept, a)
		}
	}
	k.allocations, k.given = kept, nil
}

func (k *Keeper) state(uid string) State {
	if uid == "" || k.PodState == nil {
		return StateUnknown
	}
	return k.PodState(uid)
}

// withUIDs returns the allocations with the UIDs of all holders. The argument, which others may
// read, is not changed.
func (k *Keeper) withUIDs(allocations []Allocation, now time.Time) []Allocation {
	if k.PodUID == nil {
		return allocations
	}
	uids := make(map[Pod]string, len(allocations))
	shared := true
	for i := range allocations {
		sharedHolders := true
		for j, h := range allocations[i].Holders {
			uid, known := uids[h.Pod]
			if !known {
				uid = k.PodUID(h.Pod, now)
				uids[h.Pod] = uid
			}
			if uid == h.UID {
				continue
			}
			if shared {
				allocations, shared = slices.Clone(allocations), false
			}
			if sharedHolders {
				allocations[i].Holders, sharedHolders = slices.Clone(allocations[i].Holders), false
			}
			allocations[i].Holders[j].UID = uid
		}
	}
	return allocations
}
