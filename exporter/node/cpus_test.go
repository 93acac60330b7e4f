package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The CPUs of a device that is a NUMA node are read from sysfs. Those of its claims are read from
// their CDI specs, and stay known until the claim ends, even if the driver removes the spec
// earlier. No slice is needed.
func TestCPUSets(t *testing.T) {
	root, cdi := t.TempDir(), t.TempDir()
	drivertest.WriteTree(t, root, "devices/system/node/node1/cpulist: 0-7\n")
	n := newTestNode(t, Config{Sysfs: root, CDI: []string{cdi}})
	spec := filepath.Join(cdi, "dra.cpu.json")
	write := func(content string) {
		t.Helper()
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
