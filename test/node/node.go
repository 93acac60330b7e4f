// Package node is the node on which tests and the demo run the exporter: a folder with all that the
// exporter reads of a node, and its kubelet. Its user puts pods, devices and readings there:
// package simnode simulated ones with known use, package largenode many.
package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Paths below the node's folder. The path of a unix socket has at most 107 bytes, so the folder's
// must be short.
const (
	Socket     = kubelet + "/pod-resources/kubelet.sock"
	PodsSocket = kubelet + "/pods-api/pods-api.sock"
	Logs       = "pods"
	Sysfs      = "sys"
	Procfs     = "proc"
	Cgroups    = Sysfs + "/fs/cgroup"
	KernelLog  = "kmsg"
	CDI        = "cdi"
	Inventory  = "inventory.yaml"

	Burstable = Cgroups + "/kubepods.slice/kubepods-burstable.slice"

	kubelet = "kubelet"
	drafts  = "drafts" // files that are not complete yet

	controllers = "cpuset cpu io memory pids\n" // of cgroups of version 2
)

// Node is a node.
type Node struct {
	Name    string
	Dir     string // the folder of everything below
	Kubelet *podresourcestest.Kubelet
}

// New returns a node in a folder of its own, which is removed when the test ends. Its kubelet does
// not serve yet.
func New(tb testing.TB, name string) *Node {
	dir, err := os.MkdirTemp("", "node") //nolint:usetesting // the path of t.TempDir is too long for a socket
	must.Do(tb, err)
	n := must.Get(Make(dir, name))(tb)
	tb.Cleanup(func() {
		n.Kubelet.Stop()
		_ = os.RemoveAll(dir)
	})
	return n
}

// Make makes a node in a folder, which must exist.
func Make(dir, name string) (*Node, error) {
	n := &Node{Name: name, Dir: dir, Kubelet: podresourcestest.New()}
	for _, folder := range []string{filepath.Dir(Socket), filepath.Dir(PodsSocket), Logs, Procfs, Burstable, CDI, drafts} {
		if err := os.MkdirAll(n.Path(folder), 0o755); err != nil {
			return nil, fmt.Errorf("make node: %w", err)
		}
	}
	return n, errors.Join(
		os.WriteFile(n.Path(Cgroups, "cgroup.controllers"), []byte(controllers), 0o644),
		os.WriteFile(n.Path(KernelLog), nil, 0o600),
	)
}

// Start makes the kubelet serve its PodResources API.
func (n *Node) Start() error { return n.Kubelet.Start(n.Path(Socket)) }

// ServePods makes the kubelet serve its Pods API.
func (n *Node) ServePods() (*podresourcestest.Pods, error) {
	return podresourcestest.ServePods(n.Path(PodsSocket))
}

// Path returns the path of a file below the node's folder.
func (n *Node) Path(parts ...string) string {
	return filepath.Join(append([]string{n.Dir}, parts...)...)
}

