package inventory

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
