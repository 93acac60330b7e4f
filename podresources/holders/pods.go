package holders

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// pod is what is known about one pod from its objects. It is immutable: new evidence replaces it.
type pod struct {
	podresources.PodFacts
	state State
	since time.Time // time of the evidence for its state
	by    fact      // that evidence
	seen  time.Time // time of the first evidence
	over  time.Time // time of the evidence that it holds nothing any more
	// namesKnown reports that the status from the API server is known, which has ExtendedClaim and the
	// names of claims made from templates.
	namesKnown bool
	replaced   bool      // a newer pod has its name
	left       time.Time // if Waiting: when its nomination ended; zero: it has not ended
	// missing is when the first of the kubelet's lists of pods without this pod was requested; zero:
	// the last list has it. These lists may be incomplete.
	missing time.Time
	gone    bool // its end is proven: its cgroup was removed, or the kubelet that listed it does not any more
}

// factOf returns what an object says about the life of its pod.
func factOf(p *podresources.PodFacts) fact {
	switch {
	case p.Final && p.Local:
		return localFinal
	case p.Final:
		return finished
	case p.Started:
		return started
	case p.Nominated:
		return nominated
	default:
		return bound
	}
}

// apply returns the pod after a fact that was requested, or arrived, at the given time.
func (p *pod) apply(f fact, at time.Time) *pod {
	after := *p
	if next := transitions()[f][p.state]; next != p.state {
		if next.over() && !p.state.over() {
			after.over = at
		}
		after.state, after.by, after.since = next, f, at
		after.gone = (p.gone || f == cgroupGone) && next.over()
	}
	return &after
}

// put sets what is known about a pod. It records whether that has changed.
func (e *Evidence) put(p *pod) {
	before := e.pods[p.UID]
	if before == p || before != nil && reflect.DeepEqual(before, p) {
		return
	}
	if before == nil || before.Pod != p.Pod {
		e.drop(p.UID)
		e.named[p.Pod] = append(e.named[p.Pod], p.UID)
	}
	e.pods[p.UID], e.changed = p, true
	e.podsChanged = driver.Later(e.podsChanged, driver.Later(p.seen, p.since))
}

// drop forgets a pod.
func (e *Evidence) drop(uid string) {
	p := e.pods[uid]
	if p == nil {
		return
	}
	others := slices.DeleteFunc(e.named[p.Pod], func(other string) bool { return other == uid })
	if e.named[p.Pod] = others; len(others) == 0 {
		delete(e.named, p.Pod)
	}
	delete(e.pods, uid)
	e.changed = true
}

// ends reports whether the pod is ending and none of its containers runs. It holds its devices
// until the kubelet does not list it any more.
func (p *pod) ends() bool { return p.state == Ending && p.Running == 0 }

// isMissing reports whether the kubelet's own list of pods lacked the pod, and there is no later
// evidence of it.
func (p *pod) isMissing() bool { return !p.missing.IsZero() && !p.state.over() }

// finished reports whether the pod has Succeeded or Failed and none of its containers runs. Such a
// pod never runs again, even if a restarted kubelet lists it as running, as an outdated object from
// the API server may say.
func (p *pod) finished() bool { return p.Final && p.Running == 0 && !p.Static }

// recreated reports whether an answer that was requested at the given time and lists the pod's name
// must mean a newer pod: before, the kubelet had reported that this pod was deleted, or its end was
// proven.
func (p *pod) recreated(asked time.Time) bool {
	switch {
	case p == nil || p.Static || !p.state.over():
		return false
	case p.gone && p.over.Before(asked): // whatever evidence is later
		return true
	case !p.since.Before(asked):
		return false
	case p.state == Ended:
		return p.by == unlisted && p.Local && p.Final && p.Running == 0
	default:
		return p.Local
	}
}

// merge returns the pod with the facts of a new object.
func merge(before *pod, facts podresources.PodFacts, at time.Time) *pod {
	p := &pod{PodFacts: facts, seen: at, since: at, namesKnown: !facts.Local}
	if before != nil {
		now := *before
		now.PodFacts, now.missing = facts, time.Time{}
		if facts.Nominated {
			now.left = time.Time{}
		}
		now.Started = facts.Started || before.Started
		now.namesKnown = before.namesKnown || !facts.Local
		if before.namesKnown && facts.Local {
			now.learnNames(&before.PodFacts)
		}
		p = &now
	}
	p = p.apply(factOf(&facts), at)
	if p.replaced && p.ends() {
		p = p.apply(replaced, at)
	}
	return p
}

// learnNames adds the names of claims from the same pod's status at the API server.
func (p *pod) learnNames(from *podresources.PodFacts) {
	p.namesKnown = true
	p.ExtendedClaim, p.ExtendedUses = from.ExtendedClaim, from.ExtendedUses
	names := make(map[string]string, len(from.Claims))
	for _, c := range from.Claims {
		names[c.Name] = c.Claim
	}
	p.Claims = slices.DeleteFunc(slices.Clone(p.Claims), func(c podresources.PodClaim) bool {
		_, has := names[c.Name]
		return c.Claim == "" && !has
	})
	for i := range p.Claims {
		p.Claims[i].Claim = cmp.Or(p.Claims[i].Claim, names[p.Claims[i].Name])
	}
}

