package scenarios

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/test/cluster/gpudriver"
)

// A claim of one pod: the pod, and the claim, have all of the device.
func testSingle(t *testing.T, w *world) {
	n := w.namespace(t, "single")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("one"))
	n.running(1)
	holds, r := n.agree(1)
	d := deviceOf(r, holds[0].Device)
	if d.Attribution != exporter.AttributionExclusive || d.Up == nil || !*d.Up {
		t.Errorf("the device is divided as %q and up: %v, want exclusive and up", d.Attribution, d.Up)
	}
	n.charges(d.Device, part{"claim", "one", 1}, part{"pod", "user", 1})
	n.remove("user", 1)
	n.agree(0)
}

// A Deployment whose pods each get a claim from a template; one pod goes, and its claim with it.
func testDeployment(t *testing.T, w *world) {
	n := w.namespace(t, "deployment")
	n.template("gpu", request("gpu", gpudriver.ClassGPU))
	n.deployment("workers", 3, templateSpec("gpu"))
	n.running(3)
	before, _ := n.agree(3)
	n.scale("workers", 2)
	n.running(2)
	after, r := n.agree(2)
	for _, h := range before {
		if slices.Contains(after, h) {
			continue
		}
		if gone := holder(r.Claims, n.name, h.Claim, h.Device); gone.Ended == nil || gone.AllocatedSeconds <= 0 {
			t.Errorf("the claim of the pod that went: %+v, want one that ended", gone)
		}
	}
	n.scale("workers", 3)
	n.running(3)
	n.agree(3)
	n.scale("workers", 0)
	n.running(0)
	n.agree(0)
}

// A claim of two devices that two pods share: each pod is charged half of both.
func testSharedClaim(t *testing.T, w *world) {
	n := w.namespace(t, "shared-claim")
	n.claim("both", some(request("gpus", gpudriver.ClassGPU), 2))
	n.pod("a", podSpec("both"))
	n.pod("b", podSpec("both"))
	n.running(2)
	holds, _ := n.agree(4)
	for _, h := range holds[:2] {
		n.charges(h.Device, part{"claim", "both", 1}, part{"pod", "a", 0.5}, part{"pod", "b", 0.5})
	}
	n.remove("b", 1)
	n.agree(2)
	n.remove("a", 1)
	n.agree(0)
}

// A claim of two requests, each for a container of its own.
func testRequestScoped(t *testing.T, w *world) {
	n := w.namespace(t, "request-scoped")
	n.claim("parts", some(request("big", gpudriver.ClassGPU), 2), request("small", gpudriver.ClassGPU))
	spec := podSpec("parts")
	spec.Containers[0].Resources.Claims[0].Request = "big"
	side := *spec.Containers[0].DeepCopy()
	side.Name, side.Resources.Claims[0].Request = "side", "small"
	spec.Containers = append(spec.Containers, side)
	n.pod("user", spec)
	n.running(1)
	holds, _ := n.agree(3)
	requests := map[string]int{}
	for _, h := range holds {
		requests[h.Request]++
	}
	if requests["big"] != 2 || requests["small"] != 1 {
		t.Errorf("devices by request: %v, want 2 of big and 1 of small", requests)
	}
	n.remove("user", 1)
	n.agree(0)
}

// Two claims that take 10 and 30 GiB of one device: it is divided by what they consume, and the first has all of it when the second goes.
func testConsumedCapacity(t *testing.T, w *world) {
	n := w.namespace(t, "consumed-capacity")
	n.claim("small", memory(request("part", gpudriver.ClassShared), 0, "7Gi")) // The policy rounds it up to 10.
	n.claim("large", memory(request("part", gpudriver.ClassShared), 0, "30Gi"))
	n.pod("small", podSpec("small"))
	n.pod("large", podSpec("large"))
	n.running(2)
	holds, r := n.agree(2)
	d := deviceOf(r, "shared-0")
	if d.Attribution != exporter.AttributionCapacity {
		t.Errorf("the device is divided by %q, want capacity", d.Attribution)
	}
	for _, h := range holds {
		if h.Device != "shared-0" || h.Share == "" {
			t.Errorf("%+v holds no share of shared-0", h)
		}
	}
	n.charges("shared-0", part{"claim", "small", 0.25}, part{"claim", "large", 0.75}, part{"pod", "large", 0.75})
	n.remove("large", 1)
	_, r = n.agree(1)
	if d := deviceOf(r, "shared-0"); d.Attribution != exporter.AttributionExclusive {
		t.Errorf("the device of the one who is left is divided by %q, want exclusive", d.Attribution)
	}
	n.charges("shared-0", part{"claim", "small", 1}, part{"claim", "large", 0})
	n.remove("small", 1)
	n.agree(0)
}

