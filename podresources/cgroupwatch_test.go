package podresources

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// watched is a running watch with the changes that it reports.
type watched struct {
	t       *testing.T
	notify  *fsnotify.Watcher
	cgroups *Cgroups
	changes chan Change
}

// startWatch watches until the test ends. It returns after the watch has read the existing cgroups.
func startWatch(t *testing.T, tree cgroupTree, notify *fsnotify.Watcher) watched {
	t.Helper()
	w := watched{t: t, notify: notify, cgroups: NewCgroups(tree.sysfs, time.Now), changes: make(chan Change, 4096)}
	watch := newCgroupWatch(w.cgroups, notify, func(c Change) { w.changes <- c })
	watch.present = watch.scan()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- watch.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v", err)
		}
		if notify != nil {
			expect.OK(t, notify.Close())
		}
	})
	return w
}

func newNotify(t *testing.T) *fsnotify.Watcher {
	t.Helper()
	notify := must.Get(fsnotify.NewBufferedWatcher(cgroupEvents))(t)
	return notify
}

// expect waits for the next changes.
func (w watched) expect(want ...Change) {
	w.t.Helper()
	for _, want := range want {
		select {
		case got := <-w.changes:
			diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Change{}, "At"))
			must.That(w.t, diff == "", "%v", diff)
			age := time.Since(got.At)
			expect.That(w.t, age >= 0 && age <= waitLimit, "dated %v ago", age)
		case <-time.After(waitLimit):
			w.t.Fatalf("no change, want %+v", want)
		}
	}
}

func podCame(uid string) Change { return Change{PodUID: uid} }

func podGone(uid string) Change { return Change{PodUID: uid, Gone: true} }

// TestWatch uses the kernel's inotify. One folder of pods exists from the beginning, the other is
// created with its pod.
func TestWatch(t *testing.T) {
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			tree := newCgroupTree(t, l.v1)
			a, b, c := l.path(l.guaranteed, uidA), l.path(l.burstable, uidB), l.path(l.besteffort, uidC)
			static := l.path(l.burstable, uidStatic)
			tree.pod(static, true)
			w := startWatch(t, tree, newNotify(t))

			tree.pod(filepath.Join(filepath.Dir(filepath.Dir(a)), "pod"+uidNever), true) // not the kubelet's
			tree.pod(a, true)
			w.expect(podCame(uidA))
			tree.pod(b, true)
			w.expect(podCame(uidB))
			tree.pod(c, true)
			w.expect(podCame(uidC))
			expect.Is(t, w.cgroups.State(uidC), CgroupAlive, "a pod that came")
			tree.remove(b)
			w.expect(podGone(uidB))
			tree.remove(a)
			w.expect(podGone(uidA))
			tree.remove(static)
			w.expect(podGone(uidStatic))
			expect.Is(t, w.cgroups.State(uidStatic), CgroupGone, "a pod that went")
			tree.pod(b, true)
			w.expect(podCame(uidB))
		})
	}
}

// TestWatchBeforeTheKubelet: kubepods is created later, removed, and created again.
func TestWatchBeforeTheKubelet(t *testing.T) {
	tree := newCgroupTree(t, false)
	w := startWatch(t, tree, newNotify(t))
	tree.pod("kubepods/burstable/pod"+uidA, true)
	w.expect(podCame(uidA))
	tree.pod("kubepods/burstable/pod"+uidB, true)
	w.expect(podCame(uidB))
	tree.remove("kubepods/burstable/pod" + uidA)
	w.expect(podGone(uidA))
	tree.remove("kubepods/burstable/pod" + uidB)
	w.expect(podGone(uidB))
	tree.remove("kubepods")
	tree.pod("kubepods/pod"+uidA, true)
	w.expect(podCame(uidA))
	tree.remove("kubepods/pod" + uidA)
	w.expect(podGone(uidA))
}

// TestWatchOverflow: when the kernel reports that it dropped events, the watch finds the changes of
// the dropped events.
func TestWatchOverflow(t *testing.T) {
	tree := newCgroupTree(t, false)
	tree.pod("kubepods/pod"+uidA, true)
	notify := newNotify(t)
	w := startWatch(t, tree, notify)
	for _, dir := range notify.WatchList() {
		must.Do(t, notify.Remove(dir))
	}
	tree.pod("kubepods/pod"+uidB, true)
	tree.remove("kubepods/pod" + uidA)
	notify.Errors <- fsnotify.ErrEventOverflow
	w.expect(podGone(uidA), podCame(uidB))
	tree.remove("kubepods/pod" + uidB) // watched again
	w.expect(podGone(uidB))
}

