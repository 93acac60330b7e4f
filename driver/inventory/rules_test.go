package inventory

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// testdata/drivers.json has the entry of every kind of device of every driver in the table of
// rules.
func TestRules(t *testing.T) {
	text := strings.NewReplacer(
		`"partition"`, fmt.Sprint(driver.KindPartition), `"passthrough"`, fmt.Sprint(driver.KindPassthrough),
		`"channel"`, fmt.Sprint(driver.KindChannel), `"healthy"`, fmt.Sprint(uint8(driver.HealthGood)),
		`"unhealthy"`, fmt.Sprint(uint8(driver.HealthBad)),
	).Replace(string(readTestdata(t, "drivers.json")))
	var want map[string]map[string]driver.Entry
	expected := json.NewDecoder(strings.NewReader(text))
	expected.DisallowUnknownFields()
	must.Do(t, expected.Decode(&want))
	got := map[string]map[string]driver.Entry{}
	for id, entry := range parse(t, readTestdata(t, "drivers.yaml"), "node1") {
		if got[id.Driver] == nil {
			got[id.Driver] = map[string]driver.Entry{}
		}
		entry.Local = false // which TestPlacement is about
		got[id.Driver][id.Device] = entry
	}
	expect.Equal(t, "", want, got)
}

func TestVendorName(t *testing.T) {
	for told, want := range map[string]string{
		"": "", "10de": "nvidia", "0x10DE": "nvidia", "NVIDIA Corporation": "nvidia", "1002": "amd",
		"Advanced Micro Devices, Inc. [AMD/ATI]": "amd", "Habana Labs Ltd.": "intel", "AMD": "amd", "8086": "intel",
		"Intel Corporation": "intel",
		"15b3":              "mellanox", "Broadcom Inc. and subsidiaries": "broadcom", "Acme": "Acme",
	} {
		expect.Is(t, vendorName(told), want, "vendorName(%q) =", told)
	}
}

// A driver's uuid identifies a device only if a single device of the pool has it and it is not just
// an index. A GPU that is also listed for guests counts as one GPU.
func TestFalseUUIDs(t *testing.T) {
	id := func(pool, device string) driver.ID { return driver.ID{Driver: "d.test", Pool: pool, Device: device} }
	entry := func(kind driver.Kind, uuid string) driver.Entry {
		return driver.Entry{Hardware: driver.Hardware{Kind: kind, UUID: uuid, PCI: "0000:01:00.0"}}
	}
	in := driver.Inventory{
		id("a", "shared-0"): entry(driver.KindDevice, "X-1"),
		id("a", "shared-1"): entry(driver.KindPartition, "x-1"),
		id("b", "same"):     entry(driver.KindDevice, "X-1"),
		id("a", "gpu"):      entry(driver.KindDevice, "GPU-2"),
		id("a", "gpu-vfio"): entry(driver.KindPassthrough, "GPU-2"),
		id("a", "index"):    entry(driver.KindDevice, "a-7"),
		id("a", "longer"):   entry(driver.KindDevice, "a-7f"),
		id("a", "none"):     entry(driver.KindDevice, ""),
		id("a", "none-2"):   entry(driver.KindDevice, ""),
	}
	dropFalseUUIDs(in)
	want := map[string]string{
		"shared-0": "", "shared-1": "", "same": "X-1", "gpu": "GPU-2", "gpu-vfio": "GPU-2", "index": "", "longer": "a-7f",
		"none": "", "none-2": "",
	}
	for id, e := range in {
		expect.That(t, e.UUID == want[id.Device] && e.PCI != "",
			"%s: hardware %+v, want UUID %q", id.Device, e.Hardware, want[id.Device])
	}
}

