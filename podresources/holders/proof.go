package holders

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// proof is what shows that a pod has ended that an answer of the kubelet lacks or, if nothing does,
// the reason why it is kept.
type proof podresources.Reason

const (
	proofOfKubelet proof = "kubelet" // the answer is believed for the pod
	proofOfCgroup  proof = "cgroup"  // the pod's cgroup was removed
	// proofOfTime: a restarted kubelet has lacked the pod for the grace, and no process is known.
	proofOfTime proof = "time"
	// proofOfEnd: the pod had ended by its object, with all containers, when the answer was requested.
	proofOfEnd proof = "end"
	// proofOfName: the answer lists the pod's name, as another pod that has replaced it.
	proofOfName proof = "name"
	// noneProcesses: the answer is believed for the pod, but its cgroup has processes.
	noneProcesses = proof(podresources.ReasonProcesses)
	// noneRestarted: the kubelet may not know its pods yet.
	noneRestarted = proof(podresources.ReasonRestarted)
)

// listedPod is a pod as described by the last answer that lists its name.
type listedPod struct {
	uid     string // empty: unknown
	kubelet podresources.Instance
	devices bool // it holds devices
	// If later answers lack the pod and it is kept: the reason, and the time of the first such answer.
	kept          proof
	unlistedSince time.Time // zero: the last answer lists it
	last          time.Time // if unlistedSince is set: when the last answer that lists it was requested
	cgroup        podresources.CgroupState
}

// proofOf returns the proof that a pod has ended that an answer lacks. by is what the answer itself
// proves: one of proofOfKubelet, proofOfEnd and proofOfName, or nothing. since is when the pod was
// first missing.
func (e *Evidence) proofOf(by proof, cgroup podresources.CgroupState, since, asked time.Time) proof {
	switch alive := cgroup == podresources.CgroupAlive; {
	case by == proofOfEnd, by == proofOfName:
		return by
	case cgroup == podresources.CgroupGone:
		return proofOfCgroup
	case by == proofOfKubelet && alive:
		return noneProcesses
	case by == proofOfKubelet:
		return by
	case alive || asked.Sub(driver.Later(since, e.kubelet.since)) < e.grace:
		return noneRestarted
	default:
		return proofOfTime
	}
}

// believed returns what an answer without a listed pod proves. p is nil if no object of the pod is
// known. The answer is proof if its kubelet process has listed the pod, has reported the end of the
// pod, or has listed pods from the API server for kubeletSettles. A restarted kubelet lists nothing
// at first, then static pods, then the pods that it reads from the API server. If the kubelet
// process is unknown, it must have listed a pod from the API server. An answer without any pods
// proves nothing by itself: the exporter runs in a pod of the node. It is proof together with a
// list of the Pods API that lacks the pod and that was requested after the last answer with the
// pod, if both answers are from one kubelet process.
func (e *Evidence) believed(l *listedPod, p *pod, a *Answer) proof {
	same := l.kubelet == a.Kubelet && a.Kubelet != ""
	switch {
	case p != nil && p.ends() && !p.since.Before(e.kubelet.since) && p.since.Before(a.Asked):
	case same && p != nil && p.isMissing() && p.missing.After(l.last) && p.missing.Before(a.Asked):
	case len(a.Pods) > 0 && (same || a.Kubelet == "" && !e.kubelet.ready.IsZero() || e.knowsPods(a.Asked)):
	default:
		return ""
	}
	if p != nil && p.ends() {
		return proofOfEnd
	}
	return proofOfKubelet
}

// knowsPods reports whether the kubelet has listed pods from the API server for kubeletSettles,
// after which it knows all of them.
func (e *Evidence) knowsPods(asked time.Time) bool {
	return !e.kubelet.ready.IsZero() && asked.Sub(e.kubelet.ready) >= kubeletSettles
}

