package holders

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Answer is an answer of the kubelet's PodResources service.
type Answer struct {
	Asked   time.Time                     // when it was asked for
	Arrived time.Time                     // when it came: the kubelet gave it in between
	Kubelet podresources.Instance         // which kubelet gave it; empty: unknown
	Pods    map[podresources.Pod]struct{} // all that it lists, those without devices too
	// Allocations are what it lists. They must not change. The same slice again costs little.
	Allocations []podresources.Allocation
	// UIDs are those of listed pods as the node's files say, for pods of which no object is known.
	UIDs map[podresources.Pod]string
	// Cgroups are the states of the pods that Book.unsure returned.
	Cgroups map[string]podresources.CgroupState
}

// repeats reports whether the answer says what another one said.
func (a *Answer) repeats(before *Answer) bool {
	return a.Kubelet == before.Kubelet && sameMap(a.Pods, before.Pods) && maps.Equal(a.UIDs, before.UIDs) &&
		maps.Equal(a.Cgroups, before.Cgroups) && sameSlice(a.Allocations, before.Allocations)
}

// sameMap reports whether both are the same map, not only equal ones.
func sameMap[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// listedPod is a pod, by its name, as the last answer that lists it has it.
type listedPod struct {
	uid     string // empty: unknown
	kubelet podresources.Instance
	devices bool // it holds some
	// A pod that a later answer lacks is kept for a reason, since the first of these answers.
	kept   podresources.Reason
	lacked time.Time // zero: the last answer lists it
	last   time.Time // when the last answer that lists it was asked for, if it is lacked
	cgroup podresources.CgroupState
}

// kubelet is what is known of the kubelet that answers.
type kubelet struct {
	instance podresources.Instance
	// since is when its first answer was asked for, or its pods were before that; zero: its instance
	// is unknown.
	since time.Time
	// ready is when its first answer arrived that lists a pod of the API server: static pods come
	// first. Zero: it may not know these yet.
	ready time.Time
}

// unsureOf returns the pods, by UID, of which the state of the cgroup decides who holds what, given
// an answer that is not taken yet; nil: there is none, all that hold devices are unsure if the
// kubelet does not answer.
func (e *Evidence) unsureOf(answer *Answer, answered bool) []string {
	var uids []string
	for name, l := range e.listed {
		uid := e.uidListed(name, l)
		if uid == "" {
			continue
		}
		lacks := !l.lacked.IsZero()
		if answer != nil {
			_, has := answer.Pods[name]
			lacks = !has
		}
		if lacks || !answered && l.devices {
			uids = append(uids, uid)
		}
	}
	for uid, p := range e.pods {
		if (p.state == Ending || p.isMissing()) && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// uidListed returns the UID of a listed pod: as it was when it was listed.
func (e *Evidence) uidListed(name podresources.Pod, l *listedPod) string {
	if l.uid != "" {
		return l.uid
	}
	return e.uidOf(name)
}

// answer takes an answer.
func (e *Evidence) answer(a *Answer) {
	if e.kubelet.instance == "" || a.Kubelet != e.kubelet.instance {
		e.kubelet = kubelet{instance: a.Kubelet}
		if a.Kubelet != "" {
			e.kubelet.since = a.Asked
		}
		if a.Kubelet != "" && !e.watched.IsZero() && e.watched.Before(a.Asked) {
			e.kubelet.since = e.watched // it is of this kubelet: one of another would have ended
		}
	}
	e.failing = time.Time{}
	if e.kubelet.ready.IsZero() && e.listsPodOfServer(a) {
		e.kubelet.ready = later(a.Asked, a.Arrived)
	}
	e.takeCgroups(a.Cgroups, a.Asked)
	next := e.listPodsOf(a)
	kept := map[podresources.Pod]bool{}
	for name, before := range e.listed {
		if _, has := a.Pods[name]; has {
			e.replacePod(before.uid, next[name].uid, a.Asked)
			continue
		}
		if l := e.lackPod(name, before, a); l != nil {
			next[name] = l
			kept[name] = l.devices
		}
	}
	e.endUnlisted(next, a)
	e.allocations = e.withKept(a.Allocations, kept)
	e.listed, e.given, e.asked = next, a.Allocations, a.Asked
	e.changeUIDs()
}

// endUnlisted takes that an answer lists no other pods than these: one that is ending has ended,
// and one that the kubelet's own list of pods lacked is unknown, unless the kubelet has restarted.
func (e *Evidence) endUnlisted(listed map[podresources.Pod]*listedPod, a *Answer) {
	for uid, p := range e.pods {
		switch l := listed[p.Pod]; {
		case l != nil && l.uid == uid:
		case p.ends() && p.since.Before(a.Asked):
			e.put(p.take(lacked, a.Asked))
		case !p.isMissing() || !p.missing.Before(a.Asked):
		case e.knowsPods(a.Asked), a.Cgroups[uid] == podresources.CgroupGone,
			a.Cgroups[uid] != podresources.CgroupAlive && a.Asked.Sub(later(p.missing, e.kubelet.since)) >= e.grace:
			e.drop(uid)
			e.names = nil
		}
	}
}

// listPodsOf returns the pods that an answer lists.
func (e *Evidence) listPodsOf(a *Answer) map[podresources.Pod]*listedPod {
	next := make(map[podresources.Pod]*listedPod, len(a.Pods))
	for name := range a.Pods {
		l := &listedPod{uid: e.uidAnswered(a, name), kubelet: a.Kubelet}
		next[name] = l
		e.listPod(l, a.Asked)
	}
	for i := range a.Allocations {
		for j := range a.Allocations[i].Holders {
			if l := next[a.Allocations[i].Holders[j].Pod]; l != nil {
				l.devices = true
			}
		}
	}
	return next
}

// listPod notes that an answer lists a pod. A static pod may have come back with its UID, whatever
// had ended it.
func (e *Evidence) listPod(l *listedPod, asked time.Time) {
	p := e.pods[l.uid]
	if p != nil && p.state == Ended && (p.by == lacked && !p.gone || p.Static) && p.since.Before(asked) {
		again := p.take(listed, asked)
		e.put(again.take(factOf(&again.PodFacts), asked))
	}
}

// lackPod takes that an answer lacks a pod that was listed; it returns the pod if it is kept all
// the same.
func (e *Evidence) lackPod(name podresources.Pod, before *listedPod, a *Answer) *listedPod {
	uid := e.uidListed(name, before)
	p := e.pods[uid]
	if p != nil && p.state.over() {
		return nil
	}
	l := *before
	l.uid = uid
	if l.lacked.IsZero() {
		l.lacked, l.last = a.Asked, e.asked
	}
	if cgroup, asked := a.Cgroups[uid]; asked {
		l.cgroup = cgroup
	}
	believed := e.believed(&l, p, a)
	switch {
	case l.cgroup == podresources.CgroupGone:
	case believed && l.cgroup == podresources.CgroupAlive && (p == nil || !p.ends()):
		l.kept = podresources.ReasonProcesses
		return &l
	case !believed && (l.cgroup == podresources.CgroupAlive || a.Asked.Sub(later(l.lacked, e.kubelet.since)) < e.grace):
		l.kept = podresources.ReasonRestarted
		return &l
	}
	runs := p != nil && p.state == Ending && p.Running > 0 && p.missing.IsZero()
	if p != nil && p.seen.Before(a.Asked) && !runs {
		if a.Asked.Sub(l.lacked) < catchUp && e.wasAnother(p, l.last) {
			l.devices = false
			return &l
		}
		after := p.take(lacked, a.Asked)
		after.gone = l.cgroup == podresources.CgroupGone || p.Started && a.Kubelet != "" && before.kubelet == a.Kubelet
		e.put(after)
	}
	return nil
}

// replacePod takes that the kubelet lists another pod of the name that one had.
func (e *Evidence) replacePod(uid, by string, asked time.Time) {
	p := e.pods[uid]
	if p != nil && by != "" && by != uid && p.replaced && p.seen.Before(asked) {
		e.put(p.take(lacked, asked))
	}
}

// wasAnother reports whether the pod that the kubelet listed by this one's name, when it was asked
// at a time, may have been the one before it, since this one has not started: the API server is
// ahead of the kubelet, which is given a while to list it.
func (e *Evidence) wasAnother(p *pod, asked time.Time) bool {
	if p.Started || p.ends() {
		return false
	}
	for _, other := range e.pods {
		if other.Pod == p.Pod && other.state.over() && asked.Sub(other.over) < catchUp {
			return true
		}
	}
	return false
}

// believed reports whether it proves anything that an answer lacks a pod, nil if no object of it
// is known: the kubelet that gave it had listed the pod before, or has said since it began that
// the pod has ended, or has listed pods of the API server for a while. One that has restarted
// lists nothing at first, then static pods, and the others when it has asked the API server. A
// kubelet of which it is not known whether it is the same one must list a pod of these. An
// answer without any pod proves nothing by itself: on a node that runs pods the exporter is one
// of them. It does with a list of the Pods API that lacks the pod, too, which was asked for
// after the last answer that had it, if all are of one kubelet.
func (e *Evidence) believed(l *listedPod, p *pod, a *Answer) bool {
	switch {
	case p != nil && p.ends() && !p.since.Before(e.kubelet.since) && p.since.Before(a.Asked):
		return true
	case p != nil && p.isMissing() && l.kubelet == a.Kubelet && a.Kubelet != "" &&
		p.missing.After(l.last) && p.missing.Before(a.Asked):
		return true
	case len(a.Pods) == 0:
		return false
	case a.Kubelet == "":
		return !e.kubelet.ready.IsZero()
	default:
		return l.kubelet == a.Kubelet || e.knowsPods(a.Asked)
	}
}

// knowsPods reports whether the kubelet has listed pods of the API server for so long that it has
// them all.
func (e *Evidence) knowsPods(asked time.Time) bool {
	return !e.kubelet.ready.IsZero() && asked.Sub(e.kubelet.ready) >= kubeletSettles
}

// listsPodOfServer reports whether an answer lists a pod that comes from the API server: one with a
// claim, which a static pod can't have, or one whose UID is no hash of a manifest.
func (e *Evidence) listsPodOfServer(a *Answer) bool {
	if slices.ContainsFunc(a.Allocations, func(a podresources.Allocation) bool { return !a.ByPlugin() }) {
		return true
	}
	for name := range a.Pods {
		if uid := e.uidAnswered(a, name); uid != "" && !e.isStatic(uid) {
			return true
		}
	}
	return false
}

// uidAnswered returns the UID of a pod that an answer lists, "" where it is unknown.
func (e *Evidence) uidAnswered(a *Answer, name podresources.Pod) string {
	if uid := a.UIDs[name]; uid != "" {
		return uid
	}
	uid := e.uidOf(name)
	p := e.pods[uid]
	if p.recreated(a.Asked) {
		return ""
	}
	if p != nil && p.seen.After(a.Asked) {
		return e.uidBefore(p, a.Asked)
	}
	return uid
}

// uidBefore returns the UID of the pod that had the name of another one when an answer was asked
// for, before that was seen: the pod itself if none is known.
func (e *Evidence) uidBefore(p *pod, asked time.Time) string {
	before := p
	for _, other := range e.pods {
		if other.Pod == p.Pod && !other.seen.After(asked) && (!other.state.over() || other.over.After(asked)) &&
			(before == p || newerPod(other, before)) {
			before = other
		}
	}
	return before.UID
}

func (e *Evidence) isStatic(uid string) bool {
	p := e.pods[uid]
	return podresources.IsStaticUID(uid) || p != nil && p.Static
}

// noAnswer takes that the kubelet was asked and did not answer. A pod whose cgroup is gone holds
// nothing; ended reports that there was one.
func (e *Evidence) noAnswer(cgroups map[string]podresources.CgroupState, at time.Time) (ended bool) {
	if e.failing.IsZero() {
		e.failing, e.changed = at, true
	}
	before := len(e.listed)
	e.takeCgroups(cgroups, at)
	return len(e.listed) != before
}

// takeCgroups takes the states of pods' cgroups, by UID.
func (e *Evidence) takeCgroups(states map[string]podresources.CgroupState, at time.Time) {
	if len(states) == 0 {
		return
	}
	ended := map[podresources.Pod]bool{}
	for name, l := range e.listed {
		uid := e.uidListed(name, l)
		state, known := states[uid]
		p := e.pods[uid]
		over := p != nil && p.state.over() // it holds nothing, and what was listed may be the next one's of its name
		if !known || over || l.lacked.IsZero() && e.failing.IsZero() {
			continue
		}
		if state == podresources.CgroupGone ||
			l.kept == podresources.ReasonProcesses && !l.lacked.IsZero() && state != podresources.CgroupAlive {
			ended[name] = true
			continue
		}
		if state != l.cgroup {
			after := *l
			after.cgroup = state
			e.listed[name], e.changed = &after, true
		}
	}
	for name := range ended {
		e.endListed(name, states, at)
	}
	for uid, state := range states {
		if p := e.pods[uid]; p != nil && p.state == Ending && state == podresources.CgroupGone {
			e.put(p.take(cgroupGone, at))
		}
	}
	if len(ended) > 0 {
		e.allocations, e.filled, e.changed = without(e.allocations, ended), true, true
	}
}

// endListed takes that the cgroup of a listed pod says that it has ended.
func (e *Evidence) endListed(name podresources.Pod, states map[string]podresources.CgroupState, at time.Time) {
	if p := e.pods[e.uidListed(name, e.listed[name])]; p != nil && p.state != Ending {
		after := p.take(lacked, at)
		after.gone = states[p.UID] == podresources.CgroupGone
		e.put(after)
	}
	delete(e.listed, name)
}

// withKept returns the allocations of an answer with those of pods that it lacks and that are kept.
func (e *Evidence) withKept(
	answered []podresources.Allocation, kept map[podresources.Pod]bool,
) []podresources.Allocation {
	maps.DeleteFunc(kept, func(_ podresources.Pod, devices bool) bool { return !devices })
	if len(kept) == 0 {
		if sameSlice(answered, e.given) && !e.filled {
			return e.allocations
		}
		e.filled = false
		return answered
	}
	e.filled = true
	out := slices.Clone(answered)
	for _, a := range e.allocations {
		a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), func(h podresources.Holder) bool { return !kept[h.Pod] })
		if len(a.Holders) == 0 {
			continue
		}
		i := slices.IndexFunc(out, func(o podresources.Allocation) bool { return o.Compare(a) == 0 })
		if i < 0 {
			out = append(out, a)
			continue
		}
		out[i].Holders = slices.Concat(out[i].Holders, a.Holders)
		podresources.SortHolders(&out[i])
	}
	slices.SortFunc(out, podresources.Allocation.Compare)
	return out
}

// without returns the allocations without the holders of these pods.
func without(allocations []podresources.Allocation, pods map[podresources.Pod]bool) []podresources.Allocation {
	dropped := func(h podresources.Holder) bool { return pods[h.Pod] }
	kept := make([]podresources.Allocation, 0, len(allocations))
	for _, a := range allocations {
		if slices.ContainsFunc(a.Holders, dropped) {
			a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), dropped)
		}
		if len(a.Holders) > 0 {
			kept = append(kept, a)
		}
	}
	return kept
}

