package podresources_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// podsTest follows a kubelet's Pods API.
type podsTest struct {
	*podresourcestest.Pods
	client  *podresources.PodsClient
	set     podresources.PodSet
	watch   *podresources.PodWatch
	hints   atomic.Int32
	synced  atomic.Int32
	changes podresources.ChangeLog
	socket  string
}

func newPodsTest(t *testing.T) *podsTest {
	t.Helper()
	p := &podsTest{socket: filepath.Join(t.TempDir(), "pods.sock")}
	var err error
	if p.Pods, err = podresourcestest.ServePods(p.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if p.client, err = podresources.NewPodsClient(p.socket,
		podresources.Selection{PodLabels: []podresources.Chosen{{Key: "app", Name: "label_app"}}}, time.Now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.client.Close() })
	p.watch = podresources.NewPodWatch(func() { p.hints.Add(1) }, &p.changes)
	return p
}

// follow follows until the test ends.
func (p *podsTest) follow(t *testing.T) <-chan error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- p.client.Follow(ctx, &p.set, p.watch, func() { p.synced.Add(1) })
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return ended
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not %s in 10 s", what)
}

func podObject(name, uid string, phase corev1.PodPhase, running bool) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID, pod.Labels = "ns", name, types.UID(uid), map[string]string{"app": "x"}
	pod.Status.Phase = phase
	if running {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "main",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	return pod
}

func TestPodsFollowed(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	p.follow(t)
	name := func(pod string) podresources.Pod { return podresources.Pod{Namespace: "ns", Name: pod} }
	eventually(t, "synced", func() bool { return p.synced.Load() == 1 })
	if facts, ok := p.set.Get("1"); !ok || facts.UID != "1" || facts.Meta.Labels[1] != "x" || facts.Running != 1 {
		t.Errorf("a: %+v, %v", facts, ok)
	}
	hints := p.hints.Load()
	p.Spoil()
	p.Set(podObject("b", "2", corev1.PodPending, false))
	eventually(t, "there", func() bool { return p.set.UID(name("b")) == "2" })
	p.Set(podObject("b", "2", corev1.PodPending, false)) // nothing that matters
	p.Set(podObject("b", "2", corev1.PodRunning, true))
	eventually(t, "running", func() bool { facts, _ := p.set.Get("2"); return facts.Running == 1 })
	p.Set(podObject("b", "2", corev1.PodSucceeded, false))
	eventually(t, "ended", func() bool { facts, _ := p.set.Get("2"); return facts.Ending })
	ends := p.changes.Since(time.Time{})
	if len(ends) != 1 || !ends[0].Gone || ends[0].PodUID != "2" {
		t.Errorf("the changes are %v, want the end of 2", ends)
	}
	p.Set(podObject("a", "1", corev1.PodFailed, false))
	p.Remove("2")
	p.Remove("1")
	eventually(t, "gone", func() bool { facts, _ := p.set.Get("1"); return facts.Gone })
	if ends = p.changes.Since(time.Time{}); len(ends) != 2 || ends[1].PodUID != "1" {
		t.Errorf("the changes are %v, want one end of each", ends)
	}
	if got := p.hints.Load() - hints; got != 6 {
		t.Errorf("%d hints, want one each for coming, running, ending and going, two ends and two goings in all", got)
	}
}

// A pod that is recreated under its name after a force delete: the kubelet sends the old pod's last
// events after the new pod's first one (KUBELET.md).
func TestRecreatedPodOutlivesOldEvents(t *testing.T) {
	p := newPodsTest(t)
	created := func(pod *corev1.Pod, second int64) *corev1.Pod {
		pod.CreationTimestamp = metav1.Unix(1_700_000_000+second, 0)
		return pod
	}
	p.Set(created(podObject("a", "old", corev1.PodRunning, true), 0))
	p.follow(t)
	eventually(t, "synced", func() bool { return p.synced.Load() == 1 })
	p.Set(created(podObject("a", "new", corev1.PodRunning, true), 5))
	p.Set(created(podObject("a", "old", corev1.PodFailed, false), 0))
	p.Remove("old")
	eventually(t, "gone", func() bool { facts, _ := p.set.Get("old"); return facts.Gone })
	name := podresources.Pod{Namespace: "ns", Name: "a"}
	facts, ok := p.set.Get("new")
	if uid := p.set.UID(name); uid != "new" || !ok || facts.Ending || facts.Gone {
		t.Errorf("the pod of that name is %q; the new one is %+v", uid, facts)
	}
	listed := []podresources.Allocation{{
		Claim:   podresources.Claim{Namespace: "ns", Name: "c"},
		Holders: []podresources.Holder{{Pod: name, Container: "main", UID: "new"}},
	}}
	if got := (podresources.Facts{Pods: p.set.All()}).Resolve(listed).Allocations; len(got) != 1 ||
		len(got[0].Holders) != 1 {
		t.Errorf("the new pod holds %+v", got)
	}
}

