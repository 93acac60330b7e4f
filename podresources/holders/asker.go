package holders

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Server asks the API server.
type Server interface {
	// Want sets what to read.
	Want(wanted Wanted)
	// Wait waits until everything that was never read before has been requested, or ctx ends.
	Wait(ctx context.Context)
}

// Asker asks the kubelet what its pods hold, as often as is allowed and needed, and gives the
// answers to the book. It then requests what is missing from the API server. It is not safe for
// concurrent use.
type Asker struct {
	Lister  podresources.Lister
	Limiter *podresources.Limiter
	Bounds  podresources.Bounds // limits of an answer
	Book    *Book
	// UID returns the UID of a pod from files of the node, "" if it is unknown; nil: UIDs are unknown.
	UID func(pod podresources.Pod, now time.Time) string
	// Cgroups returns the states of the cgroups of pods, by UID; nil: they are unknown.
	Cgroups func(uids []string) map[string]podresources.CgroupState
	Server  Server // nil: the API server is not asked
	Now     func() time.Time

	parsed   *v1.ListPodResourcesResponse // the last answer, and what it has:
	listed   []podresources.Allocation
	rejected driver.Rejections
	pods     map[podresources.Pod]struct{}
	answered bool // Observe has waited for the API server before
}

// errDoubtful is the error for an answer that is not believed as a whole.
var errDoubtful = driver.WithReason(driver.ReasonEmptyDisbelieved, errors.New(
	"list pod resources: the kubelet does not list pods that held devices and may still run, as after its restart"))

// Observe asks the kubelet if that is allowed and needed, and then waits a moment for the API
// server: until a claim has been read, its admin access is unknown, and it is charged. The error is
// that of the kubelet, or says that the answer is not believed for all pods.
func (k *Asker) Observe(ctx context.Context) (podresources.Observation, error) {
	out, err := k.ask(ctx)
	if k.Server == nil || !out.Asked {
		return out, err
	}
	wait := claimWait
	if !k.answered {
		wait, k.answered = maxPending, true // the connection must be made first
	}
	held, _ := k.Book.Holds(k.Now(), time.Time{})
	k.Server.Want(held.Wanted)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	k.Server.Wait(ctx)
	return out, err
}

// ask asks the kubelet.
func (k *Asker) ask(ctx context.Context) (podresources.Observation, error) {
	asked := k.Now()
	if k.Book.Quiet(asked) {
		k.Book.Cgroups(k.cgroups(k.Book.unsure(nil, true)), asked)
		return podresources.Observation{}, nil
	}
	if expected := k.Book.Expects(); !k.Limiter.Allow(asked, expected) {
		return podresources.Observation{Retry: k.Limiter.Next(expected)}, nil
	}
	instance := k.Lister.Instance()
	answer, err := k.Lister.List(ctx)
	now := k.Now()
	k.Limiter.Done(now, err)
	out := podresources.Observation{Asked: true, Took: now.Sub(asked)}
	if err != nil {
		k.Book.NotAnswered(k.cgroups(k.Book.unsure(nil, false)), asked)
		return out, err
	}
	if k.Lister.Instance() != instance { // either process may have answered
		instance = ""
	}
	if k.parsed != answer || answer == nil {
		k.parsed, k.pods = answer, podresources.ListedPods(answer)
		k.listed, k.rejected = k.Bounds.Parse(answer)
	}
	out.Listed, out.Rejected = k.listed, k.rejected
	a := Answer{Asked: asked, Arrived: now, Kubelet: instance, Pods: k.pods, Allocations: k.listed, UIDs: k.uids(now)}
	a.Cgroups = k.cgroups(k.Book.unsure(&a, true))
	if !k.Book.Answered(&a) {
		return out, errDoubtful
	}
	return out, nil
}

// uids returns the UIDs, from files of the node, of listed pods without a known object.
func (k *Asker) uids(now time.Time) map[podresources.Pod]string {
	if k.UID == nil {
		return nil
	}
	out := map[podresources.Pod]string{}
	for _, pod := range k.Book.unidentified(k.pods) {
		if uid := k.UID(pod, now); uid != "" {
			out[pod] = uid
		}
	}
	return out
}

func (k *Asker) cgroups(uids []string) map[string]podresources.CgroupState {
	if len(uids) == 0 || k.Cgroups == nil {
		return nil
	}
	return k.Cgroups(uids)
}
