package inventory

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
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