// PodsListed processes a complete list of the pods that are bound to the node, from the kubelet
// (local) or from the API server. A pod that a list of the API server lacks was deleted. The kubelet's own list may be incomplete, for example after a restart: for a pod
// that it lacks, its PodResources answers decide, and the pod is forgotten if a conclusive answer
// lacks it too. A pod that is over is remembered for keepDeleted: the API server may report it as
// running long after the kubelet has forgotten it.
func (b *Book) PodsListed(pods []podresources.PodFacts, local bool, asked time.Time) {
	b.update(func(e *Evidence) bool {
		b.podsSeen = driver.Later(b.podsSeen, asked)
		there := make(map[string]bool, len(pods))
		names := make(map[podresources.Pod]bool, len(pods))
		for i := range pods {
			if there[pods[i].UID] || len(there) == maxPods {
				continue
			}
			there[pods[i].UID], names[pods[i].Pod] = true, true
			if p := e.pods[pods[i].UID]; p != nil && p.state == Deleted && p.since.Before(asked) && !p.finished() {
				e.put(p.apply(relisted, asked))
			}
			e.setPod(pods[i], asked)
		}
		for uid, p := range e.pods {
			l := e.listed[p.Pod]
			switch {
			case there[uid], p.state == Waiting, p.state == Deleted, !p.seen.Before(asked):
			case !local && !p.Static:
				e.put(p.bury(asked))
			case p.state.over() && p.Static || !p.state.over() && names[p.Pod] && (l == nil || l.uid != uid):
				e.drop(uid)
			case p.missing.IsZero():
				after := *p
				after.missing = asked
				e.put(&after)
			}
		}
		e.trimPods(asked)
		return true
	})
}