// Two partitions of one GPU are two devices; nobody holds the whole.
func testPartitions(t *testing.T, w *world) {
	n := w.namespace(t, "partitions")
	n.claim("a", request("part", gpudriver.ClassPartition))
	n.claim("b", request("part", gpudriver.ClassPartition))
	n.pod("a", podSpec("a"))
	n.pod("b", podSpec("b"))
	n.running(2)
	holds, r := n.agree(2)
	if holds[0].Device == holds[1].Device {
		t.Errorf("both hold %s", holds[0].Device)
	}
	for _, h := range holds {
		if d := deviceOf(r, h.Device); d.Parent != "cut-0" || d.Attribution != exporter.AttributionExclusive {
			t.Errorf("%s is a part of %q and divided as %q", h.Device, d.Parent, d.Attribution)
		}
	}
	for _, s := range deviceOf(r, "cut-0").Shares {
		if !s.Admin {
			t.Errorf("the GPU that is cut is held as a whole: %+v", s)
		}
	}
	n.charges(holds[0].Device, part{"claim", "a", 1}, part{"claim", "b", 0})
	n.remove("a", 1)
	n.remove("b", 1)
	n.agree(0)
}

// A monitor with admin access to all devices is listed with each, owns none, and is charged nothing. What is cut in partitions is left
// out: the scheduler counts it even for admin access, and does not give the whole and its parts at once.
func testAdminAccess(t *testing.T, w *world) {
	n := w.namespace(t, "admin-access", "resource.kubernetes.io/admin-access")
	all := request("all", gpudriver.ClassAll)
	all.Exactly.AllocationMode, all.Exactly.AdminAccess = resourceapi.DeviceAllocationModeAll, ptr.To(true)
	all.Exactly.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	all.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes[%q].type in ['gpu', 'shared', 'worn']", gpudriver.Name),
	}}}
	n.claim("monitor", all)
	n.pod("monitor", podSpec("monitor"))
	n.running(1)
	const cut = 5 // The whole and its parts.
	holds, _ := n.agree(len(w.vendor.gpus) - cut)
	for _, h := range holds {
		if !h.Admin {
			t.Errorf("%+v is not admin access", h)
		}
	}
	n.charges("worn-0", part{"claim", "monitor", 0}, part{"pod", "monitor", 0})
	n.remove("monitor", 1)
	n.agree(0)
}

// A pod that asks for an extended resource holds a device by a claim that the scheduler made.
func testExtendedResource(t *testing.T, w *world) {
	n := w.namespace(t, "extended-resource")
	n.pod("user", resourceSpec(gpudriver.ExtendedResource, "1"))
	n.running(1)
	holds, _ := n.agree(1)
	n.charges(holds[0].Device, part{"claim", holds[0].Claim, 1})
	n.remove("user", 1)
	n.agree(0)
}

// part is the share of a device's energy that a claim or a pod is to be charged.
type part struct {
	of, name string
	share    float64
}

// charges waits until the device has used some hundred joules while nobody came or went, and each of the parts was charged its share
// of them.
func (n *namespace) charges(device string, parts ...part) {
	n.Helper()
	const enough = 300
	var before *exporter.Report
	eventually(n.T, "each is charged its part", func() error {
		after, err := n.exporter.report()
		if err != nil {
			return err
		}
		if before == nil {
			before = after
		}
		whole := used(before, after, "device", "", "", device)
		if whole < enough {
			return fmt.Errorf("%s has used %v J", device, whole)
		}
		for _, p := range parts {
			if got, want := used(before, after, p.of, n.name, p.name, device), p.share*whole; math.Abs(got-want) > 1e-6*whole {
				err = errors.Join(err, fmt.Errorf("%s %s is charged %v J of %v J, want %v J", p.of, p.name, got, whole, want))
			}
		}
		before = after
		return err
	})
}

// used returns the energy that something used of a device between two snapshots.
func used(before, after *exporter.Report, of, ns, name, device string) float64 {
	return energy(after, of, ns, name, device) - energy(before, of, ns, name, device)
}

func energy(r *exporter.Report, of, ns, name, device string) float64 {
	var values []exporter.ValueReport
	switch of {
	case "device":
		values = deviceOf(r, device).Values
	case "claim":
		values = holder(r.Claims, ns, name, device).Values
	case "pod":
		values = holder(r.Pods, ns, name, device).Values
	}
	for i := range values {
		if values[i].Quantity == "energy" {
			return values[i].Value
		}
	}
	return 0
}
