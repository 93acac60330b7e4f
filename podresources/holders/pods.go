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

// pod is what is known about one pod from its objects.
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

// apply applies a fact about a pod that was requested, or arrived, at the given time.
func (e *Evidence) apply(p *pod, f fact, at time.Time) {
	next := transitions()[f][p.state]
	if next == p.state {
		return
	}
	if next.over() && !p.state.over() {
		p.over = at
	}
	p.state, p.by, p.since = next, f, at
	p.gone = (p.gone || f == cgroupGone) && next.over()
	e.changed, e.podsChanged = true, driver.Later(e.podsChanged, at)
}

// add adds a pod.
func (e *Evidence) add(p *pod) {
	e.pods[p.UID], e.named[p.Pod] = p, append(e.named[p.Pod], p)
	e.changed, e.podsChanged = true, driver.Later(e.podsChanged, p.seen)
}

// drop forgets a pod.
func (e *Evidence) drop(uid string) {
	p := e.pods[uid]
	if p == nil {
		return
	}
	others := slices.DeleteFunc(e.named[p.Pod], func(other *pod) bool { return other == p })
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

// learnNames takes the names of claims from the same pod's status at the API server.
func (p *pod) learnNames(from *podresources.PodFacts) {
	p.namesKnown = true
	p.Claims, p.ExtendedClaim, p.ExtendedUses = from.Claims, from.ExtendedClaim, from.ExtendedUses
}

// PodsListed processes a complete list of the pods that are bound to the node, from the kubelet
// (local) or from the API server. A pod that a list of the API server lacks was deleted. The
// kubelet's own list may be incomplete, for example after a restart: for a pod that it lacks, its
// PodResources answers decide, and the pod is forgotten if a conclusive answer lacks it too. A pod
// that is over is remembered for keepDeleted: the API server may report it as running long after
// the kubelet has forgotten it.
func (b *Book) PodsListed(pods []podresources.PodFacts, local bool, asked time.Time) {
	b.update(func(e *Evidence) {
		b.podsSeen = driver.Later(b.podsSeen, asked)
		there := make(map[string]bool, len(pods))
		names := make(map[podresources.Pod]bool, len(pods))
		for i := range pods {
			if there[pods[i].UID] || len(there) == maxPods {
				continue
			}
			there[pods[i].UID], names[pods[i].Pod] = true, true
			if p := e.pods[pods[i].UID]; p != nil && p.state == Deleted && p.since.Before(asked) && !p.finished() {
				e.apply(p, relisted, asked)
			}
			e.setPod(pods[i], asked)
		}
		for uid, p := range e.pods {
			l := e.listed[p.Pod]
			switch {
			case there[uid], p.state == Waiting, p.state == Deleted, !p.seen.Before(asked):
			case !local && !p.Static:
				e.bury(p, asked)
			case p.state.over() && p.Static || !p.state.over() && names[p.Pod] && (l == nil || l.uid != uid):
				e.drop(uid)
			case p.missing.IsZero():
				p.missing, e.changed = asked, true
			}
		}
		e.trimPods(asked)
	})
}

// setPod processes a new object of a pod. A deleted pod comes back only with a list. It reports
// whether the pod is new or has started.
func (e *Evidence) setPod(facts podresources.PodFacts, at time.Time) (appeared bool) {
	p := e.pods[facts.UID]
	isNew := p == nil
	if isNew && len(e.pods) >= 2*maxPods || !isNew && p.state == Deleted {
		return false
	}
	if isNew {
		p = &pod{seen: at, since: at}
	}
	was := *p
	if isNew || p.Pod != facts.Pod {
		e.drop(facts.UID)
		p.PodFacts = facts
		e.add(p)
	}
	p.PodFacts, p.missing = facts, time.Time{}
	p.Started = facts.Started || was.Started
	if facts.Nominated {
		p.left = time.Time{}
	}
	if was.namesKnown && facts.Local {
		p.learnNames(&was.PodFacts)
	}
	p.namesKnown = was.namesKnown || !facts.Local
	e.apply(p, factOf(&facts), at)
	if isNew || p.state == Ending {
		e.replace(p, isNew, at)
	}
	e.changed = e.changed || !reflect.DeepEqual(&was, p)
	if isNew && !facts.Nominated {
		e.identify(facts.Pod, facts.UID)
	}
	e.signEnd(p, &was, isNew, at)
	return isNew || facts.Started && !was.Started
}

// signEnd notes when a pod ends, or that it had ended before anything was known about it.
func (e *Evidence) signEnd(p, was *pod, isNew bool, at time.Time) {
	if !was.state.over() && (p.ends() && !was.ends() || p.state == Ended && !isNew) {
		e.changes.add(podresources.Change{At: at, Gone: true, PodUID: p.UID}, e.asked)
	}
	if isNew && !p.Finished.IsZero() {
		e.changes.add(podresources.Change{
			At: onClock(p.Finished, at).Add(roundedDown), Gone: true, PodUID: p.UID,
			Doubt: podresources.Doubt{Early: roundedDown},
		}, e.asked)
	}
}

// listPod records that an answer lists a pod. A static pod may be started again with the same UID,
// whatever ended it.
func (e *Evidence) listPod(l *listedPod, asked time.Time) {
	p := e.pods[l.uid]
	if p != nil && p.state == Ended && (p.by == unlisted && !p.gone || p.Static) && p.since.Before(asked) {
		e.apply(p, listed, asked)
		e.apply(p, factOf(&p.PodFacts), asked)
	}
}

// onClock converts a time of the wall clock to the monotonic clock; now has both.
func onClock(t, now time.Time) time.Time { return now.Add(t.Sub(now)) }

// identify sets the UID of a listed pod without a known object, since its object has arrived.
func (e *Evidence) identify(name podresources.Pod, uid string) {
	if l := e.listed[name]; l != nil && l.uid == "" {
		l.uid, e.changed = uid, true
	}
}

// replace marks the pods that a new pod with their name replaces, and an ending pod that an
// existing one replaces. A running pod is never replaced: creation times are from the API server's
// clock, which may have been set back.
func (e *Evidence) replace(p *pod, isNew bool, at time.Time) {
	for _, other := range e.named[p.Pod] {
		older := p // of both
		if other == p || other.Static || other.Nominated {
			continue
		}
		if !other.Created.After(p.Created) {
			if older = other; !isNew || other.replaced {
				continue
			}
		} else if p.state != Ending || p.Static {
			continue
		}
		older.replaced, e.changed = true, true
		if older.ends() {
			e.apply(older, replaced, at)
		}
	}
	if p.replaced && p.ends() {
		e.apply(p, replaced, at)
	}
}

// bury processes the deletion of a pod. It keeps the facts that are needed to recognize it.
func (e *Evidence) bury(p *pod, at time.Time) {
	if p.state == Deleted {
		return
	}
	e.apply(p, deleted, at)
	p.PodFacts = podresources.PodFacts{
		Pod: p.Pod, UID: p.UID, Created: p.Created, Local: p.Local, Final: p.Final, Started: p.Started, Running: p.Running,
	}
}

// PodDeleted processes the deletion of a pod, which is remembered for keepDeleted. Its UID never
// holds a device again, unless a list that is requested later has it. A static pod is forgotten
// instead: it may come back with its UID, the deletion of its mirror pod at the API server does not
// end it, and it has no claims, so that it holds what the kubelet lists.
func (b *Book) PodDeleted(uid string, at time.Time) {
	b.update(func(e *Evidence) {
		b.changed, b.podsSeen = at, driver.Later(b.podsSeen, at)
		p := e.pods[uid]
		switch {
		case p == nil && (podresources.IsStaticUID(uid) || len(e.pods) >= 2*maxPods):
			return
		case p == nil:
			p = &pod{PodFacts: podresources.PodFacts{UID: uid}, seen: at}
			e.add(p)
		case p.Static:
			e.drop(uid)
			return
		}
		if !p.ends() && !p.state.over() {
			e.changes.add(podresources.Change{At: at, Gone: true, PodUID: uid}, e.asked)
		}
		e.bury(p, at)
		e.trimPods(at)
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
	for _, p := range e.pods {
		if !p.forgotten().IsZero() {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(a, b *pod) int {
		return cmp.Or(a.forgotten().Compare(b.forgotten()), strings.Compare(a.UID, b.UID))
	})
	for i, p := range gone {
		if len(gone)-i > maxPods || now.Sub(p.forgotten()) > keepDeleted {
			e.drop(p.UID)
		}
	}
}

// NominatedListed processes a complete list of the pods that wait to be bound to the node.
func (b *Book) NominatedListed(pods []podresources.PodFacts, asked time.Time) {
	b.update(func(e *Evidence) {
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
	})
}

// leaveNominated processes the end of a pod's nomination.
func (e *Evidence) leaveNominated(uid string, at time.Time) {
	if p := e.pods[uid]; p != nil && p.state == Waiting && p.left.IsZero() {
		p.left, e.changed = at, true
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
	for _, p := range e.named[name] {
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

// endedUID is the UID, from files of the node, of a pod that has ended. The next pod with its name
// may be listed before there are files of it.
type endedUID struct {
	uid     string
	kubelet podresources.Instance // another one may list the pod again; empty: none
	at      time.Time
}

// uidAnswered returns the UID of a pod that an answer lists, "" if it is unknown.
func (e *Evidence) uidAnswered(a *Answer, name podresources.Pod) string {
	of := e.ended[name] // the UID that files have may still be that of the pod before
	if uid := a.UIDs[name]; uid != "" && (uid != of.uid || of.kubelet != "" && of.kubelet != a.Kubelet) {
		return uid
	}
	uid := e.uidOf(name)
	p := e.pods[uid]
	if p.recreated(a.Asked) {
		return ""
	}
	if p != nil && p.seen.After(a.Asked) { // the answer may have the pod that had the name before
		before := e.newest(p.Pod, func(other *pod) bool {
			return !other.seen.After(a.Asked) && (!other.state.over() || other.over.After(a.Asked))
		})
		if before != nil {
			return before.UID
		}
	}
	return uid
}

// State is the stage of a pod's life on the node.
type State uint8

// The states, in the order of a pod's life.
const (
	Unknown State = iota // no object is known: the kubelet lists its name
	Waiting              // nominated for the node, and bound once the binding conditions of its devices are met
	Bound                // bound to the node; no container has started
	Running              // a container has started
	Ending               // the kubelet is ending it: its containers may still run, and its devices still be prepared
	Ended                // it holds nothing any more
	Deleted              // it was deleted: its UID never holds a device again
	numStates
)

// over reports whether a pod in this state holds nothing any more.
func (s State) over() bool { return s >= Ended }

// fact is what a piece of evidence says about one pod.
type fact uint8

const (
	// From the pod's object.
	nominated  fact = iota // nominated for the node, and not bound
	bound                  // bound to the node, no container started
	started                // a container has started
	localFinal             // the kubelet's own status is Succeeded or Failed
	finished               // the API server's status is Succeeded or Failed
	deleted                // the object was deleted, or a complete list of the API server lacks it
	relisted               // a complete list that was requested after the deletion has it
	// From the kubelet's answers, if they are believed for the pod.
	unlisted // an answer lacks a pod that an earlier one had, or that was ending when the answer was requested
	listed   // an answer lists a pod again that was ended only by such an answer, or a static pod
	// From other sources.
	cgroupGone // its cgroup existed, and was removed
	replaced   // a newer pod has its name, and none of its containers runs
	numFacts
)

// transitions returns the next state for each fact and state. There are no other changes of a pod's
// state. pods.go and proof.go derive the facts from evidence.
func transitions() [numFacts][numStates]State {
	return [numFacts][numStates]State{
		//           Unknown  Waiting  Bound    Running  Ending   Ended    Deleted
		nominated:  {Waiting, Waiting, Bound, Running, Ending, Ended, Deleted},
		bound:      {Bound, Bound, Bound, Running, Ending, Ended, Deleted},
		started:    {Running, Running, Running, Running, Ending, Ended, Deleted},
		localFinal: {Ending, Ending, Ending, Ending, Ending, Ended, Deleted},
		finished:   {Ended, Ended, Ended, Ended, Ended, Ended, Deleted},
		deleted:    {Deleted, Deleted, Deleted, Deleted, Deleted, Deleted, Deleted},
		relisted:   {Unknown, Waiting, Bound, Running, Ending, Ended, Unknown},
		unlisted:   {Unknown, Waiting, Ended, Ended, Ended, Ended, Deleted},
		listed:     {Unknown, Waiting, Bound, Running, Ending, Unknown, Deleted},
		cgroupGone: {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
		replaced:   {Unknown, Waiting, Bound, Running, Ended, Ended, Deleted},
	}
}
