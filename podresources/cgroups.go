package podresources

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Bounds of reading the cgroup file system.
const (
	maxPodCgroups    = 1 << 13 // pods that are remembered, beside those that exist
	maxKubepodsDepth = 3       // folders above kubepods
	maxCgroupFile    = 4096    // bytes of one file

	// minCgroupScan is the shortest time between two scans that [Cgroups.State] makes.
	minCgroupScan = time.Second
)

// Cgroups finds the pods of the node by their cgroups, of version 2 and version 1, and of both of
// the kubelet's drivers (k8s.io/kubernetes pkg/kubelet/cm/cgroup_manager_linux.go). The pod of UID
// a-b is
//
//	kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice    with the driver systemd
//	kubepods/burstable/poda-b                                                  with the driver cgroupfs
//
// or, if it is guaranteed, one folder higher. With the kubelet's --cgroup-root, all of this is in
// another folder. For version 1, the hierarchy of one controller is read. It is safe for concurrent
// use.
type Cgroups struct {
	// Report is called with the duration so far and the error of each read by Watch. It may be nil,
	// and must be set before Watch is called.
	Report func(took time.Duration, err error)

	path string
	now  func() time.Time

	mu      sync.Mutex           // is not held while files are read
	pods    map[string]podCgroup // pods that were seen, by UID
	scanned time.Time
}

// CgroupState is the state of a pod according to its cgroup.
type CgroupState uint8

// The states.
const (
	CgroupUnknown CgroupState = iota // never seen, or without processes
	CgroupAlive                      // exists, with processes
	CgroupGone                       // existed, and was removed
)

// podCgroup is a pod's cgroup, and the kubepods folder that it is in.
type podCgroup struct{ path, kubepods string }

// NewCgroups returns the reader of the cgroups in fs/cgroup of a sysfs. It reads nothing yet.
func NewCgroups(sysfs string, now func() time.Time) *Cgroups {
	return &Cgroups{path: filepath.Join(sysfs, "fs", "cgroup"), now: now, pods: make(map[string]podCgroup)}
}

// State reports whether the pod with that UID is alive: its cgroup has processes, or it was seen
// before, here or by [Cgroups.Watch], and is gone. The state is CgroupUnknown for a pod without
// processes, for one that was never seen, and for one that cannot be read.
func (c *Cgroups) State(uid string) CgroupState {
	pod, seen := c.lookup(uid)
	if !seen {
		return CgroupUnknown
	}
	switch populated, err := populated(pod.path); {
	case errors.Is(err, fs.ErrNotExist) && exists(pod.kubepods): // else the whole file system may be unmounted
		return CgroupGone
	case err == nil && populated:
		return CgroupAlive
	default:
		return CgroupUnknown
	}
}

// Folder returns the folder of the cgroup of the pod of that UID, "" if it was never seen. It may
// be gone.
func (c *Cgroups) Folder(uid string) string {
	pod, _ := c.lookup(uid)
	return pod.path
}

// lookup returns the cgroup of a pod if it was ever seen.
func (c *Cgroups) lookup(uid string) (podCgroup, bool) {
	c.mu.Lock()
	pod, seen := c.pods[uid]
	now := c.now()
	due := !seen && (c.scanned.IsZero() || now.Sub(c.scanned) >= minCgroupScan)
	if due {
		c.scanned = now
	}
	c.mu.Unlock()
	if due {
		pod, seen = c.scan(func(string) {})[uid]
	}
	return pod, seen
}

// scan lists the pods' cgroups and remembers them. Before it reads a folder in which pods or their
// parent folders may appear or disappear, it calls before with that folder.
func (c *Cgroups) scan(before func(dir string)) map[string]podCgroup {
	pods := make(map[string]podCgroup)
	for _, kubepods := range c.kubepods(before) {
		before(filepath.Dir(kubepods))
		before(kubepods)
		for _, dir := range subfolders(kubepods) {
			if isQoS(filepath.Base(dir)) {
				before(dir)
				addPods(pods, kubepods, subfolders(dir))
			}
		}
		addPods(pods, kubepods, subfolders(kubepods))
	}
	c.remember(pods)
	return pods
}

// addPods adds the folders that are cgroups of pods.
func addPods(pods map[string]podCgroup, kubepods string, dirs []string) {
	for _, dir := range dirs {
		if uid, ok := podUID(filepath.Base(dir)); ok {
			pods[uid] = podCgroup{path: dir, kubepods: kubepods}
		}
	}
}