// Termination that starts is not the end: the kubelet's own status says Failed while containers run
// on.
func TestEndIsNotedWithTheLastContainer(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	p.follow(t)
	eventually(t, "synced", func() bool { return p.synced.Load() == 1 })
	p.Set(podObject("a", "1", corev1.PodFailed, true))
	eventually(t, "ending", func() bool { facts, _ := p.set.Get("1"); return facts.Ending })
	if ends := p.changes.Since(time.Time{}); len(ends) != 0 {
		t.Errorf("an end is noted while a container runs: %v", ends)
	}
	since, _ := p.set.Get("1")
	p.Set(podObject("a", "1", corev1.PodFailed, false))
	eventually(t, "noted", func() bool { return len(p.changes.Since(time.Time{})) == 1 })
	facts, _ := p.set.Get("1")
	if facts.Ended || facts.Gone || !facts.Started || !facts.EndingSince.Equal(since.EndingSince) ||
		since.EndingSince.IsZero() {
		t.Errorf("facts %+v after %+v", facts, since)
	}
}

// What is known stays until a new watch has told all of it.
func TestPodsWatchBreaks(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	ended := p.follow(t)
	eventually(t, "synced", func() bool { return p.synced.Load() == 1 })
	p.Break(true)
	if err := <-ended; driver.ReasonOf(err) != driver.ReasonUnavailable {
		t.Errorf("error %v", err)
	}
	if p.set.UID(podresources.Pod{Namespace: "ns", Name: "a"}) != "1" {
		t.Error("the pod is gone with the watch")
	}
	if err := p.client.Follow(t.Context(), &p.set, p.watch, func() {}); err == nil {
		t.Error("a kubelet that is initializing is followed")
	}
	p.Remove("1")
	p.Break(false)
	again := p.follow(t)
	eventually(t, "gone", func() bool { return len(p.set.All()) == 0 })
	select {
	case err := <-again:
		t.Errorf("the second watch ended: %v", err)
	default:
	}
}

// While pods are watched, the kubelet is asked when one changes and now and then: a second's tick
// asks it no more.
func TestObserverAsksLess(t *testing.T) {
	p := newPodsTest(t)
	o := newObserverTest()
	o.Pods = p.watch
	o.now = time.Now().Add(-time.Minute) // the watch has the true time
	o.listing.pods = append(o.listing.pods, holding("a"))
	asked := func(ticks int) (n int) {
		t.Helper()
		for range ticks {
			got, err := o.observe(t)
			if err != nil || len(got.View.Allocations) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			if got.Asked {
				n++
			}
			if age := o.now.Sub(got.View.At); age < 0 || age > 250*time.Millisecond {
				t.Fatalf("the view is of %v ago", age)
			}
		}
		return n
	}
	if got := asked(20); got != 20 {
		t.Errorf("asked %d times in 20 ticks without a watch", got)
	}
	p.follow(t)
	eventually(t, "synced", func() bool { return p.synced.Load() == 1 })
	o.now = time.Now()
	if got := asked(4); got < 2 {
		t.Errorf("asked %d times in 4 ticks after the watch began", got)
	}
	if got := asked(60); got != 6 {
		t.Errorf("asked %d times in 60 quiet ticks", got)
	}
	o.Changes.Add(podresources.Change{At: o.now, PodUID: "x"})
	if got := asked(3); got < 2 {
		t.Errorf("asked %d times in 3 ticks after a cgroup came", got)
	}
	asked(10)
	o.listing.err = errors.New("no")
	for range 12 {
		o.observe(t)
	}
	o.listing.err = nil
	if got := asked(10); got < 1 || got > 3 {
		t.Errorf("asked %d times in 10 ticks after an error", got)
	}
	p.Break(true)
	eventually(t, "broken", func() bool { _, open := p.Watches(); return open == 0 })
	time.Sleep(50 * time.Millisecond)
	if got := asked(10); got != 10 {
		t.Errorf("asked %d times in 10 ticks without a watch", got)
	}
}
