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
	// Want sets what is to be asked.
	Want(wanted Wanted)
	// Wait waits until all that was never asked before has been, or ctx ends.
	Wait(ctx context.Context)
}

// Asker asks the kubelet what its pods hold, as often as is allowed and needed, gives the answers
// to the book, and has the API server asked for what they leave open. It is used by one goroutine
// at a time.
type Asker struct {
	Lister  podresources.Lister
	Limiter *podresources.Limiter
	Bounds  podresources.Bounds // of the rows of answers
	Book    *Book
	// UID returns the UID of a pod as the node's files say, "" where it is unknown; nil: it always is.
	UID func(pod podresources.Pod, now time.Time) string
	// Cgroups returns the states of the cgroups of pods, by UID; nil: they are unknown.
	Cgroups func(uids []string) map[string]podresources.CgroupState
	Server  Server // nil: the API server is not asked
	Now     func() time.Time

	parsed   parsed
	answered bool // the API server has been waited for
}

// parsed is what an answer says.
type parsed struct {
	answer      *v1.ListPodResourcesResponse
	allocations []podresources.Allocation
	rejected    driver.Rejections
	pods        map[podresources.Pod]struct{}
}

// parse parses an answer, unless it is the same as the one before.
func (p *parsed) parse(answer *v1.ListPodResourcesResponse, bounds podresources.Bounds) {
	if p.answer == answer && answer != nil {
		return
	}
	p.answer, p.pods = answer, podresources.ListedPods(answer)
	p.allocations, p.rejected = bounds.Parse(answer)
}

// errDoubtful is the error of an answer that is not believed as a whole.
var errDoubtful = driver.WithReason(driver.ReasonEmptyDisbelieved, errors.New(
	"list pod resources: the kubelet does not list pods that held devices and may still run, as after its restart"))

// Observe asks the kubelet, unless that is not allowed or not needed, and then waits a moment for
// the API server: until then a claim with admin access looks like an owner. The error says why the
// kubelet was asked in vain, or that the answer is not believed of all pods.
func (k *Asker) Observe(ctx context.Context) (podresources.Observation, error) {
	out, err := k.ask(ctx)
	if k.Server == nil || !out.Asked {
		return out, err
	}
	wait := claimWait
	if !k.answered {
		wait, k.answered = maxPending, true // the connection has to be made
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
	if k.Lister.Instance() != instance { // it is not known which of the two has answered
		instance = ""
	}
	k.parsed.parse(answer, k.Bounds)
	out.Listed, out.Rejected = k.parsed.allocations, k.parsed.rejected
	a := Answer{
		Asked: asked, Arrived: now, Kubelet: instance, Pods: k.parsed.pods, Allocations: k.parsed.allocations,
	}
	a.UIDs = k.uids(a.Pods, now)
	a.Cgroups = k.cgroups(k.Book.unsure(&a, true))
	if !k.Book.Answered(&a) {
		return out, errDoubtful
	}
	return out, nil
}

// uids returns the UIDs, as the node's files say, of listed pods of which no object is known.
func (k *Asker) uids(listed map[podresources.Pod]struct{}, now time.Time) map[podresources.Pod]string {
	if k.UID == nil {
		return nil
	}
	out := map[podresources.Pod]string{}
	for _, pod := range k.Book.nameless(listed) {
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
