package invariant

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Truth records who held what on a node, by the pods and claims of the API server alone. Nothing in
// it comes from the exporter's code. It is safe for concurrent use.
type Truth struct {
	Node string

	mu    sync.Mutex
	holds map[hold]*times
	pods  map[types.UID]*listedPod
	asked time.Time                // the request of the last observation
	last  time.Time                // its answer
	alive map[types.UID]bool       // pods of the node that had neither ended nor been deleted, as last observed
	ended map[types.UID]bool       // claims passed to Ended
	known map[types.UID][]interval // when the API server may have had each pod as one that has not ended
}

// listedPod has the times in which PodResources lists a pod with a claim: the pod is bound to the
// node and has neither ended nor been deleted, the claim is reserved for it, and a listed container
// names the claim.
type listedPod struct {
	namespace, name string
	listed          []interval
}

// hold is a device, or a share of one, that a claim is allocated.
type hold struct {
	namespace, claim string
	uid              types.UID
	id               driver.ID
	share            string
}

// fact is a condition of a claim.
type fact int

const (
	// reserved: the claim is reserved for a pod that has not ended, and that is bound to the node or
	// waits for its binding.
	reserved fact = iota
	// started: a container of such a pod has started.
	started
	// named: a main or restartable init container of such a pod names the claim, so that PodResources
	// lists the claim once its devices are prepared.
	named
	// listed: such a pod has started, and names the claim.
	listed
	// staying, startedStaying and listedStaying are reserved, started and listed for a pod that is
	// bound to the node and not deleted: a deleted pod ends some time before the API server says so.
	staying
	startedStaying
	listedStaying
	// killed: such a pod was deleted by force a moment ago. The kubelet gives its containers some time
	// to end, while the API server knows nothing of them any more.
	killed
	numFacts
)

// killTime is how long a pod that was deleted by force may still run and be shown as a holder: the
// kubelet gives its containers at least 2 s, and its next answer may come a second later.
const killTime = 3 * time.Second

// times has the times in which a claim had a device, by fact.
type times struct {
	admin bool
	pods  map[types.UID]bool // pods for which the claim was last observed to be reserved
	gone  []types.UID        // pods that were deleted by force
	of    [numFacts][]interval
}

// interval is a time in which a fact applied. A fact that may have applied begins when the last
// observation without it was requested, and ends when its end was observed. One that must have
// applied lasts from its first observation to its last. Between two observations, the API server
// may have been away for long, or the machine may have stood still.
type interval struct {
	from, until time.Time
	closed      bool // its end has been observed
}

// possible reports whether the intervals of a fact are those in which it may have applied.
func (f fact) possible() bool { return f == reserved || f == named || f == killed }

// NewTruth returns the truth of a node without observations.
func NewTruth(node string) *Truth {
	return &Truth{
		Node: node, holds: map[hold]*times{}, pods: map[types.UID]*listedPod{}, ended: map[types.UID]bool{},
		known: map[types.UID][]interval{},
	}
}

// Ended records that a claim's devices were taken back at a time, by the journal of their driver,
// while the API server was away: later answers of the API server about the claim are older than
// that. The claim is not prepared again.
func (t *Truth) Ended(claim types.UID, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[claim] = true
	for h, life := range t.holds {
		if h.uid == claim {
			life.end(at)
		}
	}
}

// end ends all facts at a time, which may be before the last observation.
func (t *times) end(at time.Time) {
	for f, all := range t.of {
		all = slices.DeleteFunc(all, func(i interval) bool { return i.from.After(at) })
		if n := len(all) - 1; n >= 0 && (!all[n].closed || all[n].until.After(at)) {
			all[n].until, all[n].closed = at, true
		}
		t.of[f] = all
	}
}

// Observe adds an answer of the API server. asked and at are the times of the request and the
// answer, which never decrease from call to call.
func (t *Truth) Observe(asked, at time.Time, pods []*corev1.Pod, claims []*resourceapi.ResourceClaim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := cmp.Or(t.asked, at)
	t.asked, t.last = asked, at
	byUID := t.observePods(at, pods)
	t.observeListed(asked, at, byUID, claims)
	t.observeKnown(before, at, byUID)
	seen := map[*times]bool{}
	for _, c := range claims {
		if c.Status.Allocation == nil || t.ended[c.UID] {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			now := state(c, byUID, r.Request)
			if !now[reserved] {
				continue
			}
			life := t.timesOf(c, r)
			seen[life] = true
			life.pods = map[types.UID]bool{}
			for _, consumer := range c.Status.ReservedFor {
				life.pods[consumer.UID] = true
			}
			life.observe(before, asked, at, now)
		}
	}
	for _, life := range t.holds {
		if !seen[life] {
			life.observe(before, asked, at, moment{})
		}
	}
}

