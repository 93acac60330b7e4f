package holders

import (
	"maps"
	"reflect"
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
	e.takeCgroups(a.Cgroups, a.Asked)
	maps.DeleteFunc(e.ended, func(_ podresources.Pod, of endedUID) bool { return a.Asked.Sub(of.at) > keepDeleted })
	next := e.listPodsOf(a)
	for name, before := range e.listed {
		if _, has := a.Pods[name]; !has && e.unlistPod(name, before, a) {
			next[name] = before
		}
	}
	e.endUnlisted(next, a)
	e.listed, e.asked = next, a.Asked
	e.takeRows(a.Allocations)
}

// listPodsOf returns the pods that an answer lists. It notes whether one is a pod from the API
// server: one with a claim, which a static pod can't have, or one whose UID is not the hash of a
// manifest.
func (e *Evidence) listPodsOf(a *Answer) map[podresources.Pod]*listedPod {
	next := make(map[podresources.Pod]*listedPod, len(a.Pods))
	ofServer := false
	for name := range a.Pods {
		l := &listedPod{uid: e.uidAnswered(a, name), kubelet: a.Kubelet}
		next[name] = l
		p := e.pods[l.uid]
		ofServer = ofServer || l.uid != "" && !podresources.IsStaticUID(l.uid) && (p == nil || !p.Static)
		e.listPod(l, a.Asked)
	}
	for i := range a.Allocations {
		ofServer = ofServer || !a.Allocations[i].ByPlugin()
		for j := range a.Allocations[i].Holders {
			if l := next[a.Allocations[i].Holders[j].Pod]; l != nil {
				l.devices = true
			}
		}
	}
	if ofServer && e.kubelet.ready.IsZero() {
		e.kubelet.ready = driver.Later(a.Asked, a.Arrived)
	}
	return next
}
