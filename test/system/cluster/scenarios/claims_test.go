package scenarios

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// A single pod uses a claim: the pod and the claim are charged all of the device.
func testSingle(t *testing.T, w *world) {
	n := w.namespace(t, "single")
	n.user(podSpec("one"))
	holds, r := n.agree(1)
	d := deviceOf(r, holds[0].Device)
	expect.That(t, d.Attribution == join.AttributionExclusive && d.Up != nil && *d.Up,
		"the device is divided as %q and up: %v, want exclusive and up", d.Attribution, d.Up)
	n.charges(d.Device, claimPart("one", 1), podPart("user", 1))
	n.clear()
}

// The pods of a Deployment each get a claim from a template. One pod is deleted, and with it its
// claim.
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

// Two pods share a claim of two devices: each pod is charged half of both devices.
func testSharedClaim(t *testing.T, w *world) {
	n := w.namespace(t, "shared-claim")
	n.claim("both", some(request("gpus", gpudriver.ClassGPU), 2))
	n.pod("a", podSpec("both"))
	n.pod("b", podSpec("both"))
	n.running(2)
	holds, _ := n.agree(4)
	for _, h := range holds[:2] {
		n.charges(h.Device, claimPart("both", 1), podPart("a", 0.5), podPart("b", 0.5))
	}
	n.remove("b", 1)
	n.agree(2)
	n.clear()
}

// A claim has two requests, each for another container.
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
	expect.That(t, requests["big"] == 2 && requests["small"] == 1,
		"devices by request: %v, want 2 of big and 1 of small", requests)
	n.clear()
}

// Two claims consume 10 and 30 GiB of one device. They are charged in proportion to that. When the
// second claim is deleted, the first is charged all of the device.
func testConsumedCapacity(t *testing.T, w *world) {
	n := w.namespace(t, "consumed-capacity")
	n.claim("small", memory(request("part", gpudriver.ClassShared), 0, "7Gi")) // The policy rounds it up to 10 GiB.
	n.claim("large", memory(request("part", gpudriver.ClassShared), 0, "30Gi"))
	n.pod("small", podSpec("small"))
	n.pod("large", podSpec("large"))
	n.running(2)
	holds, r := n.agree(2)
	d := deviceOf(r, "shared-0")
	expect.That(t, d.Attribution == join.AttributionCapacity, "the device is divided by %q, want capacity", d.Attribution)
	for _, h := range holds {
		expect.That(t, h.Device == "shared-0" && h.Share != "", "%+v holds no share of shared-0", h)
	}
	n.charges("shared-0", claimPart("small", 0.25).without(0.5), claimPart("large", 0.75).without(0.5),
		podPart("large", 0.75).without(0.5))
	n.remove("large", 1)
	_, r = n.agree(1)
	if d := deviceOf(r, "shared-0"); d.Attribution != join.AttributionExclusive {
		t.Errorf("the device of the one who is left is divided by %q, want exclusive", d.Attribution)
	}
	n.charges("shared-0", claimPart("small", 1), claimPart("large", 0))
	n.clear()
}

// Two partitions of one GPU are two devices. Nobody holds the whole GPU.
func testPartitions(t *testing.T, w *world) {
	n := w.namespace(t, "partitions")
	for _, name := range []string{"a", "b"} {
		n.claim(name, request("part", gpudriver.ClassPartition))
		n.pod(name, podSpec(name))
	}
	n.running(2)
	holds, r := n.agree(2)
	expect.That(t, holds[0].Device != holds[1].Device, "both hold %s", holds[0].Device)
	for _, h := range holds {
		if d := deviceOf(r, h.Device); d.Parent != "cut-0" || d.Attribution != join.AttributionExclusive {
			t.Errorf("%s is a part of %q and divided as %q", h.Device, d.Parent, d.Attribution)
		}
	}
	for _, s := range deviceOf(r, "cut-0").Shares {
		expect.That(t, s.Admin, "the GPU that is cut is held as a whole: %+v", s)
	}
	n.charges(holds[0].Device, claimPart("a", 1), claimPart("b", 0))
	n.clear()
}

