package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	procsFile  = "cgroup.procs"
)

// hierarchy is one cgroup hierarchy, of version 2 or of version 1 (cgroups(7)).
type hierarchy struct {
	controllers string // Such as cpu,cpuacct or name=systemd; empty for version 2.
	path        string // The path of this process's cgroup.
}

// hierarchies returns the hierarchies in /proc/self/cgroup.
func hierarchies() ([]hierarchy, error) {
	file, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read the cgroups of this process: %w", err)
	}
	defer file.Close()
	var all []hierarchy
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if part := strings.SplitN(lines.Text(), ":", 3); len(part) == 3 {
			all = append(all, hierarchy{controllers: part[1], path: part[2]})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("this process has no cgroup")
	}
	return all, nil
}

func (h hierarchy) unified() bool { return h.controllers == "" }

// mountPoint returns where the hierarchy is mounted, if there are all hierarchies in total.
func (h hierarchy) mountPoint(all int) string {
	switch {
	case h.unified() && all == 1:
		return cgroupRoot
	case h.unified():
		return filepath.Join(cgroupRoot, "unified")
	default:
		return filepath.Join(cgroupRoot, strings.TrimPrefix(h.controllers, "name="))
	}
}

// mount mounts the hierarchy. The cgroup namespace hides what is outside it.
func (h hierarchy) mount(all int) error {
	kind, options := "cgroup", h.controllers
	switch {
	case h.unified():
		kind = "cgroup2"
	case strings.HasPrefix(h.controllers, "name="):
		options = "none," + h.controllers
	}
	path := h.mountPoint(all)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make the folder of cgroups: %w", err)
	}
	if err := unix.Mount(kind, path, kind, 0, options); err != nil {
		return fmt.Errorf("mount cgroups %q: %w", h.controllers, err)
	}
	names := strings.Split(h.controllers, ",")
	for _, name := range names {
		if len(names) > 1 {
			if err := os.Symlink(h.controllers, filepath.Join(cgroupRoot, name)); err != nil {
				return fmt.Errorf("name a controller of cgroups: %w", err)
			}
		}
	}
	return nil
}

// mountCgroups mounts the cgroups so that the cluster sees only its own. In version 2, a cgroup
// that enables controllers for its children may not contain processes, so this process moves into a
// child cgroup.
func mountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if len(all) > 1 {
		if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", cgroupRoot, err)
		}
	}
	for _, h := range all {
		if err := h.mount(len(all)); err != nil {
			return err
		}
	}
	if len(all) > 1 {
		return nil
	}
	leaf := filepath.Join(cgroupRoot, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return fmt.Errorf("make the cgroup of components: %w", err)
	}
	return join(leaf)
}

// cgroups are the cluster's cgroups and the earlier cgroups of this process, one per hierarchy.
type cgroups struct{ ours, before []string }

// makeCgroups creates the cgroups of the cluster in a folder. In version 1 they are children of
// this process's cgroups. In version 2 they are children of the root, the only cgroup that may have
// both processes and controllers for its children. Their paths are first written to a file in the
// folder.
func makeCgroups(dir string) (*cgroups, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")
	g := &cgroups{}
	for _, h := range all {
		mounted := h.mountPoint(len(all))
		parent := filepath.Join(mounted, h.path)
		g.before = append(g.before, parent)
		if len(all) == 1 {
			parent = mounted
		}
		g.ours = append(g.ours, filepath.Join(parent, name))
	}
	if err := os.WriteFile(cgroupsFile(dir), []byte(strings.Join(g.ours, "\n")), 0o600); err != nil {
		return nil, fmt.Errorf("note the cgroups of the cluster: %w", err)
	}
	for i, h := range all {
		if err := makeCgroup(g.ours[i], len(all) == 1 && h.unified()); err != nil {
			return nil, fmt.Errorf("make the cgroups of the cluster: %w", err)
		}
	}
	return g, nil
}

func makeCgroup(path string, unified bool) error {
	if unified {
		return errors.Join(delegate(filepath.Dir(path)), os.Mkdir(path, 0o755))
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	// A new cpuset has no CPU and no memory node, so no process can join it.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(filepath.Dir(path), file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(path, file), content, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// delegate enables all controllers for the children of a cgroup of version 2.
func delegate(path string) error {
	names, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(names)) {
		if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return err
		}
	}
	return nil
}

// inside moves this process into the cluster's cgroups, calls start, and moves it back. A new
// cgroup namespace has the cgroups of the process that creates it as its root. If g is nil, inside
// only calls start.
func (g *cgroups) inside(start func() error) error {
	if g == nil {
		return start()
	}
	var err error
	for _, path := range g.ours {
		if err = join(path); err != nil {
			break
		}
	}
	if err == nil {
		err = start()
	}
	for _, path := range g.before {
		err = errors.Join(err, join(path))
	}
	return err
}

// join moves this process into a cgroup.
func join(path string) error {
	if err := os.WriteFile(filepath.Join(path, procsFile), []byte("0"), 0); err != nil {
		return fmt.Errorf("enter a cgroup: %w", err)
	}
	return nil
}

// cgroupsFile is the file in a cluster's folder that lists its cgroups.
func cgroupsFile(dir string) string { return filepath.Join(dir, "cgroups") }

// RemoveCgroups removes the cgroups, if any, of the cluster in a folder. The cluster's processes
// must have ended.
func RemoveCgroups(dir string) error {
	content, err := os.ReadFile(cgroupsFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which cgroups the cluster has: %w", err)
	}
	for path := range strings.SplitSeq(string(content), "\n") {
		err = errors.Join(err, removeCgroup(path))
	}
	if err != nil {
		return err
	}
	if err := os.Remove(cgroupsFile(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the cluster's cgroups: %w", err)
	}
	return nil
}

// removeCgroup removes a cgroup and its children. After its processes have ended, a cgroup remains
// busy for a moment.
func removeCgroup(path string) error {
	var folders []string
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the cgroups of the cluster: %w", err)
	}
	for _, folder := range slices.Backward(folders) {
		for range 100 {
			if err = unix.Rmdir(folder); !errors.Is(err, unix.EBUSY) {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", folder, err)
		}
	}
	return nil
}
