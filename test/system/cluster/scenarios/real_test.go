package scenarios

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/exporter/present"
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
