package podresources_test

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// listing is a kubelet that answers with pods, or with an error.
type listing struct {
	pods []*v1.PodResources
	err  error
}

func (l *listing) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	return &v1.ListPodResourcesResponse{PodResources: l.pods}, l.err
}

// holding returns a pod that holds gpu-0 through the claim that all of these pods share.
func holding(name string) *v1.PodResources {
	return podresourcestest.Pod("ns", name, podresourcestest.Container("main",
		podresourcestest.Claim("ns", "claim", podresourcestest.Device("gpu.example.com", "node1", "gpu-0"))))
}

// observerTest is an observer of a node whose clock and cgroups the test sets.
type observerTest struct {
	podresources.Observer
	listing listing
	now     time.Time
	states  map[string]podresources.State
}

func newObserverTest() *observerTest {
	o := &observerTest{now: time.Unix(1000, 0), states: map[string]podresources.State{}}
	o.Observer = podresources.Observer{
		Lister: &o.listing,
		Keeper: &podresources.Keeper{
			Grace:    time.Minute,
			PodState: func(uid string) podresources.State { return o.states[uid] },
			PodUID:   func(pod podresources.Pod, _ time.Time) string { return pod.Name + "-uid" },
		},
		Limiter: &podresources.Limiter{},
		Changes: &podresources.ChangeLog{},
		Now:     func() time.Time { return o.now },
	}
	return o
}

func (o *observerTest) observe(t *testing.T) (podresources.Observation, error) {
	t.Helper()
	o.now = o.now.Add(time.Second)
	return o.Observe(t.Context())
}

func holders(v podresources.View) int {
	n := 0
	for _, a := range v.Allocations {
		n += len(a.Holders)
	}
	return n
}

func TestObserverKeepsHoldersWhileTheKubeletIsAway(t *testing.T) {
	o := newObserverTest()
	o.listing.pods = []*v1.PodResources{holding("a"), holding("b")}
	first, err := o.observe(t)
	if err != nil || holders(first.View) != 2 || !first.View.At.Equal(o.now) || !first.Asked {
		t.Fatalf("got %+v, %v, want two holders as of now", first, err)
	}
	o.listing.err = errors.New("away")
	second, err := o.observe(t)
	if err == nil || holders(second.View) != 2 || !second.View.At.Equal(first.View.At) || len(second.View.Listed) != 2 {
		t.Errorf("got %+v, %v, want an error and the two holders as of before", second, err)
	}
	// One of two pods that share an allocation is seen to end: it is known now.
	o.states["a-uid"] = podresources.StateGone
	third, err := o.observe(t)
	if err == nil || holders(third.View) != 1 || !third.View.At.Equal(o.now) {
		t.Errorf("got %+v, %v, want an error and one holder as of now", third, err)
	}
}

func TestObserverDoubtsAnEmptyAnswer(t *testing.T) {
	o := newObserverTest()
	o.listing.pods = []*v1.PodResources{holding("a")}
	if _, err := o.observe(t); err != nil {
		t.Fatal(err)
	}
	o.listing.pods = nil
	got, err := o.observe(t)
	if driver.ReasonOf(err) != driver.ReasonEmptyDisbelieved || holders(got.View) != 1 || len(got.View.Listed) != 1 {
		t.Errorf("got %+v, %v, want the holder and the reason empty_disbelieved", got, err)
	}
	o.now = o.now.Add(time.Minute)
	if got, err := o.observe(t); err != nil || holders(got.View) != 0 || len(got.View.Listed) != 0 {
		t.Errorf("after the grace got %+v, %v, want no holder", got, err)
	}
}

func TestObserverSparesTheKubelet(t *testing.T) {
	o := newObserverTest()
	o.listing.pods = []*v1.PodResources{holding("a")}
	asked := 0
	for range 10 {
		o.now = o.now.Add(20 * time.Millisecond)
		got, err := o.Observe(t.Context())
		if err != nil || holders(got.View) != 1 {
			t.Fatalf("got %+v, %v, want the holder", got, err)
		}
		if got.Asked {
			asked++
		} else if !got.Retry.After(o.now) {
			t.Errorf("not asked, and to be asked again at %v, which is past", got.Retry)
		}
	}
	if asked != 3 {
		t.Errorf("the kubelet was asked %d times in 200 ms, want 3", asked)
	}
}

func TestObserverHandsOnChanges(t *testing.T) {
	o := newObserverTest()
	o.listing.pods = []*v1.PodResources{holding("a")}
	o.Changes.Add(podresources.Change{At: o.now.Add(500 * time.Millisecond), PodUID: "a-uid"})
	got, err := o.observe(t)
	if err != nil || len(got.View.Changes) != 1 || got.View.Changes[0].PodUID != "a-uid" {
		t.Errorf("got %+v, %v, want the change", got.View.Changes, err)
	}
}
