package podresources

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Lister requests the devices of all containers of the node from the kubelet. [Client] implements
// it.
type Lister interface {
	// List returns an answer that does not change. One that is the same as the one before may be the
	// same pointer, which saves the reader work.
	List(ctx context.Context) (*v1.ListPodResourcesResponse, error)
}

// Observer requests the kubelet's list as often as allowed, and determines the present allocations.
// It is used by one goroutine at a time; its ChangeLog is safe for concurrent use.
type Observer struct {
	Lister  Lister
	Keeper  *Keeper
	Limiter *Limiter
	Changes *ChangeLog
	// Pods is a watch of the pods, while which lives and tells of no change the kubelet is asked
	// less; nil: there is none.
	Pods *PodWatch
	Now  func() time.Time

	before time.Time // of the view before the present one
	asked  time.Time // when the last question began
	sure   bool      // the answer to it was believed as a whole
	listed map[Pod]struct{}
	parsed parsed
}

// parsed is what an answer says.
type parsed struct {
	answer      *v1.ListPodResourcesResponse
	allocations []Allocation
	rejected    driver.Rejections
	listed      map[Pod]struct{}
}

// parse parses an answer, unless it is the same as the one before.
func (p *parsed) parse(answer *v1.ListPodResourcesResponse) {
	if p.answer == answer && answer != nil {
		return
	}
	p.answer, p.listed = answer, ListedPods(answer)
	p.allocations, p.rejected = Parse(answer)
}

// A kubelet that is asked for what pods hold writes a line of error to its log for each pod that
// waits for its claim to be prepared. While the pods are watched, it is asked when something
// happens, for a while after, and now and then.
const (
	afterChange = 3 * time.Second
	nowAndThen  = 10 * time.Second
	// watchLag is the longest time that the news of a change takes. Until then it is not known that
	// nothing changed.
	watchLag = 250 * time.Millisecond
)

// changesBefore is how far back the changes of a view reach before the view that came before it: a
// pod's cgroup is there before the kubelet lists what the pod holds.
const changesBefore = 10 * time.Second

// Observe requests the kubelet's list. If the limiter forbids that, or the watch of the pods makes
// it unnecessary, it returns the previous allocations and the time of the next request. An error
// says why the request failed, or that an empty response has not taken effect; the view is valid
// nevertheless.
func (o *Observer) Observe(ctx context.Context) (Observation, error) {
	begun := o.Now()
	if o.quiet(begun) {
		at := o.before
		if lately := begun.Add(-watchLag); lately.After(at) {
			at = lately
		}
		view := o.view(at)
		o.before = at
		return Observation{View: view}, nil
	}
	if !o.Limiter.Allow(begun) {
		return Observation{View: o.view(o.before), Retry: o.Limiter.Next()}, nil
	}
	o.asked = begun
	answer, err := o.Lister.List(ctx)
	now := o.Now()
	o.Limiter.Done(now, err)
	var out Observation
	out.Asked, out.Took = true, now.Sub(begun)
	var allocations []Allocation
	if err == nil {
		o.parsed.parse(answer)
		allocations, out.Rejected = o.parsed.allocations, o.parsed.rejected
	}
	believed := countHolders(o.Keeper.Allocations())
	o.Keeper.Observe(allocations, err, now)
	// Without an answer the holders are those of before, unless the end of one was seen.
	at := o.before
	if err == nil || countHolders(o.Keeper.Allocations()) != believed {
		at = now
	}
	if err == nil && !o.Keeper.Doubting() {
		o.listed = o.parsed.listed
	}
	out.View = o.view(at)
	o.before = at
	if err == nil && o.Keeper.Doubting() {
		err = errDoubtful
	}
	o.sure = err == nil
	return out, err
}

// quiet reports whether there is no need to ask: the last answer still holds.
func (o *Observer) quiet(now time.Time) bool {
	since := now.Add(-afterChange)
	return o.Pods != nil && o.sure && now.Sub(o.asked) < nowAndThen && o.Pods.quiet(since) &&
		len(o.Changes.Since(since)) == 0
}

func (o *Observer) view(at time.Time) View {
	return View{
		Allocations: o.Keeper.Allocations(), At: at, Changes: o.Changes.Since(o.before.Add(-changesBefore)),
		Watched: o.Pods != nil && o.Pods.lives(), Listed: o.listed,
	}
}

func countHolders(allocations []Allocation) int {
	n := 0
	for i := range allocations {
		n += len(allocations[i].Holders)
	}
	return n
}

// errDoubtful is the error of an empty response that has not taken effect.
var errDoubtful = driver.WithReason(driver.ReasonEmptyDisbelieved,
	errors.New("list pod resources: the answer is empty, and pods that held devices may still run"))
