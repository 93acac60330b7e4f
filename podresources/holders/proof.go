package holders

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// proof is what shows that a pod has ended that an answer of the kubelet lacks or, if nothing does,
// the reason why it is kept.
type proof = podresources.Reason

const (
	proofOfKubelet proof = "kubelet" // the answer is believed for the pod
	proofOfCgroup  proof = "cgroup"  // the pod's cgroup was removed
	// proofOfTime: a restarted kubelet has lacked the pod for the grace, and no process is known.
	proofOfTime proof = "time"
	// noneProcesses: the answer is believed for the pod, but its cgroup has processes.
	noneProcesses = podresources.ReasonProcesses
	// noneRestarted: the kubelet may not know its pods yet.
	noneRestarted = podresources.ReasonRestarted
)

// proofOf returns the proof that an unlisted pod has ended. believed reports whether the answer
// that lacks it is believed for it; since is when it was first missing.
func (e *Evidence) proofOf(believed bool, cgroup podresources.CgroupState, since, asked time.Time) proof {
	switch alive := cgroup == podresources.CgroupAlive; {
	case cgroup == podresources.CgroupGone:
		return proofOfCgroup
	case believed && alive:
		return noneProcesses
	case believed:
		return proofOfKubelet
	case alive || asked.Sub(driver.Later(since, e.kubelet.since)) < e.grace:
		return noneRestarted
	default:
		return proofOfTime
	}
}

// believed reports whether an answer without a listed pod proves that the pod has ended. p is nil
// if no object of the pod is known. The answer is proof if its kubelet process has listed the pod,
// has reported the end of the pod, or has listed pods from the API server for kubeletSettles. A
// restarted kubelet lists nothing at first, then static pods, then the pods that it reads from the
// API server. If the kubelet process is unknown, it must have listed a pod from the API server. An
// answer without any pods proves nothing by itself: the exporter runs in a pod of the node. It is
// proof together with a list of the Pods API that lacks the pod and that was requested after the
// last answer with the pod, if both answers are from one kubelet process.
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

// knowsPods reports whether the kubelet has listed pods from the API server for kubeletSettles,
// after which it knows all of them.
func (e *Evidence) knowsPods(asked time.Time) bool {
	return !e.kubelet.ready.IsZero() && asked.Sub(e.kubelet.ready) >= kubeletSettles
}

// listsPodOfServer reports whether an answer lists a pod from the API server: one with a claim,
// which a static pod can't have, or one whose UID is not the hash of a manifest.
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
