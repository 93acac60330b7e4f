package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/netdriver"
)

// TestContainers runs in parallel the scenarios that may behave differently with real containers,
// and those that need real devices: network interfaces in pods, and CPUs.
func TestContainers(t *testing.T) {
	w := newWorld(t, cluster.Options{Runtime: cluster.Containerd})
	t.Run("Claims", func(t *testing.T) {
		w.runAll(t, map[string]func(*testing.T, *world){
			"Single":              testSingle,
			"Completed":           testCompleted,
			"DeletedGracefully":   testDeletedGracefully,
			"ForceDeletedRunning": testForceDeletedRunning,
			"CrashLoop":           testCrashLoop,
			"Network":             testNetwork,
			"CPU":                 testCPU,
			"CPUGroup":            testCPUGroup,
			"PodLevelNetwork":     testPodLevelNetwork,
			"InitContainer":       testInitContainer,
			"InitShared":          testInitShared,
			"ForceRecreated":      testForceRecreated,
			"Deadline":            testDeadline,
		}, map[string]func(*testing.T, *world){
			"EvictedByKubelet":   testEvictedByKubelet,
			"MissingImage":       testMissingImage,
			"EphemeralContainer": testEphemeralContainer,
		})
	})
	if !t.Failed() {
		t.Run("RealDevicesThroughRestarts", func(t *testing.T) { testRealDevicesThroughRestarts(t, w) })
	}
	w.finish(t)
}

// Two pods, one after the other, send through an interface that the driver moves into each of them.
// Claim and pods must be charged exactly the bytes that arrived at the other end on the node. The
// device stays up on the node, in the pod, and back on the node.
func testNetwork(t *testing.T, w *world) {
	const first, second = 3_000_000, 2_000_000
	n := w.namespace(t, "network")
	n.claim("nic", nic(1))
	before := n.arrived(1)
	n.pod("first", once(podSpec("nic", "told", "send", "udp", "198.18.1.1:9", strconv.Itoa(first))))
	n.running(1)
	n.agree(1)
	n.tell("first", 1)
	sent := n.charged(n.informed(), 1, before, first, "first")
	n.remove("first", 1)
	n.agree(0)
	n.onNode(1)
	between := n.arrived(1)
	must.That(t, between >= sent, "its far end has counted %v bytes, after %v", between, sent)
	n.pod("second", once(podSpec("nic", "told", "send", "udp", "198.18.1.1:9", strconv.Itoa(second))))
	n.running(1)
	n.agree(1)
	n.tell("second", 1)
	n.charged(n.informed(), 1, between, second, "second")
	n.clear()
}

// A pod sends through an interface of a claim that no container names, as in dranet's examples.
func testPodLevelNetwork(t *testing.T, w *world) {
	const nicIndex, payload = 0, 3_000_000
	n := w.namespace(t, "pod-level-network")
	n.claim("nic", nic(nicIndex))
	before := n.arrived(nicIndex)
	n.pod("user", once(podLevel(podSpec("nic", "told", "send", "udp", "198.18.0.1:9", strconv.Itoa(payload)))))
	n.running(1)
	n.agree(1)
	n.tell("user", nicIndex)
	n.charged(n.objects(), nicIndex, before, payload, "user")
	n.clear()
	n.onNode(nicIndex)
}

// nic returns a request for one interface.
func nic(index int) resourceapi.DeviceRequest {
	r := request("nic", netdriver.Name)
	r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes[%q].ifName == 'nic%d'", netdriver.Name, index),
	}}}
	return r
}

// tell makes a pod start to send. It first waits until all exporters have read the interface, so
// that they know its counter before the pod sends.
func (n *namespace) tell(pod string, nic int) {
	for _, e := range n.exporters {
		e.ticks(n.T, 2)
	}
	uid := string(n.getPod(pod).UID)
	before := n.arrived(nic)
	eventually(n.T, "it sends", func() error {
		n.no(tellProcesses(uid))
		if n.arrived(nic) < before+10_000 {
			return errors.New("nothing arrives")
		}
		return nil
	})
}