// changeUIDs gives the holders the UIDs of the listed pods. What was handed out does not change.
func (e *Evidence) changeUIDs() {
	shared := true
	for i := range e.allocations {
		sharedHolders := true
		for j, h := range e.allocations[i].Holders {
			l := e.listed[h.Pod]
			if l == nil || l.uid == h.UID {
				continue
			}
			if shared {
				e.allocations, shared = slices.Clone(e.allocations), false
			}
			if sharedHolders {
				e.allocations[i].Holders, sharedHolders = slices.Clone(e.allocations[i].Holders), false
			}
			e.allocations[i].Holders[j].UID = l.uid
		}
	}
}

// sameSlice reports whether both slices are of the same memory, or empty.
func sameSlice(a, b []podresources.Allocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// doubts reports whether a pod is kept because the kubelet may not know its pods yet.
func (e *Evidence) doubts() bool {
	for _, l := range e.listed {
		if l.devices && !l.lacked.IsZero() && l.kept == podresources.ReasonRestarted {
			return true
		}
	}
	return false
}

// settled reports that the same answer again, with the same cgroups, says the same: no pod is kept
// for a time.
func (e *Evidence) settled() bool {
	for _, l := range e.listed {
		if !l.lacked.IsZero() && l.kept != podresources.ReasonProcesses {
			return false
		}
	}
	for _, p := range e.pods {
		if p.isMissing() {
			return false
		}
	}
	return true
}

// nextChange returns when time alone changes who holds what, or why; zero: never.
func (e *Evidence) nextChange(now time.Time) time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !e.failing.IsZero() {
		at(e.failing.Add(unansweredAfter))
	}
	for _, p := range e.pods {
		if p.state == Waiting && !p.left.IsZero() {
			at(p.left.Add(keepNominated))
		}
	}
	return next
}