func TestPCIInName(t *testing.T) {
	for name, want := range map[string]string{
		"0000-03-00-0-0x56c0": "0000:03:00.0", "0000-3b-00-0": "0000:3b:00.0", "qatvf-0000-6d-00-1": "0000:6d:00.1",
		"gpu-0": "", "0000-03-00-8": "", "x0000-03-00-0": "", "0000-03-00-0x": "", "0000-03-20-0": "", "": "",
		"gpu-0-mig-1g10gb-19-0": "",
	} {
		expect.Is(t, pciInName(name), want, "pciInName(%q) =", name)
	}
}

func TestParseCPUList(t *testing.T) {
	for list, want := range map[string][]int{
		"0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "5\n": {5}, "": nil, "3-1": nil, "1,": nil, "0-4294967295": nil,
		"8191": {8191}, "8192": nil, "-1": nil, "a": nil,
	} {
		expect.Equal(t, fmt.Sprintf("parseCPUList(%q)", list), want, parseCPUList(list))
	}
}

// parse parses slices in which nothing is to be rejected.
func parse(t *testing.T, data []byte, node string) driver.Inventory {
	got, rejected, err := ParseSlices(data, node)
	must.That(t, err == nil && len(rejected) == 0, "rejected %v, error %v", rejected, err)
	return got
}

func readTestdata(tb testing.TB, name string) []byte {
	data := must.Get(os.ReadFile("testdata/" + name))(tb)
	return data
}