// A monitor has admin access to a device that another pod holds and to one that is free. It is
// shown as a holder of both and is charged nothing, even before the exporter knows of the admin
// access. Exporters that know no claims charge it like any other pod. The partitioned GPU is not
// selected: the scheduler counts its counters also for admin access, so it can't allocate the whole
// GPU and its partitions at the same time.
func testAdminAccess(t *testing.T, w *world) {
	n := w.namespace(t, "admin-access", "resource.kubernetes.io/admin-access")
	n.claim("owner", memory(request("part", gpudriver.ClassShared), 5, "10Gi"))
	n.pod("owner", podSpec("owner"))
	n.running(1)
	all := monitor(request("all", gpudriver.ClassAll))
	all.Exactly.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	all.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf(
			"device.attributes[%[1]q].type == 'worn' || device.attributes[%[1]q].type == 'shared' && "+
				"device.attributes[%[1]q].index == 5",
			gpudriver.Name),
	}}}
	n.claim("monitor", all)
	release := w.inventory.withhold(n.name)
	n.pod("monitor", podSpec("monitor"))
	unseen := n.seen("monitor")
	release() // Exporters with the file see the claim after its devices are prepared.
	n.each("the exporters know of the admin access", n.informed(), snapshots(func(e *running, r *present.Report) error {
		known := func(h hold) bool { return h.Pod == "monitor" && h.Admin }
		if e.file && !slices.ContainsFunc(holdsOfExporter(r, n.name), known) {
			return errors.New("it does not")
		}
		return nil
	}))
	unknown := time.Since(unseen)
	n.running(2)
	holds, _ := n.agree(3)
	for _, h := range holds {
		expect.That(t, h.Admin == (h.Pod == "monitor"), "%+v has admin access: %v", h, h.Admin)
	}
	n.charges("worn-0", claimPart("monitor", 0).without(1), podPart("monitor", 0).without(1))
	n.charges("shared-5", claimPart("owner", 1).without(0.5), claimPart("monitor", 0).without(0.5))
	for _, e := range n.informed() {
		r := must.Get(e.report())(n)
		for _, h := range holds {
			switch got := energy(r, "claim", n.name, "monitor", h.Device); {
			case got == 0:
			case e.file && unknown > maxClaimWait:
				t.Logf("%s: the monitor was charged %v J of %s: it was unknown for up to %v", e.name, got, h.Device, unknown)
			default:
				t.Errorf("%s: the monitor was charged %v J of %s", e.name, got, h.Device)
			}
		}
	}
	n.clear()
}

// maxClaimWait is how long an exporter waits for the description of a claim that holds a device
// before it charges the claim.
const maxClaimWait = 2 * time.Second

// seen waits until the exporters that know no claims show that a pod holds something. Exporters
// with an inventory file do not show it yet, because the file withholds the claim. It returns a
// time at which none of them showed it.
func (n *namespace) seen(pod string) (unseen time.Time) {
	unseen = time.Now()
	eventually(n.T, pod+" is seen", func() error {
		asked, first := time.Now(), true
		for _, e := range n.exporters {
			if !e.noClaims {
				continue
			}
			r, err := e.report()
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(holdsOfExporter(r, n.name), func(h hold) bool { return h.Pod == pod }) {
				if first {
					unseen = asked
				}
				return fmt.Errorf("%s: %s holds nothing", e.name, pod)
			}
			first = false
		}
		return nil
	})
	return unseen
}

// part is the share of a device's energy that a claim or a pod must be charged.
type part struct {
	of, name string
	share    float64
	blind    float64 // The share where claims are unknown.
	podless  float64 // The share where pod objects are unknown.
}

func claimPart(name string, share float64) part { return part{"claim", name, share, share, share} }

func podPart(name string, share float64) part { return part{"pod", name, share, share, share} }

// without returns p with another share where claims are unknown.
func (p part) without(share float64) part {
	p.blind = share
	return p
}

// withoutPods returns p with another share where pod objects are unknown.
func (p part) withoutPods(share float64) part {
	p.podless = share
	return p
}

