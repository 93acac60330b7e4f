package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
)

// Two claims have one CPU each of the group device, as dra-driver-cpu allocates them by default.
// The pod of one claim keeps its CPU busy. Every exporter must charge each claim the time of its
// own CPU: at least what the claim's pod used, and at most what all processes used on that CPU. The
// device's values are means over its CPUs, so a claim's CPU time is its part of the device's value
// times the number of CPUs.
func testCPUGroup(t *testing.T, w *world) {
	n := w.namespace(t, "cpu-group")
	n.claim("burning", cpus(1))
	n.claim("quiet", cpus(1))
	before := n.busy()
	n.pod("burner", once(podSpec("burning", "burn", "3s")))
	n.pod("sleeper", podSpec("quiet"))
	n.running(2)
	n.agree(2)
	own := map[string]cpuset.CPUSet{"burning": n.cpusOf("burning"), "quiet": n.cpusOf("quiet")}
	must.That(t, own["burning"].Size() == 1 && own["quiet"].Size() == 1 && !own["burning"].Equals(own["quiet"]),
		"the driver gave the CPUs %v", own)
	burnt := n.burnt("burner")
	n.each("the claim is charged what its pod took", n.exporters, snapshots(func(_ *running, r *present.Report) error {
		if got := n.cpuTime(r, "burning"); got < burnt-cpuSlack {
			return fmt.Errorf("%.2f s, want %.2f s", got, burnt)
		}
		return nil
	}))
	for _, e := range n.exporters {
		r := must.Get(e.report())(n)
		for claim, cpus := range own {
			got := n.cpuTime(r, claim)
			busy, device := n.busy(), fmt.Sprintf("cpudev%03d", cpus.List()[0])
			t.Logf("%s: claim %s is charged %.2f s of %s, which was busy for %.2f s", e.name, claim, got, device,
				busy[device]-before[device])
			expect.That(t, got <= busy[device]-before[device]+cpuSlack,
				"%s: claim %s is charged more than its CPU did", e.name, claim)
		}
		if d := deviceOf(r, cpudriver.Group); d.Attribution != join.AttributionCPUs || d.Up == nil || !*d.Up {
			t.Errorf("%s: the device is divided %q, and up: %v", e.name, d.Attribution, d.Up)
		}
	}
	n.clear()
}

// cpus returns a request for a number of CPUs of the group.
func cpus(number int64) resourceapi.DeviceRequest {
	r := request("cpus", cpudriver.ClassGroup)
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{
			cpudriver.Capacity: *resource.NewQuantity(number, resource.DecimalSI),
		},
	}
	return r
}

// cpusOf returns the CPUs of a claim, read from the variable that the driver sets in containers.
func (n *namespace) cpusOf(claim string) cpuset.CPUSet {
	n.Helper()
	variable := "DRA_CPUSET_" + string(n.getClaim(claim).UID) + "="
	content := must.Get(os.ReadFile(filepath.Join(n.cluster.CDI(), cpudriver.Name+".json")))(n)
	var spec specs.Spec
	n.no(json.Unmarshal(content, &spec))
	for i := range spec.Devices {
		for _, env := range spec.Devices[i].ContainerEdits.Env {
			if list, ok := strings.CutPrefix(env, variable); ok {
				return must.Get(cpuset.Parse(list))(n)
			}
		}
	}
	n.Fatalf("no CPUs of claim %s in %s", claim, content)
	return cpuset.New()
}

// cpuTime returns the CPU time that a claim of the group is charged, in seconds.
func (n *namespace) cpuTime(r *present.Report, claim string) float64 {
	return active(holder(r.Claims, n.name, claim, cpudriver.Group).Values) * float64(runtime.NumCPU())
}
