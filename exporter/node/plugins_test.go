package node

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	devices "github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A device plugin's device gets the identity of the DRA device of the same hardware as soon as that
// is known, and keeps it. Until then it has its own identity, which is kept for a while after its
// holder ends. The arguments are not changed.
func TestPluginDevicesIdentified(t *testing.T) {
	gpu := driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-0"}
	own := driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1"}
	listed := []podresources.Allocation{
		{Claim: podresources.Claim{
			Namespace: "ns", Name: "c",
		}, Device: driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-7"}},
		{Claim: podresources.Claim{Namespace: "ns"}, Device: driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-1::4"}},
	}
	inventory := driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-1"}}}
	now := time.Unix(1_700_000_000, 0)
	p := pluginDevices{reader: driver.NewReader[devices.PluginDevice]("find an interface", nil)}
	identified := func(at time.Duration, allocations []podresources.Allocation, all driver.Inventory) (driver.ID, int) {
		before := cmp.Diff(nil, allocations)
		out, more := p.identify(allocations, nil, all, now.Add(at))
		expect.That(t, cmp.Diff(nil, allocations) == before && len(inventory) == 1, "the arguments have changed")
		if len(out) < 2 {
			return driver.ID{}, len(more)
		}
		expect.That(t, out[0].Device == listed[0].Device && out[1].ShareID == "4", "the allocations are %+v", out)
		return out[1].Device, len(more)
	}
	if id, n := identified(0, listed, nil); id != own || n != 1 {
		t.Errorf("without inventory it is %v among %d devices", id, n)
	}
	if id, n := identified(time.Second, listed, inventory); id != gpu || n != 1 {
		t.Errorf("with an inventory it is %v among %d devices", id, n)
	}
	if id, n := identified(2*time.Second, listed, nil); id != gpu || n != 1 {
		t.Errorf("while its slice is away it is %v among %d devices", id, n)
	}
	if _, more := p.identify(listed, nil, nil, now.Add(2*time.Second)); more[gpu].UUID != "GPU-1" {
		t.Errorf("while its slice is away it is %+v", more)
	}
	if _, n := identified(2*time.Second, nil, nil); n != 1 {
		t.Errorf("%d devices just after the end of the holder", n)
	}
	if _, n := identified(rememberHeld+3*time.Second, nil, nil); n != 0 {
		t.Errorf("%d devices long after it", n)
	}
	if out, more := p.identify(listed[:1], nil, inventory, now); len(out) != 1 || len(more) != 1 {
		t.Errorf("without device plugins: %v, %v", out, more)
	}
}

// The kubelet is asked at the start, each minute, and when it has started again; then plugins
// register one by one, and what they offered before stays for a minute. What is no hardware does
// not count, and shares of a device count once. An old kubelet is no error.
func TestOffers(t *testing.T) {
	kubelet, socket := podresourcestest.New(), filepath.Join(t.TempDir(), "k.sock")
	start := func() {
		must.Do(t, kubelet.Start(socket))
	}
	start()
	t.Cleanup(kubelet.Stop)
	client := must.Get(podresources.NewClient(socket, podresources.Bounds{}))(t)
	t.Cleanup(func() {
		expect.OK(t, client.Close())
	})
	metrics := &recorded{rejected: map[string]int{}}
	o := offers{
		client: client, metrics: metrics,
		reader: driver.NewReader[map[driver.ID]devices.PluginDevice]("find offered devices", nil),
	}
	now := time.Unix(1_700_000_000, 0)
	check := func(after time.Duration, want ...string) {
		now = now.Add(after)
		o.update(t.Context(), now)
		var got []string
		for id := range o.current() {
			got = append(got, id.Device)
		}
		slices.Sort(got)
		expect.Equal(t, "", want, got)
	}
	check(0)
	expect.That(t, len(metrics.observed) == 0 && len(metrics.rejected) == 0,
		"an old kubelet is reported: %v, %v", metrics.observed, metrics.rejected)
	kubelet.Offer("nvidia.com/gpu", "GPU-1", "GPU-2::0", "GPU-2::1")
	kubelet.Offer("devices.kubevirt.io/kvm", "kvm0", "kvm1")
	check(offeredEvery / 2)
	check(offeredEvery/2, "GPU-1", "GPU-2::0")
	kubelet.Offer("nvidia.com/gpu", "GPU-1")
	check(offeredEvery/2, "GPU-1", "GPU-2::0")
	check(offeredEvery/2, "GPU-1")

	kubelet.Stop()
	kubelet.Offer("nvidia.com/gpu", "GPU-3")
	check(offeredEvery, "GPU-1") // it is away
	start()
	for range 100 { // the client connects again
		if _, _, err := client.Allocatable(t.Context()); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	check(offeredCheck, "GPU-1", "GPU-3")
	check(offeredEvery, "GPU-3")
	for _, said := range metrics.observed {
		t.Errorf("reported: %s", said)
	}
}

// A device that is only offered is one of the node's devices, in no slice, with the identity of the
// DRA device of the same hardware if there is one. It is gone when it is not offered any more.
func TestOfferedDevices(t *testing.T) {
	offered := map[driver.ID]devices.PluginDevice{}
	for _, name := range []string{"GPU-1", "GPU-2::0"} {
		offered[driver.ID{Driver: "nvidia.com/gpu", Device: name}] = devices.NewPluginDevice("nvidia.com/gpu", name, "")
	}
	listed := driver.ID{Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-0"}
	inventory := driver.Inventory{listed: {Hardware: driver.Hardware{UUID: "GPU-1"}, Local: true}}
	p, now := pluginDevices{}, time.Unix(1_700_000_000, 0)
	ids := func(offered map[driver.ID]devices.PluginDevice) []driver.ID {
		t.Helper()
		_, all := p.identify(nil, offered, inventory, now)
		if entry := all[listed]; !entry.Local {
			t.Errorf("the listed device is %+v", entry)
		}
		return slices.SortedFunc(maps.Keys(all), driver.ID.Compare)
	}
	plugged := driver.ID{Driver: "nvidia.com/gpu", Device: "GPU-2"}
	expect.Equal(t, "", []driver.ID{listed, plugged}, ids(offered))
	if _, all := p.identify(nil, offered, inventory, now); !all[plugged].Unlisted || all[plugged].UUID != "GPU-2" {
		t.Errorf("the device that is only offered is %+v", all[plugged])
	}
	expect.Equal(t, "not offered any more", []driver.ID{listed}, ids(nil))
}

// The CPUs of a device that is a NUMA node are read from sysfs. Those of its claims are read from
// their CDI specs, and stay known until the claim ends, even if the driver removes the spec
// earlier. No slice is needed.
func TestCPUSets(t *testing.T) {
	root, cdi := t.TempDir(), t.TempDir()
	drivertest.WriteTree(t, root, "devices/system/node/node1/cpulist: 0-7\n")
	n := newTestNode(t, Config{Sysfs: root, CDI: []string{cdi}})
	spec := filepath.Join(cdi, "dra.cpu.json")
	write := func(content string) {
		must.Do(t, os.WriteFile(spec, []byte(content), 0o600))
		must.Do(t, n.cdi.Load())
	}
	write(`{"kind":"dra.k8s.io/cpu","devices":[{"name":"claim-1","containerEdits":{"env":["DRA_CPUSET_1=2-3,9"]}}]}`)
	id := driver.ID{Driver: "dra.cpu", Pool: "node", Device: "cpudevnuma001"}
	held := func(claim string) []podresources.Allocation {
		of := podresources.Claim{Namespace: "team", Name: claim}
		pod := []podresources.Holder{{Pod: podresources.Pod{Namespace: "team", Name: "pod"}, Container: "main"}}
		return []podresources.Allocation{
			{Device: id, Claim: of, CDI: []string{"dra.k8s.io/cpu=" + claim}, Holders: pod},
			{
				Device: driver.ID{Driver: "gpu.example.com", Pool: "node", Device: "gpu-0"}, Claim: of,
				CDI: []string{"dra.k8s.io/cpu=" + claim}, Holders: pod,
			},
		}
	}
	for _, step := range []struct {
		name, claim string
		spec        string
		want        []int // of the claim
	}{
		{name: "prepared", claim: "claim-1", want: []int{2, 3, 9}},
		{name: "unprepared", claim: "claim-1", spec: `{"kind":"dra.k8s.io/cpu","devices":[]}`, want: []int{2, 3, 9}},
		{name: "of another claim", claim: "claim-2"},
		{name: "a new claim of the same name", claim: "claim-1"},
	} {
		if step.spec != "" {
			write(step.spec)
		}
		before := held(step.claim)
		answer(n, before...)
		allocations, all, _ := n.describe(time.Now())
		entry := all[id]
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7}, entry.CPUs); diff != "" || entry.NUMANode != "1" {
			t.Errorf("%s: NUMA node %q, CPUs of the device -want +got:\n%s", step.name, entry.NUMANode, diff)
		}
		got := map[driver.ID][]int{}
		for i := range allocations {
			got[allocations[i].Device] = allocations[i].CPUs
			if a := &allocations[i]; a.OwnCPUs != (a.Device == id) {
				t.Errorf("%s: the claim of %s has CPUs of its own: %v", step.name, a.Device.Device, a.OwnCPUs)
			}
			if a := &allocations[i]; a.Pending != (a.Device == id && step.want == nil) {
				t.Errorf("%s: the claim of %s is pending: %v", step.name, a.Device.Device, a.Pending)
			}
		}
		if diff := cmp.Diff(map[driver.ID][]int{id: step.want, before[1].Device: nil}, got); diff != "" {
			t.Errorf("%s: CPUs of the claim -want +got:\n%s", step.name, diff)
		}
	}
	if all := n.withCDI(nil, nil, time.Now()); len(all) != 1 || all[id].CPUs != nil {
		t.Errorf("the node's own inventory was changed: %+v", all)
	}
}

func TestAttached(t *testing.T) {
	id := func(device string) driver.ID { return driver.ID{Driver: "dra.net", Pool: "node", Device: device} }
	claim := podresources.Claim{Namespace: "ns", Name: "claim"}
	holders := []podresources.Holder{
		{Pod: podresources.Pod{Namespace: "ns", Name: "b"}, Container: "x", UID: "b"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "a"}, Container: "x", UID: "a"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "a"}, Container: "y", UID: "a"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "unknown"}},
	}
	nic := driver.Hardware{NetDev: "eth1", PCI: "0000:3b:00.0", Vendor: "x"}
	ib := driver.Hardware{RDMADev: "mlx5_0", PCI: "0000:3b:00.0"}
	inventory := driver.Inventory{id("nic"): {Hardware: nic}, id("ib"): {Hardware: ib}, id("gpu"): {}}
	for name, tc := range map[string]struct {
		allocation podresources.Allocation
		want       []attachment
	}{
		"keeps its name": {
			podresources.Allocation{Claim: claim, Device: id("nic")},
			[]attachment{{driver.Attachment{
				Driver: "dra.net", Device: "nic", Interface: "eth1", Hardware: driver.Hardware{NetDev: "eth1", PCI: nic.PCI},
			}, []string{"a", "b"}}},
		},
		"has another name there": {
			podresources.Allocation{Claim: claim, Device: id("nic"), Network: &podresources.Network{Interface: "net1"}},
			[]attachment{{driver.Attachment{
				Driver: "dra.net", Device: "nic", Interface: "net1", Hardware: driver.Hardware{NetDev: "eth1", PCI: nic.PCI},
			}, []string{"a", "b"}}},
		},
		"InfiniBand": {
			podresources.Allocation{Claim: claim, Device: id("ib")},
			[]attachment{{driver.Attachment{Driver: "dra.net", Device: "ib", Hardware: ib}, []string{"a", "b"}}},
		},
		"is in no slice": {
			podresources.Allocation{Claim: claim, Device: id("gone"), Network: &podresources.Network{Interface: "net1"}},
			[]attachment{{driver.Attachment{Driver: "dra.net", Device: "gone", Interface: "net1"}, []string{"a", "b"}}},
		},
		"is no interface":  {podresources.Allocation{Claim: claim, Device: id("gpu"), Network: &podresources.Network{}}, nil},
		"admin access":     {podresources.Allocation{Claim: claim, Device: id("nic"), Admin: true}, nil},
		"by device plugin": {podresources.Allocation{Device: id("nic")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.allocation.Holders = holders
			got := attached([]podresources.Allocation{tc.allocation}, inventory)
			expect.Equal(t, "attachments", tc.want, got, cmp.AllowUnexported(attachment{}), cmpopts.EquateEmpty())
		})
	}
}