// observeKnown records which pods of the node the API server has that have not ended.
func (t *Truth) observeKnown(before, at time.Time, pods map[types.UID]*corev1.Pod) {
	for uid := range pods {
		t.known[uid] = observe(t.known[uid], before, at, true, true)
	}
	for uid, all := range t.known {
		if pods[uid] == nil {
			t.known[uid] = observe(all, before, at, false, true)
		}
	}
}

// observeListed records which of the node's pods that have not ended PodResources lists with a
// claim.
func (t *Truth) observeListed(
	asked, at time.Time, pods map[types.UID]*corev1.Pod, claims []*resourceapi.ResourceClaim,
) {
	listed := map[types.UID]bool{}
	for _, c := range claims {
		if c.Status.Allocation == nil || t.ended[c.UID] {
			continue
		}
		for _, p := range consumers(c, pods) {
			if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || !IsListed(p, c.Name) {
				continue
			}
			listed[p.UID] = true
			if t.pods[p.UID] == nil {
				t.pods[p.UID] = &listedPod{namespace: p.Namespace, name: p.Name}
			}
		}
	}
	for uid, p := range t.pods {
		p.listed = observe(p.listed, at, asked, listed[uid], false)
	}
}

// timesOf returns the times of a claim's hold of the device in a result.
func (t *Truth) timesOf(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *times {
	h := hold{c.Namespace, c.Name, c.UID, driver.ID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}, ""}
	if r.ShareID != nil {
		h.share = string(*r.ShareID)
	}
	life := t.holds[h]
	if life == nil {
		life = &times{admin: r.AdminAccess != nil && *r.AdminAccess}
		t.holds[h] = life
	}
	return life
}

// observePods records the pods, and returns those of the node that have not ended.
func (t *Truth) observePods(at time.Time, pods []*corev1.Pod) map[types.UID]*corev1.Pod {
	byUID, known, alive := map[types.UID]*corev1.Pod{}, map[types.UID]bool{}, map[types.UID]bool{}
	for _, p := range pods {
		known[p.UID] = true
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if (p.Spec.NodeName == t.Node || waitsFor(p, t.Node)) && !ended {
			byUID[p.UID] = p
			alive[p.UID] = p.DeletionTimestamp == nil
		}
	}
	for uid, was := range t.alive {
		if was && !known[uid] {
			t.kill(uid, at)
		}
	}
	t.alive = alive
	return byUID
}

// waitsFor reports whether the scheduler has chosen this node for a pod but not bound the pod to
// it: a claim reserved for it holds its devices. Only an exporter that asks the API server knows
// that.
func waitsFor(p *corev1.Pod, node string) bool {
	return p.Spec.NodeName == "" && p.Status.NominatedNodeName == node
}

// kill records that a pod was deleted by force.
func (t *Truth) kill(uid types.UID, at time.Time) {
	for _, life := range t.holds {
		if life.pods[uid] {
			life.of[killed] = append(life.of[killed], interval{from: at, until: at.Add(killTime), closed: true})
			life.gone = append(life.gone, uid)
		}
	}
}

// moment has the facts at one time.
type moment [numFacts]bool

// observe adds an answer to all facts. before is the time of the request of the answer before.
func (t *times) observe(before, asked, at time.Time, now moment) {
	for f, is := range now {
		switch {
		case fact(f) == killed:
		case fact(f).possible():
			t.of[f] = observe(t.of[f], before, at, is, true)
		default:
			t.of[f] = observe(t.of[f], at, asked, is, false)
		}
	}
}

// observe adds an observation to intervals: whether a fact applies from one time until another. For
// a possible fact, its end is the time of the observation that it does not apply.
func observe(in []interval, from, until time.Time, is, possible bool) []interval {
	open := len(in) > 0 && !in[len(in)-1].closed
	switch {
	case open:
		last := &in[len(in)-1]
		last.closed = !is
		if (is || possible) && until.After(last.until) {
			last.until = until
		}
	case is:
		in = append(in, interval{from: from, until: from})
		if possible {
			in[len(in)-1].until = until
		}
	}
	return in
}

// state returns the facts of a request of a claim, given the pods of the node that have not ended.
// A request that no container of a pod names does not belong to the pod, although PodResources
// lists the whole claim for it.
func state(c *resourceapi.ResourceClaim, pods map[types.UID]*corev1.Pod, request string) (now moment) {
	for _, p := range consumers(c, pods) {
		runs, names, stays := HasStarted(p), IsListed(p, c.Name), p.DeletionTimestamp == nil && p.Spec.NodeName != ""
		uses := UsesRequest(p, c.Name, request)
		for f, is := range (moment{
			reserved: true, started: runs && uses, named: names, listed: runs && names,
			staying: stays && uses, startedStaying: runs && stays && uses, listedStaying: runs && names && stays,
		}) {
			now[f] = now[f] || is
		}
	}
	return now
}

