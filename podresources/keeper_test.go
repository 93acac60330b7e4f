package podresources

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const grace = 60 * time.Second

// keeperTest is a keeper with a clock and pods whose states the test sets. A pod's UID is its name,
// but that of the pod called nameless is unknown.
type keeperTest struct {
	t      *testing.T
	now    time.Time
	states map[string]State
	keeper Keeper
}

func newKeeperTest(t *testing.T) *keeperTest {
	k := &keeperTest{t: t, now: limiterStart, states: make(map[string]State)}
	k.keeper = Keeper{
		Grace:    grace,
		PodState: func(uid string) State { return k.states[uid] },
		PodUID: func(pod Pod, _ time.Time) string {
			if pod.Name == "nameless" {
				return ""
			}
			return pod.Name
		},
	}
	return k
}

// held is an allocation of a device to pods.
func held(device string, pods ...string) Allocation {
	a := Allocation{Claim: Claim{"ns", "claim-" + device}, Device: driver.ID{Driver: "d", Pool: "p", Device: device}}
	for _, pod := range pods {
		a.Holders = append(a.Holders, Holder{Pod: Pod{"ns", pod}, Container: "main"})
	}
	return a
}

func (k *keeperTest) answer(after time.Duration, allocations ...Allocation) {
	k.now = k.now.Add(after)
	k.keeper.Observe(allocations, nil, k.now)
}

func (k *keeperTest) fail(after time.Duration) {
	k.now = k.now.Add(after)
	k.keeper.Observe(nil, ErrUnavailable, k.now)
}

// expect compares who holds what: pods by device.
func (k *keeperTest) expect(when string, doubting bool, want map[string][]string) {
	k.t.Helper()
	got := make(map[string][]string)
	for _, a := range k.keeper.Allocations() {
		for _, h := range a.Holders {
			got[a.Device.Device] = append(got[a.Device.Device], h.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.t.Errorf("%s: %s", when, diff)
	}
	if k.keeper.Doubting() != doubting {
		k.t.Errorf("%s: doubting is %v", when, !doubting)
	}
}

type holdings = map[string][]string

// TestKeeperRestart: the kubelet is away, then answers with nothing, then in full.
func TestKeeperRestart(t *testing.T) {
	k := newKeeperTest(t)
	before := holdings{"gpu-0": {"a", "b"}, "gpu-1": {"nameless"}}
	k.answer(0, held("gpu-0", "a", "b"), held("gpu-1", "nameless"))
	k.expect("at first", false, before)
	k.fail(time.Second)
	k.expect("away", false, before)
	answered := limiterStart
	if !k.keeper.At().Equal(answered) {
		t.Errorf("rests on an answer of %v", k.keeper.At())
	}
	k.answer(time.Second)
	k.expect("empty", true, before)
	k.fail(time.Second)
	k.expect("away again", true, before)
	if !k.keeper.At().Equal(answered) {
		t.Errorf("rests on an answer of %v", k.keeper.At())
	}
	k.answer(time.Second, held("gpu-0", "a"), held("gpu-1", "nameless"))
	k.expect("back", false, holdings{"gpu-0": {"a"}, "gpu-1": {"nameless"}})
	if !k.keeper.At().Equal(k.now) {
		t.Errorf("rests on an answer of %v", k.keeper.At())
	}
	k.answer(grace)
	k.expect("empty once more: grace begins anew", true, holdings{"gpu-0": {"a"}, "gpu-1": {"nameless"}})
}

// TestKeeperEmpty: an empty answer lasts. What the cgroups tell of a pod decides how long it is not
// believed.
func TestKeeperEmpty(t *testing.T) {
	k := newKeeperTest(t)
	k.answer(0, held("gpu-0", "alive", "unknown"), held("gpu-1", "gone"), held("gpu-2", "nameless"), held("gpu-3", "dies"))
	k.states = map[string]State{"alive": StateAlive, "gone": StateGone, "dies": StateAlive}
	k.answer(time.Second)
	first := k.keeper.Allocations()
	names := func() string { return first[0].Holders[0].Name + " " + first[0].Holders[1].Name }
	before := names()
	k.expect("a pod is gone", true, holdings{"gpu-0": {"alive", "unknown"}, "gpu-2": {"nameless"}, "gpu-3": {"dies"}})
	k.answer(grace - time.Nanosecond)
	k.expect("within the grace", true, holdings{"gpu-0": {"alive", "unknown"}, "gpu-2": {"nameless"}, "gpu-3": {"dies"}})
	k.answer(time.Nanosecond)
	k.expect("the grace is over", true, holdings{"gpu-0": {"alive"}, "gpu-3": {"dies"}})
	if names() != before {
		t.Error("what was returned before has changed:", names())
	}
	k.states["dies"] = StateGone
	k.answer(time.Hour)
	k.expect("a pod dies", true, holdings{"gpu-0": {"alive"}})
	k.states["alive"] = StateUnknown
	k.answer(time.Second)
	k.expect("the last has no processes any more", false, holdings{})
	if !k.keeper.At().Equal(k.now) {
		t.Error("the empty answer is believed at last, but not its time")
	}
}

func TestKeeperBelieves(t *testing.T) {
	k := newKeeperTest(t)
	k.answer(0)
	k.expect("no device is held", false, holdings{})
	k.answer(time.Second, held("gpu-0", "a"), held("gpu-1", "b"))
	k.states = map[string]State{"a": StateAlive, "b": StateAlive}
	k.answer(time.Second, held("gpu-1", "b"))
	k.expect("one of two has ended", false, holdings{"gpu-1": {"b"}})
	k.answer(time.Second, held("gpu-1", "c"))
	k.expect("another pod has taken its place", false, holdings{"gpu-1": {"c"}})
	k.states["c"] = StateGone
	k.answer(time.Second)
	k.expect("the last pod has ended", false, holdings{})
}

// TestKeeperDropsTheDeadWithoutAnAnswer: the kubelet is away, and meanwhile a pod's cgroup goes.
func TestKeeperDropsTheDeadWithoutAnAnswer(t *testing.T) {
	k := newKeeperTest(t)
	k.answer(0, held("gpu-0", "a", "b"), held("gpu-1", "b"))
	k.states = map[string]State{"b": StateGone}
	k.fail(time.Hour)
	k.expect("away", false, holdings{"gpu-0": {"a"}})
}

func TestKeeperUIDs(t *testing.T) {
	k := newKeeperTest(t)
	k.answer(0, held("gpu-0", "a", "nameless"))
	var got []string
	for _, h := range k.keeper.Allocations()[0].Holders {
		got = append(got, h.UID)
	}
	if diff := cmp.Diff([]string{"a", ""}, got); diff != "" {
		t.Error(diff)
	}
	bare := Keeper{Grace: grace}
	bare.Observe([]Allocation{held("gpu-0", "a")}, nil, limiterStart)
	bare.Observe(nil, nil, limiterStart)
	if len(bare.Allocations()) != 1 || !bare.Doubting() {
		t.Error("a keeper that knows nothing of pods believes at once")
	}
}

// TestKeeperProperties: whatever happens, every holder was in an answer; a live one goes only by an
// answer with holders; a dead one is not kept by any other; no allocation is without holders.
func TestKeeperProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := newKeeperTest(t)
		pods := []string{"a", "b", "c"}
		before := map[string]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			for _, pod := range pods {
				k.states[pod] = rapid.SampledFrom([]State{StateUnknown, StateAlive, StateGone}).Draw(rt, pod)
			}
			after := time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second
			var answer []Allocation
			if rapid.Bool().Draw(rt, "failed") {
				k.fail(after)
			} else {
				for i, pod := range rapid.SliceOfNDistinct(rapid.SampledFrom(pods), 0, 3, rapid.ID).Draw(rt, "holders") {
					answer = append(answer, held(fmt.Sprintf("gpu-%d", i), pod))
				}
				k.answer(after, answer...)
			}
			now := map[string]bool{}
			for _, a := range k.keeper.Allocations() {
				if len(a.Holders) == 0 {
					rt.Fatal("an allocation without holders")
				}
				now[a.Holders[0].Name] = true
			}
			if len(answer) > 0 && len(now) != len(answer) {
				rt.Fatalf("an answer with holders is not believed: %v", now)
			}
			for pod := range now {
				if len(answer) == 0 && (!before[pod] || k.states[pod] == StateGone) {
					rt.Fatalf("%s is kept", pod)
				}
			}
			for pod := range before {
				if len(answer) == 0 && k.states[pod] == StateAlive && !now[pod] {
					rt.Fatalf("%s lives and is dropped", pod)
				}
			}
			if k.keeper.Doubting() && len(now) == 0 {
				rt.Fatal("doubts without any holder")
			}
			before = now
		}
	})
}