// Write replaces a file atomically.
func (n *Node) Write(path string, data []byte) error {
	draft := n.Path(drafts, filepath.Base(path))
	err := os.WriteFile(draft, data, 0o644)
	if err == nil {
		err = os.Rename(draft, n.Path(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Flags are flags of the exporter, without dashes, by name. One with an empty value is a boolean.
type Flags map[string]string

// Flags returns the flags of an exporter of this node, which asks no API server.
func (n *Node) Flags() Flags {
	return Flags{
		"node-name": n.Name, "kube": "off", "kubelet.root": n.Path(kubelet),
		"kubelet.podresources-socket": n.Path(Socket), "kubelet.pods-socket": n.Path(PodsSocket),
		"path.podlogs": n.Path(Logs),
		"path.sysfs":   n.Path(Sysfs), "path.procfs": n.Path(Procfs), "path.kmsg": n.Path(KernelLog), "path.cdi": n.Path(CDI),
	}
}

// With returns the flags with more, which take precedence.
func (f Flags) With(more Flags) Flags {
	out := maps.Clone(f)
	maps.Copy(out, more)
	return out
}

// Args returns the flags as arguments.
func (f Flags) Args() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if f[name] == "" {
			out = append(out, "--"+name)
		} else {
			out = append(out, "--"+name+"="+f[name])
		}
	}
	return out
}

// Cgroup returns the folder of a pod's cgroup, named as by the kubelet's systemd driver.
func Cgroup(uid string) string {
	return Burstable + "/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
}

// LogsOf returns the log folder of a pod.
func LogsOf(namespace, name, uid string) string {
	return filepath.Join(Logs, namespace+"_"+name+"_"+uid)
}

// MakeLogs creates the log folder of a pod.
func (n *Node) MakeLogs(namespace, name, uid string, containers ...string) error {
	for _, container := range append(containers, "") {
		if err := os.MkdirAll(n.Path(LogsOf(namespace, name, uid), container), 0o755); err != nil {
			return fmt.Errorf("make log folder: %w", err)
		}
	}
	return nil
}

// CgroupOf returns the path of a pod's cgroup.
func (n *Node) CgroupOf(uid string) string { return n.Path(Cgroup(uid)) }

// MakeCgroup creates a pod's cgroup. Like the kernel's, it appears with all its files at once.
func (n *Node) MakeCgroup(uid string) error {
	draft := n.Path(drafts, uid)
	err := os.Mkdir(draft, 0o755)
	if err == nil {
		err = writeCgroup(draft)
	}
	if err == nil {
		err = os.Rename(draft, n.Path(Cgroup(uid)))
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// RemoveCgroup removes a pod's cgroup, with all its files at once.
func (n *Node) RemoveCgroup(uid string) error {
	draft := n.Path(drafts, uid)
	err := os.Rename(n.Path(Cgroup(uid)), draft)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.RemoveAll(draft)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// writeCgroup writes the files of a cgroup of version 2 that identify it and say that it has
// processes.
func writeCgroup(dir string) error {
	for name, content := range map[string]string{
		"cgroup.controllers": controllers,
		"cgroup.events":      "populated 1\nfrozen 0\n",
		// Its processes sleep: the simulated work is on devices alone.
		"cpu.stat":    "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
		"memory.stat": "anon 1073741824\nfile 268435456\npgfault 250000\npgmajfault 120\n",
		"io.stat":     "259:0 rbytes=1048576 wbytes=65536 rios=20 wios=4 dbytes=0 dios=0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("write cgroup: %w", err)
		}
	}
	return nil
}

// UUID returns the UUID of a GPU.
func UUID(i int) string { return fmt.Sprintf("GPU-aaaaaaaa-0000-0000-0000-%012d", i) }

// GPUs returns a ResourceSlice of a node's GPUs with UUIDs.
func GPUs(node, driver string, count int) string {
	devices := make([][2]string, count)
	for i := range devices {
		devices[i] = [2]string{fmt.Sprintf("gpu-%d", i), fmt.Sprintf("{uuid: {string: %q}}", UUID(i))}
	}
	return Slice(node, driver, devices...)
}

// Slice returns a ResourceSlice of a driver's devices on a node in YAML. Each device is a name and
// the YAML of its attributes.
func Slice(node, driver string, devices ...[2]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: %s-%s}\nspec:\n"+
		"  driver: %s\n  nodeName: %[1]s\n  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}\n  devices:\n",
		node, driver, driver)
	for _, d := range devices {
		fmt.Fprintf(&b, "  - name: %s\n    attributes: %s\n", d[0], d[1])
	}
	return b.String()
}

// Endpoint returns an entry of a scrape configuration that reads the devices of a driver by UUID
// from a URL each second. A metric is the YAML of its fields.
func Endpoint(name, url, driver string, metrics ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- name: %s\n  url: %s\n  interval: 1s\n  refresh: 0s\n  driver: %s\n"+
		"  match: {label: uuid, hardware: uuid}\n  metrics:\n", name, url, driver)
	for _, metric := range metrics {
		fmt.Fprintf(&b, "  - {%s}\n", metric)
	}
	return b.String()
}