// consumers returns the pods for which a claim is reserved, directly or by their group.
func consumers(c *resourceapi.ResourceClaim, pods map[types.UID]*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, consumer := range c.Status.ReservedFor {
		if p := pods[consumer.UID]; p != nil && consumer.Resource == "pods" {
			out = append(out, p)
		}
		if consumer.Resource != "podgroups" {
			continue
		}
		for _, p := range pods {
			if g := p.Spec.SchedulingGroup; p.Namespace == c.Namespace && g != nil && g.PodGroupName != nil &&
				*g.PodGroupName == consumer.Name && names(p, c.Name) {
				out = append(out, p)
			}
		}
	}
	return out
}

// names reports whether a pod uses a claim.
func names(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return c.ResourceClaimName != nil && *c.ResourceClaimName == claim
	}) || slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool {
		return s.ResourceClaimName != nil && *s.ResourceClaimName == claim
	})
}

// HasStarted reports whether any container of a pod has started.
func HasStarted(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodRunning {
		return true
	}
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	return slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
	})
}

// IsListed reports whether a container that PodResources lists names a claim of the pod. The
// containers of the claim for extended resources name it implicitly.
func IsListed(p *corev1.Pod, claim string) bool {
	if s := p.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName == claim {
		return true
	}
	local := localNames(p, claim)
	names := func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.Resources.Claims,
			func(r corev1.ResourceClaim) bool { return slices.Contains(local, r.Name) })
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways && names(c) {
			return true
		}
	}
	for i := range p.Spec.Containers {
		if names(&p.Spec.Containers[i]) {
			return true
		}
	}
	return false
}

// UsesRequest reports whether a container of the pod names the whole claim or the request, or no
// container names the claim.
func UsesRequest(p *corev1.Pod, claim, request string) bool {
	request, _, _ = strings.Cut(request, "/")
	local, named := localNames(p, claim), false
	for _, containers := range [2][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			for _, r := range containers[i].Resources.Claims {
				if !slices.Contains(local, r.Name) {
					continue
				}
				if named = true; r.Request == "" || r.Request == request {
					return true
				}
			}
		}
	}
	return !named
}

// localNames returns the pod's own names for a claim.
func localNames(p *corev1.Pod, claim string) []string {
	var local []string
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil && *c.ResourceClaimName == claim {
			local = append(local, c.Name)
		}
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil && *s.ResourceClaimName == claim {
			local = append(local, s.Name)
		}
	}
	return local
}

// length returns the total length of the intervals. Overlaps count once.
func length(all []interval) time.Duration {
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.from.UnixNano(), b.from.UnixNano()) })
	var sum time.Duration
	var end time.Time
	for _, i := range all {
		if i.from.Before(end) {
			i.from = end
		}
		if i.until.After(i.from) {
			sum += i.until.Sub(i.from)
			end = i.until
		}
	}
	return sum
}

// covers reports whether one of the intervals includes all of a time.
func covers(all []interval, from, until time.Time) bool {
	return slices.ContainsFunc(all, func(i interval) bool { return !i.from.After(from) && !i.until.Before(until) })
}

// meets reports whether one of the intervals overlaps a time.
func meets(all []interval, from, until time.Time) bool {
	return slices.ContainsFunc(all, func(i interval) bool { return !i.from.After(until) && !i.until.Before(from) })
}

// Unlisted reports whether PodResources never had a reason to list a claim.
func (t *Truth) Unlisted(claim types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h, life := range t.holds {
		if h.uid == claim && len(life.of[listed]) > 0 {
			return false
		}
	}
	return true
}

// LastUse returns when a pod that has started was last observed to use the request of a claim for
// which it got a device, if others used the claim for longer: no pod has the device from then on,
// although it stays prepared. Zero: there was no such time.
func (t *Truth) LastUse(claim types.UID, device driver.ID) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	var of, ofAll time.Time
	for h, life := range t.holds {
		if h.uid != claim {
			continue
		}
		for _, i := range life.of[started] {
			if i.until.After(ofAll) {
				ofAll = i.until
			}
			if h.id == device && i.until.After(of) {
				of = i.until
			}
		}
	}
	if !of.Before(ofAll) {
		return time.Time{}
	}
	return of
}

// Reservation returns a span of time in which a claim was prepared, extended by the overlapping
// reservations of the claim for pods of the node.
func (t *Truth) Reservation(claim types.UID, from, until time.Time) (time.Time, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, last := from, until
	for h, life := range t.holds {
		for _, i := range life.of[reserved] {
			if h.uid != claim || !meets([]interval{i}, from, until) {
				continue
			}
			if i.from.Before(first) {
				first = i.from
			}
			if i.until.After(last) {
				last = i.until
			}
		}
	}
	return first, last
}
