package podresources

import (
	"context"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Lister asks the kubelet what all containers of the node hold; [Client] is the one.
type Lister interface {
	List(ctx context.Context) (*v1.ListPodResourcesResponse, error)
}

// Observer asks the kubelet as often as it may, and says what is to be believed. It is used by one goroutine at a
// time; its ChangeLog may be written to at once.
type Observer struct {
	Lister  Lister
	Keeper  *Keeper
	Limiter *Limiter
	Changes *ChangeLog
	Now     func() time.Time

	before time.Time // of the view before the present one
}

// changesBefore is how far back the changes of a view reach before the view that came before it: a pod's cgroup is
// there before the kubelet lists what the pod holds.
const changesBefore = 10 * time.Second

// Observe asks the kubelet, or, when the limiter forbids that, returns what was believed before, and when to ask again.
// An error says why the kubelet gave no answer, or that its empty answer is not believed; there is a view all the same.
func (o *Observer) Observe(ctx context.Context) (Observation, error) {
	begun := o.Now()
	if !o.Limiter.Allow(begun) {
		return Observation{View: o.view(o.before), Retry: o.Limiter.Next()}, nil
	}
	answer, err := o.Lister.List(ctx)
	now := o.Now()
	o.Limiter.Done(now, err)
	var out Observation
	out.Asked, out.Took = true, now.Sub(begun)
	var allocations []Allocation
	if err == nil {
		allocations, out.Rejected = Parse(answer)
	}
	believed := countHolders(o.Keeper.Allocations())
	o.Keeper.Observe(allocations, err, now)
	// Without an answer the holders are those of before, unless the end of one was seen.
	at := o.before
	if err == nil || countHolders(o.Keeper.Allocations()) != believed {
		at = now
	}
	out.View = o.view(at)
	o.before = at
	if err == nil && o.Keeper.Doubting() {
		err = doubtful{}
	}
	return out, err
}

func (o *Observer) view(at time.Time) View {
	return View{Allocations: o.Keeper.Allocations(), At: at, Changes: o.Changes.Since(o.before.Add(-changesBefore))}
}

func countHolders(allocations []Allocation) int {
	n := 0
	for i := range allocations {
		n += len(allocations[i].Holders)
	}
	return n
}

// doubtful is the error of an empty answer that is not believed.
type doubtful struct{}

func (doubtful) Error() string {
	return "list pod resources: the answer is empty, and pods that held devices may still run"
}

// Reason names the error for a label.
func (doubtful) Reason() string { return "empty_disbelieved" }