// remember records that pods were seen. If there are too many, all others are forgotten.
func (c *Cgroups) remember(pods map[string]podCgroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pods) >= maxPodCgroups {
		c.pods = map[string]podCgroup{}
	}
	maps.Copy(c.pods, pods)
}

// Since returns the pods that appeared after a time, each with the latest time at which its cgroup
// can have appeared: the kernel keeps no creation time of cgroups. The time of a folder is when the
// kernel made its inode: when the kubelet created it, and again after the kernel dropped the inode.
func (c *Cgroups) Since(after time.Time) []Change {
	now := c.now()
	var out []Change
	for uid, pod := range c.scan(func(string) {}) {
		info, err := os.Stat(pod.path)
		if err != nil {
			continue
		}
		if change, came := CameSince(after, info.ModTime(), now); came {
			change.PodUID = uid
			out = append(out, change)
		}
	}
	return out
}

// CameSince returns the change of something that was there at a time of the wall clock, and may
// have appeared earlier, but not before the time after. It returns false if it appeared before
// that, or the time is in the future.
func CameSince(after, there, now time.Time) (Change, bool) {
	at := now.Add(there.Sub(now)) // on the monotonic clock, which does not jump
	if !at.After(after) || at.After(now) {
		return Change{}, false
	}
	return Change{At: at, Doubt: Doubt{Early: at.Sub(after)}}, true
}

// kubepods returns the kubelet's folders of pods: the highest ones of the first hierarchy that has
// any. That of version 2 is the only one; of version 1, the kubelet needs several.
func (c *Cgroups) kubepods(before func(dir string)) []string {
	hierarchies := []string{"memory", "cpu", "cpuset", "pids", "systemd", "unified"}
	if exists(filepath.Join(c.path, "cgroup.controllers")) {
		hierarchies = []string{"."}
	}
	for _, name := range hierarchies {
		hierarchy := filepath.Join(c.path, name)
		before(hierarchy)
		if found := findKubepods(hierarchy); len(found) > 0 {
			return found
		}
	}
	return nil
}

// findKubepods searches level by level, and returns the folders of the first level that has any.
func findKubepods(hierarchy string) []string {
	level := []string{hierarchy}
	for range maxKubepodsDepth + 1 {
		var found, below []string
		for _, dir := range level {
			for _, sub := range subfolders(dir) {
				if isKubepods(filepath.Base(sub)) {
					found = append(found, sub)
				} else {
					below = append(below, sub)
				}
			}
		}
		if len(found) > 0 {
			return found
		}
		level = below
	}
	return nil
}

// isKubepods reports whether a folder's name is that of the kubelet's folder of pods.
func isKubepods(name string) bool {
	return name == "kubepods" || name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice")
}

// isQoS reports whether a folder's name is that of the pods of one quality of service.
func isQoS(name string) bool {
	return name == "burstable" || name == "besteffort" ||
		strings.HasSuffix(name, "-burstable.slice") || strings.HasSuffix(name, "-besteffort.slice")
}

// podUID returns the pod's UID from the name of its cgroup.
func podUID(name string) (string, bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		i := strings.LastIndex(slice, "-pod")
		if i < 0 {
			return "", false
		}
		uid := strings.ReplaceAll(slice[i+len("-pod"):], "_", "-") // systemd's dash divides slices
		return uid, validUID(uid)
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return uid, ok && validUID(uid)
}

// populated reports whether a cgroup, or one below it, has processes: by cgroup.events (version 2,
// kernel Documentation/admin-guide/cgroup-v2.rst), or by the cgroup.procs of the tree (version 1).
func populated(dir string) (bool, error) {
	events, err := readHead(filepath.Join(dir, "cgroup.events"), maxCgroupFile)
	if errors.Is(err, fs.ErrNotExist) {
		return anyProcess(dir)
	}
	return bytes.Contains(events, []byte("populated 1")), err
}

// anyProcess looks for a process in a tree of cgroups.
func anyProcess(dir string) (bool, error) {
	procs, err := readHead(filepath.Join(dir, "cgroup.procs"), maxCgroupFile)
	if err != nil || len(procs) > 0 {
		return err == nil, err
	}
	for _, sub := range subfolders(dir) {
		if any, err := anyProcess(sub); any || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return any, err
		}
	}
	return false, nil
}

// readHead reads the beginning of a file, up to a number of bytes.
func readHead(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// subfolders returns the folders in a folder, those that can be read.
func subfolders(dir string) (folders []string) {
	entries, _ := os.ReadDir(dir) // entries read before an error are returned too
	for _, entry := range entries {
		if entry.IsDir() {
			folders = append(folders, filepath.Join(dir, entry.Name()))
		}
	}
	return folders
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
