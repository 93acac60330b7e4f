package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// recorded records what a node reports to its metrics.
type recorded struct {
	mu       sync.Mutex
	observed []string // input and error
	rejected map[string]int

	unresolved map[string]int
}

func (r *recorded) Held(held *holders.Holdings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unresolved = held.Unresolved
}

func (r *recorded) Observe(input string, _ time.Duration, err error, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observed = append(r.observed, fmt.Sprintf("%s: %v", input, err))
}

func (r *recorded) ObserveReader(name string, took time.Duration, err error, now time.Time) {
	if err != nil {
		r.Observe(name, took, err, now)
	}
}

func (r *recorded) Absent(input string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observed = append(r.observed, fmt.Sprintf("%s: absent: %v", input, err))
}

func (r *recorded) Reject(rejected ...driver.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range rejected {
		r.rejected[one.Input] += one.Count
	}
}

func (r *recorded) RejectTotal(string, driver.Rejections) {}

// newTestNode returns a node without a kubelet.
func newTestNode(t *testing.T, c Config) *Node {
	t.Helper()
	c.PodResourcesSocket, c.Log = "none", slog.New(slog.DiscardHandler)
	if c.Metrics == nil {
		c.Metrics = &recorded{rejected: map[string]int{}}
	}
	n := must.Get(New(c))(t)
	t.Cleanup(n.Close)
	return n
}

// Passthrough reports whether a device is handed to a guest: whether it is allocated, or bound to
// vfio-pci. A device that is only listed for guests does not count.
func TestPassthrough(t *testing.T) {
	root := t.TempDir()
	drivertest.WriteTree(t, root, `
bus/pci/devices/0000:01:00.0/driver -> ../../drivers/nvidia
bus/pci/devices/0000:02:00.0/driver -> ../../drivers/vfio-pci
`)
	n := newTestNode(t, Config{Sysfs: root})
	for _, tc := range []struct {
		name     string
		kind     driver.Kind
		pci      string
		held     bool
		expected bool
	}{
		{"a GPU that is held", driver.KindDevice, "0000:01:00.0", true, false},
		{"listed for guests, with NVIDIA's driver", driver.KindPassthrough, "0000:01:00.0", false, false},
		{"allocated to a guest", driver.KindPassthrough, "0000:01:00.0", true, true},
		{"bound to vfio-pci", driver.KindPassthrough, "0000:02:00.0", false, true},
		{"without an address", driver.KindPassthrough, "", false, false},
	} {
		id := driver.ID{Driver: "d", Pool: "p", Device: "gpu"}
		n.listed = driver.Inventory{id: {Hardware: driver.Hardware{Kind: tc.kind, PCI: tc.pci}}}
		var allocations []podresources.Allocation
		if tc.held {
			allocations = append(allocations, jointest.Allocation("gpu", "claim", "pod"))
			allocations[0].Device = id
		}
		answer(n, append(allocations, jointest.Allocation("other", "other", "other"))...)
		n.Describe()
		expect.Is(t, n.Passthrough(), tc.expected, "%s", tc.name)
	}
}

// The node knows whether it has devices with binding conditions.
func TestConditional(t *testing.T) {
	n := newTestNode(t, Config{})
	for _, is := range []bool{false, true} {
		n.listed = driver.Inventory{{Device: "gpu"}: {}, {Device: "fabric"}: {Conditional: is}}
		n.Describe()
		if got := n.hasConditional(); got != is {
			t.Errorf("with a device that has binding conditions, %v: %v", is, got)
		}
	}
}