// shareOf returns the share that an exporter must charge, given its sources.
func (p part) shareOf(w way) float64 {
	switch {
	case w.noPods && p.podless != p.share:
		return p.podless
	case w.noClaims:
		return p.blind
	default:
		return p.share
	}
}

// charges waits until the device has used some hundred joules without a change of its holders, and
// every exporter has charged each part its share of them.
func (n *namespace) charges(device string, parts ...part) {
	n.chargesBy(n.exporters, func(*running) string { return device }, parts...)
}

// chargesBy is like charges for some exporters. device returns the device's name in an exporter.
func (n *namespace) chargesBy(exporters []*running, device func(*running) string, parts ...part) {
	before, done := map[*running]*present.Report{}, map[*running]bool{}
	n.each("each is charged its part", exporters, snapshots(func(e *running, after *present.Report) error {
		if done[e] {
			return nil
		}
		if before[e] == nil {
			before[e] = after
		}
		whole, err := e.charges(n.name, device(e), before[e], after, parts)
		if done[e] = err == nil; whole >= enough {
			before[e] = after
		}
		return err
	}))
}

// enough is the number of joules after which shares are compared.
const enough = 300

// charges compares the charges between two snapshots, and returns the energy that the device used.
func (r *running) charges(ns, device string, before, after *present.Report, parts []part) (whole float64, err error) {
	whole = used(before, after, "device", "", "", device)
	if whole < enough {
		return whole, fmt.Errorf("%s has used %v J", device, whole)
	}
	for _, p := range parts {
		got, want := used(before, after, p.of, ns, p.name, device), p.shareOf(r.way)*whole
		if math.Abs(got-want) > 1e-6*whole {
			err = errors.Join(err, fmt.Errorf("%s %s is charged %v J of %v J, want %v J", p.of, p.name, got, whole, want))
		}
	}
	return whole, err
}

// used returns the energy of a device that was charged between two snapshots.
func used(before, after *present.Report, of, ns, name, device string) float64 {
	return energy(after, of, ns, name, device) - energy(before, of, ns, name, device)
}

func energy(r *present.Report, of, ns, name, device string) float64 {
	var values []present.ValueReport
	switch of {
	case "device":
		values = deviceOf(r, device).Values
	case "claim":
		values = holder(r.Claims, ns, name, device).Values
	case "pod":
		values = holder(r.Pods, ns, name, device).Values
	}
	return energyOf(values)
}

func energyOf(values []present.ValueReport) float64 { return valueOf(values, "energy", "") }

// valueOf returns the value of a quantity, and of a direction if it has one.
func valueOf(values []present.ValueReport, quantity, direction string) float64 {
	for i := range values {
		if values[i].Quantity == quantity && values[i].Labels["direction"] == direction {
			return values[i].Value
		}
	}
	return 0
}

// The driver reports a device as unhealthy and later as healthy again. Every exporter must show
// that, for a free device too. The kubelet writes the health to the status of the pod that holds
// the device. The device stays up, and the pod's other device stays healthy.
func testHealth(t *testing.T, w *world) {
	n := w.namespace(t, "health")
	n.claim("both", some(request("gpus", gpudriver.ClassGPU), 2))
	n.pod("user", podSpec("both"))
	n.running(1)
	holds, _ := n.agree(2)
	sick, well, free := holds[0].Device, holds[1].Device, n.free()
	n.healthy(sick, sick, "healthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusHealthy)
	n.no(w.cluster.SetUnhealthy(sick, free))
	n.healthy(sick, sick, "unhealthy")
	n.healthy(well, well, "healthy")
	n.healthyBy(n.informed(), free, "unhealthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusUnhealthy)
	n.inStatus("user", well, corev1.ResourceHealthStatusHealthy)
	for _, e := range n.exporters {
		n.no(e.has("dra_device_quantity_source_info", 1, "device", sick, "quantity", "health", "source", "health"))
	}
	r := must.Get(w.exporter.report())(n)
	for _, h := range holds {
		d := deviceOf(r, h.Device)
		expect.That(t, d.Up != nil && *d.Up, "%s is up: %v, want up", h.Device, d.Up)
	}
	n.no(w.cluster.SetUnhealthy())
	n.healthy(sick, sick, "healthy")
	n.healthyBy(n.informed(), free, "healthy")
	n.inStatus("user", sick, corev1.ResourceHealthStatusHealthy)
	n.clear()
}

// inStatus waits until the kubelet has written the health of a device to the status of the pod that
// holds it. It does nothing with a kubelet that does not support that. The driver's CDI names end
// with the device's name.
func (n *namespace) inStatus(pod, device string, want corev1.ResourceHealthStatus) {
	if !kubeletSince(healthSince) {
		return
	}
	n.podIs(pod, fmt.Sprintf("has %s %s in its status", device, want), func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, resource := range c.AllocatedResourcesStatus {
				if slices.ContainsFunc(resource.Resources, func(r corev1.ResourceHealth) bool {
					return strings.HasSuffix(string(r.ResourceID), "-"+device) && r.Health == want
				}) {
					return true
				}
			}
		}
		return false
	})
}