// unlistPod processes that an answer lacks a pod that was listed before. It reports whether the pod
// is kept.
func (e *Evidence) unlistPod(name podresources.Pod, l *listedPod, a *Answer) (kept bool) {
	uid := cmp.Or(l.uid, e.uidOf(name))
	p := e.pods[uid]
	if p != nil && p.state.over() {
		return false
	}
	if l.uid = uid; l.unlistedSince.IsZero() {
		l.unlistedSince, l.last = a.Asked, e.asked
	}
	if cgroup, asked := a.Cgroups[uid]; asked {
		l.cgroup = cgroup
	}
	found := e.proofOf(e.believed(l, p, a), l.cgroup, l.unlistedSince, a.Asked)
	switch {
	case found == noneRestarted, found == noneProcesses:
		l.kept = found
		return true
	case p == nil:
	case !p.seen.Before(a.Asked), p.state == Ending && p.Running > 0 && p.missing.IsZero():
		return false
	case a.Asked.Sub(l.unlistedSince) < catchUp && e.wasAnother(p, l.last):
		l.devices = false
		return true
	}
	e.endListed(name, l, found, a.Kubelet, a.Asked)
	return false
}

// endListed ends a pod that was listed. kubelet is the process that lists it no more; empty: it is
// unknown, or did not answer.
func (e *Evidence) endListed(
	name podresources.Pod, l *listedPod, found proof, kubelet podresources.Instance, at time.Time,
) {
	same := kubelet != "" && l.kubelet == kubelet
	if p := e.pods[l.uid]; p != nil {
		e.apply(p, unlisted, at)
		p.gone = found == proofOfCgroup || p.Started && same
		return
	}
	// The next pod of the name may be listed before there are files of it.
	of := endedUID{uid: l.uid, at: at}
	if found != proofOfCgroup {
		of.kubelet = kubelet
	}
	if (found == proofOfCgroup || same) && l.uid != "" && !podresources.IsStaticUID(l.uid) && len(e.ended) < maxPods {
		e.ended[name] = of
	}
}

// wasAnother reports whether an answer requested at the given time may have listed the previous pod
// with p's name. This is possible while p has not started: the API server may know p earlier than
// the kubelet does.
func (e *Evidence) wasAnother(p *pod, asked time.Time) bool {
	if p.Started || p.ends() {
		return false
	}
	for _, other := range e.named[p.Pod] {
		if other.state.over() && asked.Sub(other.over) < catchUp {
			return true
		}
	}
	return false
}

// endUnlisted processes that an answer lists only these pods, with those that are kept. A pod that
// was not listed before has ended if it was ending, and a listed one if another pod has replaced
// it. One that the kubelet's own list of pods lacked is forgotten.
func (e *Evidence) endUnlisted(listed map[podresources.Pod]*listedPod, a *Answer) {
	for uid, p := range e.pods {
		var by proof
		l, before := listed[p.Pod], e.listed[p.Pod]
		switch {
		case p.state.over(), l != nil && l.uid == uid:
			continue
		case p.ends() && p.since.Before(a.Asked):
			by = proofOfEnd
		case p.replaced && p.seen.Before(a.Asked) && before != nil && before.uid == uid &&
			l != nil && l.unlistedSince.IsZero() && l.uid != "":
			by = proofOfName
		case !p.isMissing() || !p.missing.Before(a.Asked):
			continue
		case e.knowsPods(a.Asked):
			by = proofOfKubelet
		}
		switch found := e.proofOf(by, a.Cgroups[uid], p.missing, a.Asked); found {
		case noneRestarted:
		case proofOfEnd, proofOfName:
			e.apply(p, unlisted, a.Asked)
		default:
			e.drop(uid)
		}
	}
}

