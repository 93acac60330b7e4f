package holders

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

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
	return a.Kubelet == before.Kubelet && sameMap(a.Pods, before.Pods) && maps.Equal(a.UIDs, before.UIDs) &&
		maps.Equal(a.Cgroups, before.Cgroups) && sameSlice(a.Allocations, before.Allocations)
}

// sameMap reports whether both variables refer to one map. Equal maps are not enough.
func sameMap[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// listedPod is a pod as described by the last answer that lists its name.
type listedPod struct {
	uid     string // empty: unknown
	kubelet podresources.Instance
	devices bool // it holds devices
	// If later answers lack the pod and it is kept: the reason, and the time of the first such answer.
	kept          podresources.Reason
	unlistedSince time.Time // zero: the last answer lists it
	last          time.Time // if unlistedSince is set: when the last answer that lists it was requested
	cgroup        podresources.CgroupState
}

// endedUID is the UID, from files of the node, of a pod that has ended. The next pod with its name
// may be listed before there are files of it.
type endedUID struct {
	uid     string
	kubelet podresources.Instance // another one may list the pod again; empty: none
	at      time.Time
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

// unsureOf returns the UIDs of the pods for which the state of the cgroup decides what they hold.
// answer is an answer that has not been processed yet, or nil. If the kubelet did not answer, these
// are all listed pods with devices.
func (e *Evidence) unsureOf(answer *Answer, answered bool) []string {
	var uids []string
	for name, l := range e.listed {
		uid := e.uidListed(name, l)
		if uid == "" {
			continue
		}
		lacks := !l.unlistedSince.IsZero()
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

// uidListed returns the UID that a listed pod had when it was listed.
func (e *Evidence) uidListed(name podresources.Pod, l *listedPod) string {
	if l.uid != "" {
		return l.uid
	}
	return e.uidOf(name)
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
	if e.kubelet.ready.IsZero() && e.listsPodOfServer(a) {
		e.kubelet.ready = driver.Later(a.Asked, a.Arrived)
	}
	e.takeCgroups(a.Cgroups, a.Asked)
	maps.DeleteFunc(e.ended, func(_ podresources.Pod, of endedUID) bool { return a.Asked.Sub(of.at) > keepDeleted })
	next := e.listPodsOf(a)
	kept := map[podresources.Pod]bool{}
	for name, before := range e.listed {
		if _, has := a.Pods[name]; has {
			e.replacePod(before.uid, next[name].uid, a.Asked)
			continue
		}
		if l := e.unlistPod(name, before, a); l != nil {
			next[name] = l
			kept[name] = l.devices
		}
	}
	e.endUnlisted(next, a)
	e.allocations = e.withKept(a.Allocations, kept)
	e.listed, e.given, e.asked = next, a.Allocations, a.Asked
	e.changeUIDs()
}

// endUnlisted processes that an answer lists only these pods. An unlisted pod that was ending has
// ended. One that the kubelet's own list of pods lacked is forgotten, unless the kubelet may have
// restarted.
func (e *Evidence) endUnlisted(listed map[podresources.Pod]*listedPod, a *Answer) {
	for uid, p := range e.pods {
		switch l := listed[p.Pod]; {
		case l != nil && l.uid == uid:
		case p.ends() && p.since.Before(a.Asked):
			e.put(p.apply(unlisted, a.Asked))
		case !p.isMissing() || !p.missing.Before(a.Asked):
		case e.proofOf(e.knowsPods(a.Asked), a.Cgroups[uid], p.missing, a.Asked) != noneRestarted:
			e.drop(uid)
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

// listPod records that an answer lists a pod. A static pod may be started again with the same UID,
// whatever ended it.
func (e *Evidence) listPod(l *listedPod, asked time.Time) {
	p := e.pods[l.uid]
	if p != nil && p.state == Ended && (p.by == unlisted && !p.gone || p.Static) && p.since.Before(asked) {
		again := p.apply(listed, asked)
		e.put(again.apply(factOf(&again.PodFacts), asked))
	}
}

// unlistPod processes that an answer lacks a pod that was listed before. It returns the pod if it
// is kept.
func (e *Evidence) unlistPod(name podresources.Pod, before *listedPod, a *Answer) *listedPod {
	uid := e.uidListed(name, before)
	p := e.pods[uid]
	if p != nil && p.state.over() {
		return nil
	}
	l := *before
	l.uid = uid
	if l.unlistedSince.IsZero() {
		l.unlistedSince, l.last = a.Asked, e.asked
	}
	if cgroup, asked := a.Cgroups[uid]; asked {
		l.cgroup = cgroup
	}
	found := e.proofOf(e.believed(&l, p, a), l.cgroup, l.unlistedSince, a.Asked)
	if found == noneRestarted || found == noneProcesses && (p == nil || !p.ends()) {
		l.kept = found
		return &l
	}
	runs := p != nil && p.state == Ending && p.Running > 0 && p.missing.IsZero()
	if p != nil && p.seen.Before(a.Asked) && !runs {
		if a.Asked.Sub(l.unlistedSince) < catchUp && e.wasAnother(p, l.last) {
			l.devices = false
			return &l
		}
		after := p.apply(unlisted, a.Asked)
		after.gone = found == proofOfCgroup || p.Started && a.Kubelet != "" && before.kubelet == a.Kubelet
		e.put(after)
	}
	switch {
	case p != nil:
	case found == proofOfCgroup:
		e.endUID(name, endedUID{uid: uid, at: a.Asked})
	case a.Kubelet != "" && before.kubelet == a.Kubelet:
		e.endUID(name, endedUID{uid: uid, kubelet: a.Kubelet, at: a.Asked})
	}
	return nil
}

// endUID remembers the UID of a pod without a known object that has ended. A static pod may be
// started again with its UID.
func (e *Evidence) endUID(name podresources.Pod, of endedUID) {
	if of.uid != "" && !podresources.IsStaticUID(of.uid) && len(e.ended) < maxPods {
		e.ended[name] = of
	}
}

// isEnded reports whether the UID that files have for a listed pod is that of an earlier pod with
// its name.
func (e *Evidence) isEnded(a *Answer, name podresources.Pod) bool {
	of, known := e.ended[name]
	return known && of.uid == a.UIDs[name] && (of.kubelet == "" || of.kubelet == a.Kubelet)
}

// replacePod processes that the kubelet lists a different pod with the name of an earlier one.
func (e *Evidence) replacePod(uid, by string, asked time.Time) {
	p := e.pods[uid]
	if p != nil && by != "" && by != uid && p.replaced && p.seen.Before(asked) {
		e.put(p.apply(unlisted, asked))
	}
}

// wasAnother reports whether an answer requested at the given time may have listed the previous pod
// with p's name. This is possible while p has not started: the API server may know p earlier than
// the kubelet does.
func (e *Evidence) wasAnother(p *pod, asked time.Time) bool {
	if p.Started || p.ends() {
		return false
	}
	for other := range e.podsNamed(p.Pod) {
		if other.state.over() && asked.Sub(other.over) < catchUp {
			return true
		}
	}
	return false
}

// uidAnswered returns the UID of a pod that an answer lists, "" if it is unknown.
func (e *Evidence) uidAnswered(a *Answer, name podresources.Pod) string {
	if uid := a.UIDs[name]; uid != "" && !e.isEnded(a, name) {
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

// uidBefore returns the UID of the pod that had p's name when an answer was requested, before p was
// seen. If no such pod is known, it is p's UID.
func (e *Evidence) uidBefore(p *pod, asked time.Time) string {
	before := newest(e.podsNamed(p.Pod), func(other *pod) bool {
		return !other.seen.After(asked) && (!other.state.over() || other.over.After(asked))
	})
	if before == nil {
		before = p
	}
	return before.UID
}

func (e *Evidence) isStatic(uid string) bool {
	p := e.pods[uid]
	return podresources.IsStaticUID(uid) || p != nil && p.Static
}

// noAnswer processes that the kubelet did not answer. Pods whose cgroups are gone hold nothing any
// more; ended reports whether there were any.
func (e *Evidence) noAnswer(cgroups map[string]podresources.CgroupState, at time.Time) (ended bool) {
	if e.failing.IsZero() {
		e.failing, e.changed = at, true
	}
	before := len(e.listed)
	e.takeCgroups(cgroups, at)
	return len(e.listed) != before
}

// takeCgroups processes the states of the cgroups of pods, by UID.
func (e *Evidence) takeCgroups(states map[string]podresources.CgroupState, at time.Time) {
	if len(states) == 0 {
		return
	}
	ended := map[podresources.Pod]bool{}
	for name, l := range e.listed {
		uid := e.uidListed(name, l)
		state, known := states[uid]
		p := e.pods[uid]
		over := p != nil && p.state.over() // it holds nothing; the listed pod may be the next one with the name
		if !known || over || l.unlistedSince.IsZero() && e.failing.IsZero() {
			continue
		}
		if state == podresources.CgroupGone ||
			l.kept == noneProcesses && !l.unlistedSince.IsZero() && state != podresources.CgroupAlive {
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
			e.put(p.apply(cgroupGone, at))
		}
	}
	if len(ended) > 0 {
		e.allocations, e.filled, e.changed = without(e.allocations, ended), true, true
	}
}

// endListed processes the end of a listed pod, as shown by its cgroup.
func (e *Evidence) endListed(name podresources.Pod, states map[string]podresources.CgroupState, at time.Time) {
	uid := e.uidListed(name, e.listed[name])
	gone := states[uid] == podresources.CgroupGone
	if p := e.pods[uid]; p == nil && gone {
		e.endUID(name, endedUID{uid: uid, at: at})
	} else if p != nil && p.state != Ending {
		after := p.apply(unlisted, at)
		after.gone = gone
		e.put(after)
	}
	delete(e.listed, name)
}

// withKept returns the allocations of an answer, together with those of kept pods that it lacks.
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

// without returns the allocations without the holders that are these pods.
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

// changeUIDs sets the holders' UIDs to those of the listed pods. It copies what was returned to
// callers before.
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

// sameSlice reports whether both slices use the same memory, or are empty.
func sameSlice(a, b []podresources.Allocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// doubts reports whether any pod is kept because the kubelet may not know its pods yet.
func (e *Evidence) doubts() bool {
	for _, l := range e.listed {
		if l.devices && !l.unlistedSince.IsZero() && l.kept == noneRestarted {
			return true
		}
	}
	return false
}

// settled reports whether an equal answer with equal states of cgroups would change nothing. This
// is so if no pod is kept for a limited time.
func (e *Evidence) settled() bool {
	for _, l := range e.listed {
		if !l.unlistedSince.IsZero() && l.kept != noneProcesses {
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

// nextChange returns the time at which the holders or their reasons change without new evidence;
// zero: never.
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