// TestKeeperWithKubelet restarts a kubelet on a real socket, with the pods' logs and cgroups in
// folders.
func TestKeeperWithKubelet(t *testing.T) {
	kubelet, client := dial(t)
	if err := kubelet.SetPods(
		test.Pod("ns", "a", test.Container("main", test.Claim("ns", "a", gpu(0)))),
		test.Pod("ns", "b", test.Container("main", test.Claim("ns", "b", gpu(1)))),
	); err != nil {
		t.Fatal(err)
	}
	logs := newLogTree(t)
	logs.mkdir("ns_a_"+uidA, "ns_b_"+uidB)
	tree := newCgroupTree(t, false)
	tree.pod("kubepods/pod"+uidA, true)
	tree.pod("kubepods/burstable/pod"+uidB, true)
	cgroups := NewCgroups(tree.sysfs, time.Now)
	cgroups.scan(func(string) {})
	keeper := Keeper{Grace: time.Hour, PodState: cgroups.State, PodUID: NewPodLogs(logs.path, nil).UID}
	observe := func(when string, wantErr error, want ...string) {
		t.Helper()
		answer, err := list(t, client, waitLimit)
		if !errors.Is(err, wantErr) {
			t.Fatalf("%s: error %v, want %v", when, err, wantErr)
		}
		allocations, _ := Parse(answer)
		keeper.Observe(allocations, err, time.Now())
		holders := make(map[string]bool)
		for _, a := range keeper.Allocations() {
			for _, h := range a.Holders {
				holders[h.Name+" "+h.UID] = true
			}
		}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(holders))); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	observe("at first", nil, "a "+uidA, "b "+uidB)
	kubelet.Stop()
	observe("away", ErrUnavailable, "a "+uidA, "b "+uidB)
	if err := kubelet.Restart(t.Context(), 0, time.Hour); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := list(t, client, waitLimit); err == nil {
			break
		}
	}
	observe("empty", nil, "a "+uidA, "b "+uidB)
	tree.remove("kubepods/pod" + uidA)
	observe("empty, a pod ends", nil, "b "+uidB)
	kubelet.Behave(test.Full())
	observe("back", nil, "a "+uidA, "b "+uidB)
}