// takeCgroups processes the states of the cgroups of pods, by UID. If the kubelet does not answer,
// or does not list a pod, they show whether it has ended.
func (e *Evidence) takeCgroups(states map[string]podresources.CgroupState, at time.Time) {
	if len(states) == 0 {
		return
	}
	before := len(e.listed)
	for name, l := range e.listed {
		uid := cmp.Or(l.uid, e.uidOf(name))
		p := e.pods[uid]
		over := p != nil && p.state.over() // it holds nothing; the listed pod may be the next one with the name
		cgroup, known := states[uid]
		if !known || over || l.unlistedSince.IsZero() && e.failing.IsZero() {
			continue
		}
		var by proof
		if l.kept == noneProcesses {
			by = proofOfKubelet
		}
		switch found := e.proofOf(by, cgroup, l.unlistedSince, at); {
		case found == proofOfCgroup || found == proofOfKubelet:
			if l.uid = uid; p == nil || p.state != Ending {
				e.endListed(name, l, found, "", at)
			}
			delete(e.listed, name)
		case cgroup != l.cgroup:
			l.cgroup, e.changed = cgroup, true
		}
	}
	e.endGone(states, at)
	e.changed = e.changed || len(e.listed) != before
}

// endGone ends the ending pods whose cgroups are gone.
func (e *Evidence) endGone(states map[string]podresources.CgroupState, at time.Time) {
	for uid, state := range states {
		if p := e.pods[uid]; p != nil && p.state == Ending && state == podresources.CgroupGone {
			e.apply(p, cgroupGone, at)
		}
	}
}

// unsure returns the UIDs of the pods for which the state of the cgroup decides what they hold.
// answer is an answer that has not been processed yet, or nil. If the kubelet did not answer
// (answered), these are all listed pods with devices.
func (b *Book) unsure(answer *Answer, answered bool) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &b.evidence
	uids := map[string]bool{}
	for name, l := range e.listed {
		lacks := !l.unlistedSince.IsZero()
		if answer != nil {
			_, has := answer.Pods[name]
			lacks = !has
		}
		if lacks || !answered && l.devices {
			uids[cmp.Or(l.uid, e.uidOf(name))] = true
		}
	}
	for uid, p := range e.pods {
		if p.state == Ending || p.isMissing() {
			uids[uid] = true
		}
	}
	delete(uids, "") // unknown
	return slices.Sorted(maps.Keys(uids))
}

// doubts reports whether any pod is kept because the kubelet may not know its pods yet, and whether
// an equal answer with equal states of cgroups would change nothing. This is so if no pod is kept
// for a limited time.
func (e *Evidence) doubts() (doubts, settled bool) {
	settled = true
	for _, l := range e.listed {
		if !l.unlistedSince.IsZero() {
			doubts = doubts || l.devices && l.kept == noneRestarted
			settled = settled && l.kept == noneProcesses
		}
	}
	for _, p := range e.pods {
		settled = settled && !p.isMissing()
	}
	return doubts, settled
}

// expire forgets pods that were not bound to the node within keepNominated after the end of their
// nomination. It returns the time at which the holders or their reasons change without new
// evidence; zero: never.
func (e *Evidence) expire(now time.Time) (next time.Time) {
	if over := e.failing.Add(unansweredAfter); !e.failing.IsZero() && over.After(now) {
		next = over
	}
	for uid, p := range e.pods {
		over := p.left.Add(keepNominated)
		switch {
		case p.state != Waiting || p.left.IsZero():
		case !over.After(now):
			e.drop(uid)
		case next.IsZero() || over.Before(next):
			next = over
		}
	}
	return next
}

// Quiet reports whether the kubelet need not be asked, since its last answer is still valid. If so,
// the holders are known until shortly before now.
func (b *Book) Quiet(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := b.evidence.asked // an answer that was requested before a change may lack it
	if longest := now.Add(-catchUp); longest.Before(since) {
		since = longest
	}
	quiet := !b.evidence.watched.IsZero() && b.believed && now.Sub(b.evidence.asked) < pollInterval &&
		b.changed.Before(since) && len(b.evidence.changes.since(since)) == 0
	if quiet {
		b.knownUntil = driver.Later(b.knownUntil, now.Add(-watchLag))
	}
	return quiet
}