// Listed returns how many devices of a vendor could be read on this node.
func TestListed(t *testing.T) {
	n := newTestNode(t, Config{})
	expect.That(t, n.Listed("nvidia") == 0, "before the first inventory: %d", n.Listed("nvidia"))
	gpu := driver.Hardware{Vendor: "nvidia"}
	guest, part := gpu, gpu
	guest.Kind, part.Kind = driver.KindPassthrough, driver.KindPartition
	n.listed = driver.Inventory{
		{Device: "gpu-0"}: {Hardware: gpu, Local: true}, {Device: "gpu-1"}: {Hardware: gpu, Local: true},
		{Device: "remote"}: {Hardware: gpu}, {Device: "guest"}: {Hardware: guest, Local: true},
		{Device: "part"}: {Hardware: part, Local: true}, {Device: "gone"}: {Hardware: gpu, Local: true, DriverGone: true},
	}
	n.Describe()
	expect.That(t, n.Listed("nvidia") == 2 && n.Listed("amd") == 0,
		"%d devices of NVIDIA, %d of AMD, want 2 and 0", n.Listed("nvidia"), n.Listed("amd"))
}

// Devices of a local driver are marked when the driver is gone. The argument is not changed.
// Devices that are offered from elsewhere have no driver on the node, and devices for which nothing
// is done on the node need none (KEP-5945).
func TestWithoutDrivers(t *testing.T) {
	root := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(root, "plugins", "d"), 0o755))
	now := time.Unix(1_700_000_000, 0)
	n := &Node{drivers: podresources.NewDrivers(root, func() time.Time { return now })}
	local, remote := driver.ID{Driver: "d", Device: "local"}, driver.ID{Driver: "d", Device: "remote"}
	socketless := driver.ID{Driver: "d", Device: "socketless"}
	listed := driver.Inventory{local: {Local: true}, remote: {}, socketless: {Local: true, Socketless: true}}
	n.withoutDrivers(listed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.drivers.Watch(ctx) // reads once
	now = now.Add(time.Hour)
	got := n.withoutDrivers(listed)
	if !got[local].DriverGone || got[remote].DriverGone || got[socketless].DriverGone || listed[local].DriverGone {
		t.Errorf("got %+v of %+v", got, listed)
	}
}

// The entry of a held device is kept while the device is not listed, and is marked as unlisted.
// When the device is listed again, the new entry counts.
func TestWithHeld(t *testing.T) {
	n := &Node{}
	held, free := driver.ID{Driver: "d", Device: "held"}, driver.ID{Driver: "d", Device: "free"}
	allocations := []podresources.Allocation{{Device: held}, {Device: driver.ID{Driver: "d", Device: "never listed"}}}
	uuid := func(s string) driver.Entry { return driver.Entry{Hardware: driver.Hardware{UUID: s}} }
	full := driver.Inventory{held: uuid("1"), free: uuid("2")}
	left := driver.Entry{Hardware: driver.Hardware{UUID: "1"}, Unlisted: true}
	for i, step := range []struct {
		holders      []podresources.Allocation
		listed, want driver.Inventory
	}{
		{allocations, nil, nil},
		{allocations, full, full},
		{allocations, nil, driver.Inventory{held: left}},
		{allocations, driver.Inventory{free: uuid("2")}, driver.Inventory{held: left, free: uuid("2")}},
		{allocations, driver.Inventory{held: uuid("3")}, driver.Inventory{held: uuid("3")}},
		{nil, nil, nil},
		{allocations, nil, nil},
	} {
		before := maps.Clone(step.listed)
		expect.Equal(t, fmt.Sprintf("step %d", i), step.want, n.withHeld(step.holders, step.listed), cmpopts.EquateEmpty())
		if diff := cmp.Diff(before, step.listed); diff != "" {
			t.Errorf("step %d changed what is listed:\n%s", i, diff)
		}
	}
}

// The inventory file is an input like any other: it is up from the first reading on, even if the
// file has not changed.
func TestInventoryFileIsUpAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	old := time.Now().Add(-time.Hour)
	must.Do(t, os.Chtimes(file, old, old))
	m := &recorded{rejected: map[string]int{}}
	newTestNode(t, Config{InventoryFile: file, Metrics: m})
	expect.Equal(t, "inputs that were observed", []string{"slices: <nil>"}, m.observed)
}

// Objects of the inventory file that can't be used are counted by input.
func TestInventoryFileRejections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	text := "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: 7}\n"
	must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	m := &recorded{rejected: map[string]int{}}
	newTestNode(t, Config{InventoryFile: file, Metrics: m})
	expect.That(t, m.rejected["claims"] == 1 && len(m.rejected) == 1, "rejected are %v, want one claim", m.rejected)
}