// An event may wait while the kernel drops the next one: the pod that it reports as created is
// already gone. It is random which of the two channels is read first, so the test tries it several
// times.
func TestWatchOverflowAfterEvents(t *testing.T) {
	tree := newCgroupTree(t, false)
	tree.mkdir("kubepods")
	for range 16 {
		notify := newNotify(t)
		notify.Events = make(chan fsnotify.Event, 1)
		notify.Errors = make(chan error, 1)
		notify.Events <- fsnotify.Event{Name: tree.path("kubepods/pod" + uidA), Op: fsnotify.Create}
		notify.Errors <- fsnotify.ErrEventOverflow
		w := startWatch(t, tree, notify)
		w.expect(podCame(uidA), podGone(uidA))
	}
}

// TestWatchWithoutInotify: without inotify, the pods are listed every second, as soon as the folder
// of pods exists.
func TestWatchWithoutInotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := newCgroupTree(t, true)
		w := startWatch(t, tree, nil)
		expectAfter := func(d time.Duration, want ...Change) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			var got []Change
			for len(w.changes) > 0 {
				got = append(got, <-w.changes)
			}
			expect.Is(t, cmp.Diff(want, got, cmpopts.IgnoreFields(Change{}, "At")), "", "after %v", d)
		}
		tree.pod("cpu/kubepods/pod"+uidB, true)
		tree.pod("cpu/kubepods/burstable/pod"+uidA, true)
		expectAfter(pollCgroups, podCame(uidA), podCame(uidB))
		expectAfter(pollCgroups)
		tree.remove("cpu/kubepods/burstable/pod" + uidA)
		expectAfter(pollCgroups, podGone(uidA))
	})
}

// The time at which a pod was created is that of its folder, no matter how late the event is
// handled.
func TestWatchLate(t *testing.T) {
	tree := newCgroupTree(t, false)
	l := layouts["v2 systemd"]
	var changes []Change
	w := newCgroupWatch(NewCgroups(tree.sysfs, time.Now), nil, func(c Change) { changes = append(changes, c) })
	for uid, age := range map[string]time.Duration{uidA: time.Second, uidB: time.Hour} {
		changes = nil
		dir := filepath.Join(tree.sysfs, "fs", "cgroup", l.path(l.burstable, uid))
		there := time.Now().Add(-age)
		must.Do(t, errors.Join(os.MkdirAll(dir, 0o755), os.Chtimes(dir, there, there)))
		w.handle(fsnotify.Event{Name: dir, Op: fsnotify.Create})
		must.That(t, len(changes) == 1 && !changes[0].Gone && changes[0].PodUID == uid, "emitted %+v", changes)
		// The two clocks of a time may run at different rates.
		if dated := changes[0].At.Sub(there).Abs() < age/2; dated != (age < recheckCgroups) {
			t.Errorf("a folder that is %v old came %v ago", age, time.Since(changes[0].At))
		}
	}
}

func TestWatchEnds(t *testing.T) {
	tree := newCgroupTree(t, false)
	tree.pod(filepath.Join("kubepods", "pod"+uidA), true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := NewCgroups(tree.sysfs, time.Now).Watch(ctx, func(c Change) { t.Errorf("what was there is emitted: %+v", c) })
	expect.That(t, errors.Is(err, context.Canceled), "Watch: %v", err)
}

// If handling a change hangs, that is reported, and delays the end of the watch only briefly.
func TestCgroupWatchHangs(t *testing.T) {
	tree := newCgroupTree(t, false)
	tree.mkdir("kubepods")
	synctest.Test(t, func(t *testing.T) {
		var reported []error
		c := NewCgroups(tree.sysfs, time.Now)
		c.Report = func(_ time.Duration, err error) { reported = append(reported, err) }
		release := make(chan struct{})
		defer close(release)
		w := newCgroupWatch(c, nil, func(Change) { <-release })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.run(ctx) }()
		synctest.Wait()
		tree.pod("kubepods/pod"+uidA, true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(reported); n == 0 || driver.ReasonOf(reported[n-1]) != driver.ReasonHung {
			t.Errorf("reported %v, want that it hangs", reported)
		}
		cancel()
		begun := time.Now()
		if err := <-done; !errors.Is(err, context.Canceled) || time.Since(begun) > driver.ReadWait {
			t.Errorf("error %v after %v", err, time.Since(begun))
		}
	})
}
