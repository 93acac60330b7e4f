package podresources

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	t.Helper()
	tree := cgroupTree{t: t, sysfs: t.TempDir(), v1: v1}
	tree.mkdir(".")
	if !v1 {
		tree.write("cgroup.controllers", "cpu memory\n")
	}
	return tree
}

func (c cgroupTree) path(name string) string { return filepath.Join(c.sysfs, "fs", "cgroup", name) }

func (c cgroupTree) mkdir(name string) {
	c.t.Helper()
	must.Do(c.t, os.MkdirAll(c.path(name), 0o755))
}

func (c cgroupTree) write(name, content string) {
	c.t.Helper()
	must.Do(c.t, os.WriteFile(c.path(name), []byte(content), 0o644))
}

// pod creates the cgroup of a pod, and in it that of a container, with or without processes.
func (c cgroupTree) pod(name string, processes bool) {
	c.t.Helper()
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
	c.t.Helper()
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
				t.Helper()
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
