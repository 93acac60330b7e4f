package podresources

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// whenSet runs a test for each step by which the wall clock is set in it.
func whenSet(t *testing.T, f func(t *testing.T, clock *testclock.Clock, step time.Duration)) {
	t.Helper()
	for _, step := range testclock.Steps() {
		t.Run(step.String(), func(t *testing.T) { f(t, testclock.New(), step) })
	}
}

// Empty answers are not believed for the grace, however the wall clock is set meanwhile.
func TestKeeperWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		keeper := Keeper{Grace: grace}
		keeper.Observe([]Allocation{held("gpu-0", "a")}, nil, clock.Now())
		keeper.Observe(nil, nil, clock.Pass(time.Second))
		clock.Set(step)
		keeper.Observe(nil, nil, clock.Pass(grace-1))
		if !keeper.Doubting() || len(keeper.Allocations()) != 1 {
			t.Error("an empty answer is believed before the grace is over")
		}
		keeper.Observe(nil, nil, clock.Pass(1))
		if keeper.Doubting() || len(keeper.Allocations()) != 0 {
			t.Error("an empty answer is not believed after the grace")
		}
	})
}

// The kubelet is asked three times in a second, and waits after a failure as long as ever, however
// the wall clock is set.
func TestLimiterWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		var l Limiter
		allowed := func(after time.Duration, want bool) {
			t.Helper()
			if now := clock.Pass(after); l.Allow(now) != want || l.Next().After(now) == want && !want {
				t.Errorf("allowed %v, want %v; next is %v from now", !want, want, l.Next().Sub(now))
			}
		}
		for range maxCalls {
			allowed(0, true)
		}
		clock.Set(step)
		allowed(callWindow-1, false)
		allowed(1, true)
		l.Done(clock.Now(), ErrRateLimited)
		clock.Set(-step)
		allowed(firstDelay-1, false)
		if wait := l.Next().Sub(clock.Now()); wait != 1 {
			t.Errorf("the next call is to come after %v, want 1ns", wait)
		}
		allowed(1, true)
	})
}

// Changes stay in the order in which they were seen, for ten minutes, and one sign that is seen
// twice within a second is one change, however the wall clock is set.
func TestChangeLogWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		var l ChangeLog
		add := func(uid string, want bool) {
			t.Helper()
			if l.Add(Change{At: clock.Now(), PodUID: uid}) != want {
				t.Errorf("%s: added %v", uid, !want)
			}
		}
		expect := func(since time.Time, want ...string) {
			t.Helper()
			var got []string
			for _, c := range l.Since(since) {
				got = append(got, c.PodUID)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("changes of %v, want %v", got, want)
			}
		}
		begun := clock.Now()
		add("a", true)
		clock.Pass(sameChange)
		clock.Set(step)
		add("a", false) // seen twice
		seen := clock.Now()
		clock.Pass(time.Second)
		add("a", true)
		add("b", true)
		expect(seen, "a", "b")
		expect(begun, "a", "b")
		expect(begun.Add(-1), "a", "a", "b")
		clock.Pass(changeMemory - 2*time.Second)
		add("c", true)
		expect(time.Time{}, "a", "a", "b", "c")
		clock.Set(-step)
		clock.Pass(1)
		add("d", true)
		expect(time.Time{}, "a", "b", "c", "d")
	})
}

// answering is a kubelet whose one pod holds a device.
type answering struct{}

func (answering) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	pod := test.Pod("ns", "a", test.Container("main", test.Claim("ns", "a", gpu(0))))
	return &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{pod}}, nil
}

// While pods are watched, the kubelet is asked as often as ever, and what it said is as old as
// ever, however the wall clock is set.
func TestObserverWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		changes := &ChangeLog{}
		watch := NewPodWatch(func() {}, changes)
		o := Observer{
			Lister: answering{}, Keeper: &Keeper{Grace: grace}, Limiter: &Limiter{}, Changes: changes, Pods: watch,
			Now: clock.Now,
		}
		ask := func(after time.Duration, want bool) {
			t.Helper()
			now := clock.Pass(after)
			got, err := o.Observe(t.Context())
			if err != nil || got.Asked != want || len(got.View.Allocations) != 1 {
				t.Errorf("asked %v, want %v; %+v, %v", got.Asked, want, got.View, err)
			}
			if age := now.Sub(got.View.At); age < 0 || age > watchLag {
				t.Errorf("the view is of %v ago", age)
			}
		}
		watch.begin(clock.Now())
		ask(0, true)
		ask(afterChange, true) // the watch has just begun
		clock.Set(step)
		ask(afterChange+1, false)
		ask(nowAndThen-afterChange-2, false)
		ask(1, true)
		watch.happened(clock.Now(), true)
		clock.Set(-step)
		ask(time.Second, true)
		ask(afterChange, false)
	})
}

// A pod that is made anew under the name of one that is gone is the newest of the name, also where
// the API server's clock, by which pods were created, was set back meanwhile.
func TestPodOfTheFuture(t *testing.T) {
	var s PodSet
	a := Pod{"ns", "a"}
	s.Set(PodFacts{Pod: a, UID: "old", Created: second(600)}, second(0))
	s.Set(PodFacts{Pod: a, UID: "new", Created: second(0)}, second(1))
	s.Remove("old")
	if got := s.UID(a); got != "new" {
		t.Errorf("the pod is %q", got)
	}
	listed := []Allocation{{Holders: []Holder{{Pod: a, UID: s.UID(a)}}}}
	if got := countHolders(Facts{Pods: s.All()}.Resolve(listed).Allocations); got != 1 {
		t.Errorf("%d holders, want the new pod", got)
	}
}

// So is one whose log folder came last, though its time is before that of the other.
func TestPodLogsOfTheFuture(t *testing.T) {
	tree, now := newLogTree(t), limiterStart
	logs := NewPodLogs(tree.path, nil)
	expect := func(want string) {
		t.Helper()
		now = now.Add(podLogsInterval)
		if got := logs.UID(Pod{"ns", "a"}, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	tree.mkdir("ns_a_" + uidA)
	tree.touch("ns_a_"+uidA, limiterStart.Add(time.Hour))
	tree.touch(".", limiterStart)
	expect(uidA)
	for i, other := range []string{"ns_a_" + uidC, "ns_b_" + uidB} { // the folder is read anew each time
		tree.mkdir(other)
		tree.touch(other, limiterStart)
		tree.touch(".", limiterStart.Add(time.Duration(i+1)*time.Second))
		expect(uidC)
	}
}