// A missing file is an error that names the field of Config.
func TestConfigError(t *testing.T) {
	_, err := New(
		Config{InventoryFile: filepath.Join(t.TempDir(), "none"), Metrics: &recorded{}, Log: slog.New(slog.DiscardHandler)},
	)
	bad, ok := errors.AsType[*ConfigError](err)
	expect.That(t, ok && bad.Field == "InventoryFile" && errors.Is(err, os.ErrNotExist), "the error is %v", err)
}

// A device that neither a slice nor a CDI spec describes is in the inventory if its name describes
// it.
func TestKnownByName(t *testing.T) {
	n := newTestNode(t, Config{})
	mig, other := driver.ID{
		Driver: "gpu.nvidia.com", Device: "gpu-1-mig-3g40gb-9-4",
	}, driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-1"}
	all := n.withCDI([]podresources.Allocation{{Device: mig}, {Device: other}}, nil, time.Unix(1_700_000_000, 0))
	expect.That(t, len(all) == 1 && all[mig].Placement == "nvidia/1/9/4", "the inventory is %+v", all)
}

// answer gives the node an answer of the kubelet.
func answer(n *Node, allocations ...podresources.Allocation) {
	a := holders.Answer{Asked: time.Now(), Pods: map[podresources.Pod]struct{}{}, Allocations: allocations}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			a.Pods[h.Pod] = struct{}{}
		}
	}
	n.book.Answered(&a)
}

func TestMain(m *testing.M) { testmain.Main(m) }

// For the time since an earlier process ended, cgroups and CDI specs show the latest time at which
// pods began. Pods' objects show when they ended.
func TestResume(t *testing.T) {
	now := time.Now()
	until := now.Add(-time.Minute)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	sysfs, cdi := t.TempDir(), t.TempDir()
	create := func(path string, at time.Time, content string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && content == "" {
			err = os.Mkdir(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err == nil {
			err = os.Chtimes(path, at, at)
		}
		must.Do(t, err)
	}
	cgroups := filepath.Join(sysfs, "fs", "cgroup")
	create(filepath.Join(cgroups, "cgroup.controllers"), now, "cpu\n")
	for pod, at := range map[string]time.Time{
		"before": ago(2 * time.Minute), "since": ago(30 * time.Second), "ahead": now.Add(time.Hour),
	} {
		create(filepath.Join(cgroups, "kubepods", "pod"+pod), at, "")
	}
	const spec = "cdiVersion: 0.6.0\nkind: vendor.test/dev\ndevices:\n- {name: NAME, containerEdits: {env: [A=b]}}\n"
	for name, at := range map[string]time.Time{"old": ago(2 * time.Minute), "new": ago(20 * time.Second)} {
		create(filepath.Join(cdi, name+".yaml"), at, strings.Replace(spec, "NAME", name, 1))
	}
	n := newTestNode(t, Config{Sysfs: sysfs, CDI: []string{cdi}})
	n.Resume(t.Context(), nil, until)
	n.book.PodsListed([]podresources.PodFacts{
		{Pod: podresources.Pod{Namespace: "ns", Name: "over"}, UID: "over", Final: true, Finished: ago(10 * time.Second)},
		{Pod: podresources.Pod{Namespace: "ns", Name: "runs"}, UID: "runs", Started: true},
	}, false, now)
	_, signs := n.book.Holds(now, time.Time{})
	want := []podresources.Change{
		{At: ago(30 * time.Second), PodUID: "since", Doubt: podresources.Doubt{Early: 30 * time.Second}},
		{At: ago(20 * time.Second), CDI: []string{"vendor.test/dev=new"}, Doubt: podresources.Doubt{Early: 40 * time.Second}},
		{At: ago(9 * time.Second), PodUID: "over", Gone: true, Doubt: podresources.Doubt{Early: time.Second}},
	}
	near := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() < time.Millisecond })
	roughly := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond })
	expect.Equal(t, "changes", want, signs.Changes, near, roughly)
}