// tellProcesses sends SIGCONT to the processes of a pod. It finds them by their cgroups.
func tellProcesses(uid string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || !strings.Contains(strings.ReplaceAll(string(content), "_", "-"), uid) {
			continue // It has ended or belongs to another pod.
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// onNode waits until an interface is back on the node.
func (n *namespace) onNode(nic int) {
	eventually(n.T, "the interface is back on the node", func() error {
		_, err := os.Stat(filepath.Join(n.sysfs, "class", "net", fmt.Sprintf("nic%d", nic)))
		return err
	})
}

// arrived returns the number of bytes that have arrived at the other end of an interface.
func (n *namespace) arrived(nic int) float64 {
	folder := filepath.Join(n.sysfs, "class", "net", fmt.Sprintf("wire%d", nic), "statistics")
	content := must.Get(os.ReadFile(filepath.Join(folder, "rx_bytes")))(n)
	return must.Get(strconv.ParseFloat(strings.TrimSpace(string(content)), 64))(n)
}

// strays is the number of bytes that an interface may send by itself at the start and end of
// a hold: some IPv6 packets of neighbour discovery. They are unattributed.
const strays = 300

// charged waits until the exporters charge the pod all bytes that have arrived since, at least the
// payload, and until their values of the device and the claim agree. Only this claim may have held
// the device. It returns the number of all bytes that have arrived.
func (n *namespace) charged(by []*running, nic int, since, payload float64, pod string) (arrived float64) {
	name := fmt.Sprintf("nic%d", nic)
	eventually(n.T, "what arrived is charged to who sent it", func() error {
		arrived = n.arrived(nic)
		err := ofAll(by, snapshots(func(_ *running, r *present.Report) error {
			d, all := deviceOf(r, name), transmitted(holder(r.Claims, n.name, "nic", name).Values)
			got := transmitted(holder(r.Pods, n.name, pod, name).Values)
			if device := transmitted(d.Values); device < all || device > all+strays || d.Up == nil || !*d.Up ||
				got != arrived-since || got < payload {
				return fmt.Errorf("device %s, which is up: %v, sent %v bytes, its claim %v, pod %s %v, of which %v are payload; "+
					"%v arrived", name, d.Up, device, all, pod, got, payload, arrived-since)
			}
			return nil
		}))
		if n.arrived(nic) != arrived {
			return errors.New("more arrives")
		}
		return err
	})
	return arrived
}

func transmitted(values []present.ValueReport) float64 {
	return valueOf(values, "io_bytes", "transmit")
}

// cpuSlack is the allowed error of a CPU's active time, in seconds. The kernel counts in
// hundredths, and the start and the end of a hold lie between two readings, which are a second
// apart.
const cpuSlack = 0.5

// A pod keeps its CPU busy. The claim must be charged at least what the pod used, and at most what
// all processes used on that CPU, because /proc/stat, unlike cgroups, does not separate them.
func testCPU(t *testing.T, w *world) {
	n := w.namespace(t, "cpu")
	n.claim("cpu", request("cpu", cpudriver.Name))
	before := n.busy()
	n.pod("burner", once(podSpec("cpu", "burn", "3s")))
	n.running(1)
	holds, _ := n.agree(1)
	n.chargedBusy("burner", "cpu", holds[0].Device, before)
	n.clear()
}

// chargedBusy waits until a pod has kept its CPU busy, and checks what the claim is charged.
func (n *namespace) chargedBusy(pod, claimName, device string, before map[string]float64) {
	n.Helper()
	burnt := n.burnt(pod)
	var claim *present.HolderReport
	eventually(n.T, "the claim is charged what its pod took", func() error {
		r, err := n.exporter.report()
		if err != nil {
			return err
		}
		claim = holder(r.Claims, n.name, claimName, device)
		if got := active(claim.Values); got < burnt-cpuSlack {
			return fmt.Errorf("%.2f s, want %.2f s", got, burnt)
		}
		return nil
	})
	busy := n.busy()[device] - before[device]
	got := active(claim.Values)
	n.Logf("the pod took %.2f s of its CPU, the claim is charged %.2f s, all users took %.2f s", burnt, got, busy)
	if got > busy+cpuSlack || got > claim.AllocatedSeconds+cpuSlack {
		n.Errorf("the claim is charged %.2f s of a CPU that it held for %.2f s, and that was busy for %.2f s", got,
			claim.AllocatedSeconds, busy)
	}
}

// burnt waits until a pod has logged how much CPU time it used, and returns that in seconds.
func (n *namespace) burnt(pod string) (seconds float64) {
	eventually(n.T, "the pod has burnt its CPU", func() error {
		logs, err := n.pods().GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(n.Context())
		if err != nil {
			return err
		}
		took, err := time.ParseDuration(strings.TrimSpace(strings.TrimPrefix(string(logs), "burnt ")))
		seconds = took.Seconds()
		return err
	})
	return seconds
}

// busy returns how long each CPU has been busy since the machine's start, in seconds. The keys are
// the names of the CPUs' devices.
func (n *namespace) busy() map[string]float64 {
	content := must.Get(os.ReadFile("/proc/stat"))(n)
	out := map[string]float64{}
	for line := range strings.Lines(string(content)) {
		var cpu int
		var user, nice, system, idle, wait, irq, soft, steal float64 // In hundredths of a second (proc(5)).
		if _, err := fmt.Sscanf(line, "cpu%d %f %f %f %f %f %f %f %f", &cpu, &user, &nice, &system, &idle, &wait, &irq,
			&soft, &steal); err == nil {
			out[fmt.Sprintf("cpudev%03d", cpu)] = (user + nice + system + irq + soft + steal) / 100
		}
	}
	return out
}

func active(values []present.ValueReport) float64 { return valueOf(values, "active_seconds", "") }

// One pod sends through an interface, and another keeps a CPU busy, while the drivers and the
// kubelet restart. Both hold their devices on every snapshot. In the end they must be charged
// exactly what was sent and used: nothing is lost or counted twice. The restarted driver moves the
// interface back from the pod.
func testRealDevicesThroughRestarts(t *testing.T, w *world) {
	const nicIndex, payload = 3, 2_000_000
	n := w.namespace(t, "restarts")
	n.claim("nic", nic(nicIndex))
	n.claim("cpu", request("cpu", cpudriver.Name))
	arrived, busy := n.arrived(nicIndex), n.busy()
	n.pod("sender", once(podSpec("nic", "told", "send", "udp", "198.18.3.1:9", strconv.Itoa(payload), "15s")))
	n.pod("burner", once(podSpec("cpu", "burn", "6s")))
	n.running(2)
	lift := n.keeps(2)
	holds, _ := n.agree(2)
	n.tell("sender", nicIndex)

	n.order(w.cluster.StopComponent, "driver")
	n.order(w.cluster.StopComponent, "kubelet")
	n.sendsOn(nicIndex)
	n.order(w.cluster.StartComponent, "driver")
	n.sourceUp("podresources", 0)
	n.order(w.cluster.StartComponent, "kubelet")
	n.sourceUp("podresources", 1)

	n.charged(n.informed(), nicIndex, arrived, payload, "sender")
	n.chargedBusy("burner", "cpu", holds[0].Device, busy)
	lift()
	n.clear()
	n.onNode(nicIndex)
}

// sendsOn waits until more bytes have been sent through the interface.
func (n *namespace) sendsOn(nic int) { n.sendsMore(nic, n.arrived(nic)) }

// sendsMore waits until more bytes than before have arrived.
func (n *namespace) sendsMore(nic int, before float64) {
	eventually(n.T, "more is sent", func() error {
		if n.arrived(nic) < before+10_000 {
			return errors.New("nothing was sent")
		}
		return nil
	})
}

// A pod that is deleted by force is immediately gone from the API server, but its processes run on
// for the kubelet's shortest grace period of 2 s. It must be charged at least what it sent before,
// and at most what its processes sent: exporters without the API server learn from the kubelet that
// it has ended, after its processes have. The rest is unattributed and not lost.
func testForceDeletedRunning(t *testing.T, w *world) {
	const (
		nicIndex = 2
		rate     = 500_000.0 // Bytes of payload per second.
		grace    = 4
		allowed  = 1.2 * rate * 1.5 // Bytes sent within the allowed error of the end's time.
	)
	n := w.namespace(t, "force-deleted-running")
	n.claim("nic", nic(nicIndex))
	spec := podSpec("nic", "stubborn", "told", "send", "udp", "198.18.2.1:9", strconv.Itoa(60*rate), "60s")
	spec.TerminationGracePeriodSeconds = ptr.To[int64](grace)
	before := n.arrived(nicIndex)
	n.pod("user", once(spec))
	n.running(1)
	n.agree(1)
	n.tell("user", nicIndex)
	eventually(t, "it sends for a while", func() error {
		if got := n.arrived(nicIndex) - before; got < rate {
			return fmt.Errorf("%v bytes arrived", got)
		}
		return nil
	})
	held := n.arrived(nicIndex) - before
	n.remove("user", 0)
	n.sendsMore(nicIndex, before+held)
	n.agree(0)
	n.onNode(nicIndex)
	eventually(t, "all that was sent is attributed or unattributed", func() error {
		all := n.arrived(nicIndex) - before
		return ofAll(n.informed(), snapshots(func(_ *running, r *present.Report) error {
			d := deviceOf(r, fmt.Sprintf("nic%d", nicIndex))
			claim, pod := holder(r.Claims, n.name, "nic", d.Device), holder(r.Pods, n.name, "user", d.Device)
			sent, charged, left := transmitted(d.Values), transmitted(claim.Values), transmitted(d.Unattributed)
			apart := math.Abs(charged + left - all)
			if sent != all || charged < held-allowed || apart > strays || transmitted(pod.Values) != charged ||
				claim.Ended == nil {
				return fmt.Errorf("the device sent %v bytes, claim and pod are charged %v and %v, nobody %v, the end is at %v; "+
					"of %v bytes %v came before", sent, charged, transmitted(pod.Values), left, claim.Ended, all, held)
			}
			return nil
		}))
	})
}

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
