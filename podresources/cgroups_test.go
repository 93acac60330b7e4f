package podresources

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

const (
	uidA      = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0001"
	uidB      = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0002"
	uidC      = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0003"
	uidNever  = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0009"
	uidStatic = "0123456789abcdef0123456789abcdef"
)

// cgroupTree is a cgroup file system in a temporary folder.
type cgroupTree struct {
	t     *testing.T
	sysfs string
	v1    bool
}

func newCgroupTree(t *testing.T, v1 bool) cgroupTree {
	tree := cgroupTree{t: t, sysfs: t.TempDir(), v1: v1}
	tree.mkdir(".")
	if !v1 {
		tree.write("cgroup.controllers", "cpu memory\n")
	}
	return tree
}

func (c cgroupTree) path(name string) string { return filepath.Join(c.sysfs, "fs", "cgroup", name) }

func (c cgroupTree) mkdir(name string) {
	must.Do(c.t, os.MkdirAll(c.path(name), 0o755))
}

func (c cgroupTree) write(name, content string) {
	must.Do(c.t, os.WriteFile(c.path(name), []byte(content), 0o644))
}

// pod creates the cgroup of a pod, and in it that of a container, with or without processes.
func (c cgroupTree) pod(name string, processes bool) {
	container := filepath.Join(name, "cri-containerd-1.scope")
	c.mkdir(container)
	populated, procs := "0", ""
	if processes {
		populated, procs = "1", "4711\n"
	}
	for _, dir := range []string{name, container} {
		if !c.v1 {
			c.write(filepath.Join(dir, "cgroup.events"), "populated "+populated+"\nfrozen 0\n")
		}
		c.write(filepath.Join(dir, "cgroup.procs"), "")
	}
	c.write(filepath.Join(container, "cgroup.procs"), procs)
}

func (c cgroupTree) remove(name string) {
	must.Do(c.t, os.RemoveAll(c.path(name)))
}

// layout has the cgroup paths of a kubelet's pods, by quality of service.
type layout struct {
	v1                                bool
	guaranteed, burstable, besteffort string // up to the UID
	suffix                            string
}

func (l layout) path(class, uid string) string {
	if l.suffix != "" {
		uid = strings.ReplaceAll(uid, "-", "_")
	}
	return class + uid + l.suffix
}

var layouts = map[string]layout{
	"v2 systemd": {
		guaranteed: "kubepods.slice/kubepods-pod",
		burstable:  "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod",
		besteffort: "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod",
		suffix:     ".slice",
	},
	"v2 systemd in kind": {
		guaranteed: "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod",
		burstable:  "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod",
		besteffort: "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod",
		suffix:     ".slice",
	},
	"v2 cgroupfs": {
		guaranteed: "kubepods/pod", burstable: "kubepods/burstable/pod",
		besteffort: "kubepods/besteffort/pod",
	},
	"v1 cgroupfs": {
		v1:         true,
		guaranteed: "memory/kubepods/pod", burstable: "memory/kubepods/burstable/pod",
		besteffort: "memory/kubepods/besteffort/pod",
	},
	"v1 below other folders": {
		v1:         true,
		guaranteed: "pids/x/y/z/kubepods/pod", burstable: "pids/x/y/z/kubepods/burstable/pod",
		besteffort: "pids/x/y/z/kubepods/besteffort/pod",
	},
}