// A MIG instance that no slice lists is known by its name; its GPU's node is not its own.
func TestNamed(t *testing.T) {
	nodes := driver.Hardware{DeviceNodes: []string{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia0"}}
	for _, tc := range []struct {
		id    driver.ID
		want  driver.Hardware
		named bool
	}{
		{driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-0-mig-1g10gb-19-2"}, driver.Hardware{
			Kind: driver.KindPartition, Vendor: "nvidia", Placement: "nvidia/0/19/2",
			DeviceNodes: []string{"/dev/nvidia-caps/nvidia-cap21"},
		}, true},
		{driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-0"}, nodes, false},
		{driver.ID{Driver: "gpu.example.com", Device: "gpu-0-mig-1g10gb-19-2"}, nodes, false},
	} {
		got, named := CompleteByName(tc.id, nodes)
		diff := cmp.Diff(tc.want, got)
		expect.That(t, diff == "" && named == tc.named, "%v: named %v (-want +got):\n%s", tc.id, named, diff)
	}
}

// TestPCIeRoots checks which values of the standard attribute count: CPUs have lists of them.
func TestPCIeRoots(t *testing.T) {
	for value, want := range map[string]string{
		"{string: 'pci0000:40'}":                                      "pci0000:40",
		"{strings: ['pci0000:40', 'pci0000:00', 'pci0000:40']}":       "pci0000:00,pci0000:40",
		"{strings: ['0000:40', 'pci0000', 'pcix:40', 'pci10000:00']}": "pci10000:00",
		"{int: 4}": "",
	} {
		found, rejected, err := ParseSlices([]byte(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.x
  nodeName: node
  pool: {name: node, generation: 1, resourceSliceCount: 1}
  devices: [{name: d, attributes: {resource.kubernetes.io/pcieRoot: `+value+`}}]
`), "node")
		got := found[driver.ID{Driver: "gpu.x", Pool: "node", Device: "d"}].PCIeRoot
		expect.That(t, err == nil && got == want, "%s: %q, %v, %v, want %q", value, got, rejected, err, want)
	}
}

// The amounts are those of the API's own description of CapacityRequestPolicy.
func TestPolicies(t *testing.T) {
	const device = `{"name":"g","allowMultipleAllocations":true,"capacity":` +
		`{"memory":{"value":"80","requestPolicy":POLICY},"cores":{"value":"100"}}}`
	type request struct{ amount, consumes float64 } // below 0: it can't be allocated
	none := []request{{0, -1}, {30, -1}}
	for name, tc := range map[string]struct {
		policy   string
		want     []driver.RequestPolicy
		requests []request
		rejected int
	}{
		"none": {policy: `null`},
		"values": {
			policy: `{"default":"10","validValues":["40","10","20"]}`,
			want:   []driver.RequestPolicy{{Resource: "memory", Values: []float64{10, 20, 40}}},
			requests: []request{
				{0, 10}, {10, 10}, {11, 20}, {40, 40}, {41, -1},
			},
		},
		"range": {
			policy:   `{"default":"10","validRange":{"min":"10","max":"60"}}`,
			want:     []driver.RequestPolicy{{Resource: "memory", Min: 10, Max: 60}},
			requests: []request{{3, 10}, {10.5, 10.5}, {60, 60}, {61, -1}},
		},
		"steps": {
			policy:   `{"default":"10","validRange":{"min":"5","max":"60","step":"10"}}`,
			want:     []driver.RequestPolicy{{Resource: "memory", Min: 5, Max: 60, Step: 10}},
			requests: []request{{0, 5}, {5, 5}, {6, 15}, {15, 15}, {50, 55}, {56, -1}},
		},
		"a default alone": {
			policy: `{"default":"10"}`, want: []driver.RequestPolicy{{Resource: "memory"}}, requests: []request{{7, 7}},
		},
		"negative amount": {
			policy: `{"validRange":{"min":"-1"}}`, rejected: 1, requests: none,
			want: []driver.RequestPolicy{{Resource: "memory", Values: []float64{}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, rejected, err := ParseSlices([]byte(sliceOf(1, here, strings.Replace(device, "POLICY", tc.policy, 1))), "n1")
			must.Do(t, err)
			got := in[driver.ID{Driver: "d.test", Pool: "p", Device: "g"}].Policies
			expect.Equal(t, "policies,", tc.want, got)
			expect.That(t, rejected[driver.ReasonMalformedCapacity] == tc.rejected,
				"rejected %v, want %d", rejected, tc.rejected)
			for _, r := range tc.requests {
				if consumes, ok := got[0].Consumed(r.amount); ok != (r.consumes >= 0) || ok && consumes != r.consumes {
					t.Errorf("a request for %v consumes %v, %v; want %v", r.amount, consumes, ok, r.consumes)
				}
			}
		})
	}
	alone := sliceOf(1, here,
		`{"name":"g","capacity":{"memory":{"value":"80","requestPolicy":{"validRange":{"min":"1"}}}}}`)
	for id, entry := range parse(t, []byte(alone), "n1") {
		expect.That(t, entry.Policies == nil, "%v has %v, though it is allocated once", id, entry.Policies)
	}
}

// cpuSpec is what dra-driver-cpu writes, in one file for all claims (pkg/driver, cdi.go and
// dra_hooks.go), after "devices":.
func cpuSpec(devices string) string {
	return `{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","containerEdits":{},"devices":` + devices + `}`
}

func cpuDevice(name, env string) string {
	return `{"name":"` + name + `","containerEdits":{"env":[` + env + `]}}`
}

func TestCPUsOfSpecs(t *testing.T) {
	dir := t.TempDir()
	c := NewCDI([]string{dir}, "")
	cpus := func(names ...string) []int {
		c.refresh()
		return c.CPUs(names)
	}
	const first, second = "dra.k8s.io/cpu=claim-1", "dra.k8s.io/cpu=claim-2"
	path := filepath.Join(dir, "dra.cpu.json")
	write(t, path, cpuSpec(`[]`))
	if got := cpus(first); got != nil || len(c.Rejected()) > 0 {
		t.Errorf("without claims: %v, rejected %v", got, c.Rejected())
	}
	write(t, path, cpuSpec(`[`+cpuDevice("claim-1", `"DRA_CPUSET_1=8,0-3,2"`)+`]`))
	expect.Equal(t, "", []int{0, 1, 2, 3, 8}, cpus("vendor.test/dev=x", first))
	changes := func(devices string) []change {
		write(t, path, cpuSpec(devices))
		return c.refresh().changes
	}
	came := changes(`[` + cpuDevice("claim-1", `"DRA_CPUSET_1=0-3,8"`) + `,` +
		cpuDevice("claim-2", `"DRA_CPUSET_2=4"`) + `]`)
	expect.That(t, len(came) == 1 && !came[0].gone && cmp.Equal([]string{second}, came[0].names),
		"a second claim: %+v", came)
	expect.Equal(t, "", []int{4}, cpus(second))
	gone := changes(`[` + cpuDevice("claim-2", `"DRA_CPUSET_2=4"`) + `]`)
	expect.That(t, len(gone) == 1 && gone[0].gone && cmp.Equal([]string{first}, gone[0].names),
		"the first is gone: %+v", gone)
	for env, want := range map[string][]int{
		`"DRA_CPUSET_1=0-"`: nil, `"DRA_CPUSET_1="`: nil, `"DRA_CPUSET_1"`: nil, `"X=0","DRA_CPUSET_1=7"`: {7},
		`"DRA_CPUSET_1=0","DRA_CPUSET_2=1"`: nil, `"DRA_CPUSET_1=9999"`: nil,
	} {
		write(t, path, cpuSpec(`[`+cpuDevice("claim-1", env)+`]`))
		expect.Equal(t, env, want, cpus(first))
	}
	write(t, path, `{"kind":"vendor.test/dev","devices":[`+cpuDevice("claim-1", `"DRA_CPUSET_1=0"`)+`]}`)
	if got := cpus("vendor.test/dev=claim-1"); got != nil {
		t.Errorf("of another kind: %v", got)
	}
}

func TestCPUGroup(t *testing.T) {
	root := t.TempDir()
	drivertest.WriteTree(t, root, `
devices/system/cpu/online: 0-2,5
devices/system/cpu/cpu0/topology/physical_package_id: 0
devices/system/cpu/cpu1/topology/physical_package_id: 1
devices/system/cpu/cpu2/topology/physical_package_id: 0
devices/system/cpu/cpu3/topology/physical_package_id: 0
devices/system/node/node0/cpulist: 2,0
devices/system/node/node1/cpulist: 1,5
devices/system/node/node2/cpulist: 
devices/system/node/node3/cpulist: ?
`)
	for name, want := range map[string]struct {
		is      bool
		numa    string
		cpus    []int
		failing bool
	}{
		"cpudevnuma000":   {is: true, numa: "0", cpus: []int{0, 2}},
		"cpudevnuma001":   {is: true, numa: "1", cpus: []int{1, 5}},
		"cpudevnuma002":   {is: true, numa: "2"},
		"cpudevnuma003":   {is: true, numa: "3", failing: true},
		"cpudevnuma004":   {is: true, numa: "4", failing: true},
		"cpudevsocket000": {is: true, cpus: []int{0, 2}},
		"cpudevsocket001": {is: true, cpus: []int{1}},
		"cpudevmachine":   {is: true, cpus: []int{0, 1, 2, 5}},
		"cpudev000":       {}, "cpudevnuma": {}, "cpudevnuma-1": {}, "gpu-0": {},
	} {
		group, is := CPUGroupOf(driver.ID{Driver: "dra.cpu", Pool: "node", Device: name})
		expect.That(t, is == want.is && group.NUMANode() == want.numa,
			"%s: a group %v, of NUMA node %q", name, is, group.NUMANode())
		if !is {
			continue
		}
		cpus, err := group.CPUs(root)
		diff := cmp.Diff(want.cpus, cpus)
		expect.That(t, diff == "" && (err != nil) == want.failing, "%s: error %v, CPUs -want +got:\n%s", name, err, diff)
	}
	if _, is := CPUGroupOf(driver.ID{Driver: "gpu.example.com", Device: "cpudevnuma000"}); is {
		t.Error("another driver's device is a group of CPUs")
	}
}