// The holders of a requested device are the pods that use it. Pods with admin access and guests are
// excluded.
func TestProcesses(t *testing.T) {
	id := func(device string) driver.ID { return driver.ID{Driver: "gpu.amd.com", Pool: "node", Device: device} }
	pod := func(uid string) podresources.Holder {
		return podresources.Holder{Pod: podresources.Pod{Namespace: "ns", Name: "pod-" + uid}, Container: "c", UID: uid}
	}
	inventory := driver.Inventory{}
	hardware := map[string]driver.Hardware{
		"gpu0": {PCI: "0000:03:00.0"}, "gpu1": {PCI: "0000:04:00.0"}, "nic": {NetDev: "eth0"},
		"vfio": {PCI: "0000:05:00.0", Kind: driver.KindPassthrough},
	}
	for device, h := range hardware {
		inventory[id(device)] = driver.Entry{Hardware: h}
	}
	n := &Node{members: podresources.NewPodMembers(t.TempDir(), time.Now)}
	ask := func() []driver.PodProcesses {
		return n.Holders(func(h *driver.Hardware) bool { return h.PCI != "" || h.NetDev == "" })
	}
	got := ask()
	expect.That(t, got == nil, "before anything is known: %+v", got)
	n.latest.Store(&described{[]podresources.Allocation{
		{Device: id("gpu0"), Holders: []podresources.Holder{pod("b"), pod("a"), pod("")}},
		{Device: id("gpu1"), Holders: []podresources.Holder{pod("b"), pod("b")}},
		{Device: id("gpu1"), Holders: []podresources.Holder{pod("admin")}, Admin: true},
		{Device: id("nic"), Holders: []podresources.Holder{pod("network")}},
		{Device: id("vfio"), Holders: []podresources.Holder{pod("guest")}},
		{Device: id("unknown"), Holders: []podresources.Holder{pod("unknown")}},
	}, inventory})
	want := []driver.PodProcesses{
		{Devices: []driver.Hardware{hardware["gpu0"]}},
		{Devices: []driver.Hardware{hardware["gpu0"], hardware["gpu1"]}},
		{Devices: []driver.Hardware{{}}}, // the predicate decides
	}
	expect.Equal(t, "holders", want, ask())
}

func TestPCIPaths(t *testing.T) {
	root := t.TempDir()
	const first, second = "0000:01:00.0", "0000:02:00.0"
	folder := filepath.Join(root, "bus", "pci", "devices")
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.Symlink("../../../devices/pci0000:00/0000:00:01.0/"+first, filepath.Join(folder, first)))
	n := newTestNode(t, Config{Sysfs: root})
	found := driver.PCIPath{Root: "pci0000:00", Port: "0000:00:01.0"}
	got, complete := n.PCIPaths([]string{first, second})
	diff := cmp.Diff(map[string]driver.PCIPath{first: found, second: {}}, got)
	expect.That(t, diff == "" && complete, "complete: %v, -want +got:\n%s", complete, diff)
	must.Do(t, os.Mkdir(filepath.Join(folder, second), 0o755))
	if got, complete := n.PCIPaths([]string{first, second}); complete || got[first] != found {
		t.Errorf("a device that can't be read: complete %v, %v", complete, got)
	}
}