// healthy waits until every exporter shows exactly this status for a device. blind is the device's
// name in exporters that know no ResourceSlices.
func (n *namespace) healthy(device, blind, status string) {
	n.healthyBy(n.informed(), device, status)
	for _, e := range n.exporters {
		if e.noClaims && (blind == device || !e.noHealth) {
			n.healthyBy([]*running{e}, blind, status)
		}
	}
}

// healthyBy is like healthy for some exporters.
func (n *namespace) healthyBy(exporters []*running, device, status string) {
	n.each(fmt.Sprintf("%s is %s", device, status), exporters, func(e *running) error {
		return errors.Join(e.has("dra_device_health", 1, "device", device), // It is the only status.
			e.has("dra_device_health", 1, "device", device, "status", status))
	})
}

// A pod is bound to the node only when the binding conditions of its claim's device are met. The
// device is already allocated while the pod waits. Exporters that use the API server must show that
// in the series that the alert DRAClaimNotPrepared uses. After the binding the pod holds the device
// as usual.
func testBindingCondition(t *testing.T, w *world) {
	const device = "fabric-0"
	n := w.namespace(t, "binding-condition")
	n.claim("one", request("gpu", gpudriver.ClassFabric))
	n.pod("user", podSpec("one"))
	n.podIs("user", "waits to be bound", func(pod *corev1.Pod) bool {
		claim := n.getClaim("one").Status
		return claim.Allocation != nil && len(claim.ReservedFor) > 0 && pod.Spec.NodeName == "" &&
			pod.Status.NominatedNodeName == node.Name
	})
	n.allocated(device, "user")
	n.attach("one", device)
	n.phase("user", corev1.PodRunning)
	n.agree(1)
	n.state(device, "prepared")
	n.charges(device, claimPart("one", 1), podPart("user", 1))
	n.clear()
}

// allocated waits until each exporter that uses the API server shows that claim "one" has an
// allocated device, with the time of the allocation and the pod.
func (n *namespace) allocated(device, pod string) {
	n.each("the claim's device is allocated", n.withServer(), func(e *running) error {
		claim := []string{"namespace", n.name, "resourceclaim_name", "one"}
		since, err := e.value("dra_claim_allocated_timestamp_seconds", claim...)
		if err == nil && time.Since(time.Unix(int64(since), 0)) > *waitLimit {
			err = fmt.Errorf("the claim is allocated since %v", since)
		}
		claim = append(claim, "device", device)
		return errors.Join(err,
			e.has("dra_claim_device_info", 1, append(claim, "state", "allocated", "admin_access", "false")...),
			e.has("dra_pod_claim_info", 1, append(claim, "pod", pod, "container", "")...))
	})
}

// attach sets the binding condition of a claim's device to true.
func (n *namespace) attach(name, device string) {
	claim := n.getClaim(name)
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: gpudriver.Name, Pool: node.Name, Device: device,
		Conditions: []metav1.Condition{{
			Type: gpudriver.Attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now(),
		}},
	}}
	must.Get(n.claims().UpdateStatus(n.Context(), claim, metav1.UpdateOptions{}))(n)
}
