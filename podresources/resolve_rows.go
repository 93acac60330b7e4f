package podresources

import (
	"maps"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// list takes one allocation of the kubelet's answer.
func (r *resolver) list(a Allocation, health map[driver.ID]driver.HealthStatus, classic map[Claim]int) {
	claim := r.Claims[a.Claim]
	a.Health = health[a.Device]
	claim.completeClassic(&a, classic[a.Claim] == 1)
	shares := claim.unlistedShares(&a)
	if len(shares) == 0 {
		claim.complete(&a)
	}
	var holders []Holder
	for group := range groups(a.Holders) {
		p := r.pod(&group[0])
		switch {
		case p == nil && r.reallocated(&group[0], &a, &claim, len(shares) > 0):
		case p == nil:
			holders = append(holders, group...)
		case r.over(p, &claim):
		case r.disagree(p, &a, &claim, len(shares) > 0):
		default:
			for _, h := range group {
				holders = append(holders, r.describe(p, h, a.Claim))
			}
		}
	}
	a.Holders = holders
	if len(shares) == 0 {
		r.add(a)
		return
	}
	for _, share := range shares {
		b := a
		b.ShareID, b.Holders = share, slices.Clone(holders)
		claim.complete(&b)
		r.add(b)
	}
}

// describe returns the holder with what is known of its pod.
func (r *resolver) describe(p *PodFacts, h Holder, claim Claim) Holder {
	if p.UID != "" {
		h.UID = p.UID
	}
	h.Meta = p.Meta
	h.ClaimName = r.named[podUse{p.UID, claim}]
	return h
}

// complete adds what pods hold and the kubelet does not list.
func (r *resolver) complete() {
	for _, claim := range slices.SortedFunc(maps.Keys(r.used), Claim.Compare) {
		facts, known := r.Claims[claim]
		if facts.Classic != nil {
			continue
		}
		listed := r.ofClaim[claim]
		holders := r.holders(listed)
		for _, u := range r.used[claim] {
			switch {
			case r.over(u.pod, &facts) || r.exited(u.pod):
			case facts.gives(u.pod):
				for i := range facts.Results {
					r.hold(holders, r.row(claim, &facts, &facts.Results[i]), u)
				}
			case u.pod.Started && (!known || facts.stale(u.pod)):
				for _, i := range listed {
					r.hold(holders, i, u)
				}
			}
		}
	}
	r.holdReallocated()
}

// row returns the position of the row of a device of a claim, which it adds where there is none.
func (r *resolver) row(claim Claim, facts *ClaimFacts, result *ClaimResult) int {
	key := rowKey{claim: claim, device: result.Device, shareID: result.ShareID}
	if i, known := r.position[key]; known {
		return i
	}
	a := Allocation{Claim: claim, Device: result.Device, ShareID: result.ShareID, State: StateAllocated}
	facts.complete(&a)
	r.add(a)
	return len(r.rows) - 1
}

// hold adds a pod to the holders of a row, in no container, unless it is among them.
func (r *resolver) hold(holders map[rowHolder]bool, i int, u use) {
	if holders[rowHolder{i, u.pod.UID}] {
		return
	}
	a := &r.rows[i]
	if u.pod.Started {
		a.State = StatePrepared
	}
	a.Holders = append(a.Holders, Holder{Pod: u.pod.Pod, UID: u.pod.UID, ClaimName: u.name, Meta: u.pod.Meta})
}

// add adds a row.
func (r *resolver) add(a Allocation) {
	r.position[rowKeyOf(&a)] = len(r.rows)
	r.ofClaim[a.Claim] = append(r.ofClaim[a.Claim], len(r.rows))
	r.rows = append(r.rows, a)
}

func rowKeyOf(a *Allocation) rowKey {
	key := rowKey{claim: a.Claim, device: a.Device, shareID: a.ShareID}
	if a.ByPlugin() && len(a.Holders) > 0 {
		key.pod = a.Holders[0].Pod
	}
	return key
}

// rowHolder is a pod, by UID, that holds a row.
type rowHolder struct {
	row int
	uid string
}

// holders returns the pods that hold these rows.
func (r *resolver) holders(rows []int) map[rowHolder]bool {
	out := map[rowHolder]bool{}
	for _, i := range rows {
		for h := range r.rows[i].Holders {
			out[rowHolder{i, r.rows[i].Holders[h].UID}] = true
		}
	}
	return out
}

// groups yields the holders of each pod.
func groups(holders []Holder) func(yield func([]Holder) bool) {
	return func(yield func([]Holder) bool) {
		for i := 0; i < len(holders); {
			n := 1
			for i+n < len(holders) && holders[i+n].Pod == holders[i].Pod && holders[i+n].UID == holders[i].UID {
				n++
			}
			if !yield(holders[i : i+n : i+n]) {
				return
			}
			i += n
		}
	}
}

// over reports that the pod holds nothing of the claim any more, although the kubelet may list it.
func (r *resolver) over(p *PodFacts, claim *ClaimFacts) bool {
	switch {
	case p.Gone, p.Ended:
		return true
	case !p.Ending:
		return false
	default:
		return r.Exited[p.UID] || claim.Read.After(p.EndingSince) && !claim.ReservedFor(p.UID)
	}
}

// exited reports that the kubelet has ended the pod and no longer lists it among the active pods.
// The kubelet reports the deletion of a pod some seconds later, when it has unmounted the volumes
// (k8s.io/kubernetes pkg/kubelet/kubelet.go, SyncTerminatedPod); by then the pod that replaced it
// may be gone too.
func (r *resolver) exited(p *PodFacts) bool {
	if !p.Ending || p.Running > 0 || r.Listed == nil {
		return false
	}
	_, listed := r.Listed[p.Pod]
	return p.Replaced || !listed || r.names[p.Pod] != p.UID
}