// setPod processes a new object of a pod. A deleted pod comes back only with a list.
func (e *Evidence) setPod(facts podresources.PodFacts, at time.Time) {
	before := e.pods[facts.UID]
	switch {
	case before == nil && len(e.pods) >= 2*maxPods, before != nil && before.state == Deleted:
		return
	}
	after := merge(before, facts, at)
	if before == nil || after.state == Ending {
		after = e.replace(after, before == nil, at)
	}
	e.put(after)
	if before == nil && !facts.Nominated {
		e.identify(facts.Pod, facts.UID)
	}
	if after.ends() && (before == nil || !before.ends() && !before.state.over()) ||
		after.state == Ended && before != nil && !before.state.over() {
		e.changes.add(podresources.Change{At: at, Gone: true, PodUID: facts.UID}, e.asked)
	}
	if before == nil && !facts.Finished.IsZero() { // it ended before anything was known about it
		e.changes.add(podresources.Change{
			At: onClock(facts.Finished, at).Add(roundedDown), Gone: true, PodUID: facts.UID,
			Doubt: podresources.Doubt{Early: roundedDown},
		}, e.asked)
	}
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

// onClock converts a time of the wall clock to the monotonic clock; now has both.
func onClock(t, now time.Time) time.Time { return now.Add(t.Sub(now)) }

// identify sets the UID of a listed pod without a known object, since its object has arrived.
func (e *Evidence) identify(name podresources.Pod, uid string) {
	if l := e.listed[name]; l != nil && l.uid == "" {
		known := *l
		known.uid = uid
		e.listed[name], e.changed = &known, true
	}
}

// replace marks the pods that a new pod with their name replaces. It returns the pod, which an
// existing pod may itself replace if it is ending. A running pod is never replaced: creation times
// are from the API server's clock, which may have been set back.
func (e *Evidence) replace(p *pod, isNew bool, at time.Time) *pod {
	for _, uid := range e.named[p.Pod] {
		switch other := e.pods[uid]; {
		case uid == p.UID || other.Static || other.Nominated:
		case other.Created.After(p.Created):
			if p.state == Ending && !p.Static {
				after := *p
				after.replaced = true
				if p = &after; p.ends() {
					p = p.apply(replaced, at)
				}
			}
		case isNew && !other.replaced:
			after := *other
			after.replaced = true
			if after.ends() {
				e.put(after.apply(replaced, at))
			} else {
				e.put(&after)
			}
		}
	}
	return p
}

// bury returns the pod after its deletion, with the facts that are needed to recognize it.
func (p *pod) bury(at time.Time) *pod {
	gone := p.apply(deleted, at)
	gone.PodFacts = podresources.PodFacts{
		Pod: p.Pod, UID: p.UID, Created: p.Created, Local: p.Local, Final: p.Final, Started: p.Started, Running: p.Running,
	}
	return gone
}

// PodDeleted processes the deletion of a pod, which is remembered for keepDeleted. Its UID never
// holds a device again, unless a list that is requested later has it. A static pod is forgotten
// instead: it may come back with its UID, the deletion of its mirror pod at the API server does not
// end it, and it has no claims, so that it holds what the kubelet lists.
func (b *Book) PodDeleted(uid string, at time.Time) {
	b.update(func(e *Evidence) bool {
		b.changed, b.podsSeen = at, driver.Later(b.podsSeen, at)
		p := e.pods[uid]
		switch {
		case p == nil && (podresources.IsStaticUID(uid) || len(e.pods) >= 2*maxPods):
			return true
		case p == nil:
			p = &pod{PodFacts: podresources.PodFacts{UID: uid}, seen: at}
		case p.Static:
			e.drop(uid)
			return true
		}
		if !p.ends() && !p.state.over() {
			e.changes.add(podresources.Change{At: at, Gone: true, PodUID: uid}, e.asked)
		}
		e.put(p.bury(at))
		e.trimPods(at)
		return true
	})
}

// forgotten returns since when neither the kubelet nor the API server has a pod that is over; zero:
// one of them may have it.
func (p *pod) forgotten() time.Time {
	switch {
	case p.state == Deleted:
		return p.since
	case p.state.over():
		return p.missing
	default:
		return time.Time{}
	}
}

// trimPods forgets pods that were deleted more than keepDeleted ago, and the oldest deleted ones if
// there are too many.
func (e *Evidence) trimPods(now time.Time) {
	var gone []*pod
	for uid, p := range e.pods {
		switch {
		case p.forgotten().IsZero():
		case now.Sub(p.forgotten()) > keepDeleted:
			e.drop(uid)
		default:
			gone = append(gone, p)
		}
	}
	if surplus := len(gone) - maxPods; surplus > 0 {
		slices.SortFunc(gone, func(a, b *pod) int {
			return cmp.Or(a.forgotten().Compare(b.forgotten()), strings.Compare(a.UID, b.UID))
		})
		for _, p := range gone[:surplus] {
			e.drop(p.UID)
		}
	}
}

// NominatedListed processes a complete list of the pods that wait to be bound to the node.
func (b *Book) NominatedListed(pods []podresources.PodFacts, asked time.Time) {
	b.update(func(e *Evidence) bool {
		there := make(map[string]bool, len(pods))
		for i := range pods {
			there[pods[i].UID] = true
			e.setPod(pods[i], asked)
		}
		for uid, p := range e.pods {
			if !there[uid] && p.seen.Before(asked) {
				e.leaveNominated(uid, asked)
			}
		}
		return true
	})
}

// leaveNominated processes the end of a pod's nomination.
func (e *Evidence) leaveNominated(uid string, at time.Time) {
	if p := e.pods[uid]; p != nil && p.state == Waiting && p.left.IsZero() {
		after := *p
		after.left = at
		e.put(&after)
	}
}

// uidOf returns the UID of the newest pod with that name, "" if none is known.
func (e *Evidence) uidOf(name podresources.Pod) string {
	if p := e.newest(name, func(p *pod) bool { return p.state == Deleted || p.forgotten().IsZero() }); p != nil {
		return p.UID
	}
	return ""
}

// newest returns the newest of the pods with that name for which of is true, nil if there is none.
// A pod that waits to be bound is not the newest one while a bound one lives: the kubelet can list
// only that one.
func (e *Evidence) newest(name podresources.Pod, of func(*pod) bool) *pod {
	var bound, waits *pod
	for _, uid := range e.named[name] {
		p := e.pods[uid]
		best := &bound
		if p.state == Waiting {
			best = &waits
		}
		if of(p) && (*best == nil || newerPod(p, *best)) {
			*best = p
		}
	}
	if waits == nil || bound != nil && (!bound.state.over() || newerPod(bound, waits)) {
		return bound
	}
	return waits
}

// newerPod reports whether a is newer than b; both have the same name. A pod that was not replaced
// is newer than one that was, and one that was not deleted is newer than one that was: creation
// times are from the API server's clock, which may have been set back. Pods with equal or unknown
// creation times are ordered by the time at which they were first seen.
func newerPod(a, b *pod) bool {
	if a.replaced != b.replaced {
		return b.replaced
	}
	if gone := a.state == Deleted; gone != (b.state == Deleted) {
		return !gone
	}
	return cmp.Or(a.Created.Compare(b.Created), a.seen.Compare(b.seen), strings.Compare(a.UID, b.UID)) > 0
}

// dropNominated forgets pods that were not bound to the node within keepNominated after the end of
// their nomination.
func (e *Evidence) dropNominated(now time.Time) {
	for uid, p := range e.pods {
		if p.state == Waiting && !p.left.IsZero() && now.Sub(p.left) >= keepNominated {
			e.drop(uid)
		}
	}
}

// endedUID is the UID, from files of the node, of a pod that has ended. The next pod with its name
// may be listed before there are files of it.
type endedUID struct {
	uid     string
	kubelet podresources.Instance // another one may list the pod again; empty: none
	at      time.Time
}

// uidListed returns the UID that a listed pod had when it was listed.
func (e *Evidence) uidListed(name podresources.Pod, l *listedPod) string {
	if l.uid != "" {
		return l.uid
	}
	return e.uidOf(name)
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
	before := e.newest(p.Pod, func(other *pod) bool {
		return !other.seen.After(asked) && (!other.state.over() || other.over.After(asked))
	})
	if before == nil {
		before = p
	}
	return before.UID
}