func TestCgroupsState(t *testing.T) {
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			tree := newCgroupTree(t, l.v1)
			tree.mkdir("memory/system.slice/sshd.service")
			a, b, c := l.path(l.guaranteed, uidA), l.path(l.burstable, uidB), l.path(l.besteffort, uidC)
			static := l.path(l.burstable, uidStatic)
			tree.pod(a, true)
			tree.pod(b, true)
			tree.pod(c, true)
			tree.pod(static, false)
			cgroups := NewCgroups(tree.sysfs, func() time.Time { return limiterStart })
			check := func(when string, want map[string]CgroupState) {
				for uid, want := range want {
					expect.Is(t, cgroups.State(uid), want, "%s: %s", when, uid)
				}
			}
			check("at first", map[string]CgroupState{
				uidA: CgroupAlive, uidB: CgroupAlive, uidC: CgroupAlive, uidStatic: CgroupUnknown,
				"": CgroupUnknown, "../..": CgroupUnknown, uidNever: CgroupUnknown,
			})
			if got, never := cgroups.Folder(uidB), cgroups.Folder(uidNever); got != tree.path(b) || never != "" {
				t.Errorf("folder %q, want %q; of one never seen %q", got, tree.path(b), never)
			}
			tree.remove(a)
			tree.pod(b, false)
			tree.remove(static)
			check("later", map[string]CgroupState{
				uidA: CgroupGone, uidB: CgroupUnknown, uidC: CgroupAlive, uidStatic: CgroupGone,
			})
			for _, root := range []string{"kubepods.slice", "kubepods", "kubelet.slice", "memory", "pids"} {
				tree.remove(root)
			}
			check("with the whole tree out of sight", map[string]CgroupState{uidA: CgroupUnknown, uidC: CgroupUnknown})
		})
	}
}

// TestCgroupsStateScans: a pod that was created after the last scan is found by another scan. There
// is at most one scan a second.
func TestCgroupsStateScans(t *testing.T) {
	tree := newCgroupTree(t, false)
	now := limiterStart
	cgroups := NewCgroups(tree.sysfs, func() time.Time { return now })
	expect.Is(t, cgroups.State(uidA), CgroupUnknown, "without any cgroup")
	tree.pod("kubepods/pod"+uidA, true)
	now = now.Add(minCgroupScan - 1)
	expect.Is(t, cgroups.State(uidA), CgroupUnknown, "within a second of the last scan")
	now = now.Add(1)
	expect.Is(t, cgroups.State(uidA), CgroupAlive, "a second later")
}

func TestCgroupsRemembersNoMoreThanItMay(t *testing.T) {
	tree := newCgroupTree(t, false)
	cgroups := NewCgroups(tree.sysfs, time.Now)
	tree.pod("kubepods/pod"+uidA, true)
	cgroups.scan(func(string) {})
	for i := range 2 * maxPodCgroups {
		cgroups.remember(map[string]podCgroup{fmt.Sprint(i): {path: tree.path("none")}})
	}
	got := len(cgroups.pods)
	expect.That(t, got <= maxPodCgroups, "%d pods", got)
	expect.Is(t, cgroups.State(uidA), CgroupAlive, "a pod that is there was forgotten")
}

func TestPodUID(t *testing.T) {
	for name, want := range map[string]string{
		"pod" + uidA:      uidA,
		"pod" + uidStatic: uidStatic,
		"kubepods-pod6c61b571_6b3c_4d5e_8f0b_9b8d5c1a0001.slice":                    uidA,
		"kubepods-burstable-pod" + uidStatic + ".slice":                             uidStatic,
		"kubelet-kubepods-besteffort-pod6c61b571_6b3c_4d5e_8f0b_9b8d5c1a0001.slice": uidA,
		"pod":                    "",
		"podium.d":               "",
		"kubepods.slice":         "",
		"burstable":              "",
		"kubepods-pod.slice":     "",
		"pod../..":               "",
		"cri-containerd-1":       "",
		"kubepods-pod\xff.slice": "",
		"pod" + uidA + "\n":      "",
		"pod\n" + uidA:           "",
		"\npod" + uidA:           "",
		"kubepods-pod6c61b571_6b3c_4d5e_8f0b_9b8d5c1a0001.slice\n": "",
	} {
		got, ok := podUID(name)
		expect.That(t, ok == (want != "") && (!ok || got == want), "%q: %q, %v, want %q", name, got, ok, want)
	}
}

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
