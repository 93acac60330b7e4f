package scenarios

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// trouble is how long a component is stopped.
const trouble = 3 * time.Second

// holders creates a namespace with six pods that hold devices by all kinds of claims and by a
// device plugin. Every snapshot is checked for these holds until lift is called.
func (w *world) holders(t *testing.T, name string) (n *namespace, lift func()) {
	n = w.namespace(t, name)
	n.claim("whole", request("gpu", gpudriver.ClassGPU))
	n.claim("small", memory(request("part", gpudriver.ClassShared), 2, "10Gi"))
	n.claim("large", memory(request("part", gpudriver.ClassShared), 2, "20Gi"))
	n.template("made", request("gpu", gpudriver.ClassGPU))
	for _, claim := range []string{"whole", "small", "large"} {
		n.pod(claim, podSpec(claim))
	}
	n.pod("other", podSpec("whole"))
	n.pod("made", templateSpec("made"))
	n.pod("plugged", resourceSpec(deviceplugin.Whole, "1"))
	n.running(6)
	lift = n.keeps(6)
	return n, lift
}

// stillCharged checks that two of the claims are charged their shares.
func (n *namespace) stillCharged() {
	n.charges("shared-2", claimPart("small", 1.0/3).without(0.5), claimPart("large", 2.0/3).without(0.5))
}

// sourceUp waits until every exporter reports a source as up (1) or down (0).
func (n *namespace) sourceUp(source string, want float64) {
	n.each(fmt.Sprintf("source %s is at %v", source, want), n.exporters, func(e *running) error {
		return e.has("dra_exporter_source_up", want, "source", source)
	})
}

// order stops a component or, if it was stopped, starts it.
func (n *namespace) order(verb func(string) error, component string) {
	n.no(verb(component))
	if component == "kubelet" || component == "driver" {
		n.ownership.switched(component)
	}
}

// testRestarts restarts the components one after the other. Meanwhile every snapshot must show the
// pods that hold devices, and they must be charged.
func testRestarts(t *testing.T, w *world) {
	n, lift := w.holders(t, "restarts")
	for _, restart := range []struct {
		name string
		test func(*namespace)
	}{
		{"Kubelet", testKubeletRestart},
		{"Driver", testDriverRestart},
		// Pods are created here, before the API server is stopped.
		{"ServerHangs", testServerHangs},
		{"ServerAway", testServerAway},
		{"KubeletWithoutServer", testKubeletRestartWithoutServer},
	} {
		if t.Failed() {
			break
		}
		t.Run(restart.name, func(t *testing.T) { restart.test(&namespace{T: t, world: w, name: n.name}) })
	}
	// After the API server was stopped, these components need a minute until they create pods or
	// publish devices again.
	for _, component := range []string{"kube-controller-manager", "kube-scheduler", "driver"} {
		n.order(n.cluster.StopComponent, component)
		n.order(n.cluster.StartComponent, component)
	}
	lift()
	n.clear()
}

// The kubelet is killed and started again.
func testKubeletRestart(n *namespace) {
	n.order(n.cluster.StopComponent, "kubelet")
	n.sourceUp("podresources", 0)
	n.stillCharged() // This takes some seconds.
	n.order(n.cluster.StartComponent, "kubelet")
	n.sourceUp("podresources", 1)
	n.stillCharged()
	n.agree(6)
}

// The kubelet is restarted while the API server is stopped. Until the API server is back, the
// kubelet answers with an empty list.
func testKubeletRestartWithoutServer(n *namespace) {
	n.order(n.cluster.StopComponent, "kube-apiserver")
	n.order(n.cluster.StopComponent, "kubelet")
	n.order(n.cluster.StartComponent, "kubelet")
	n.each("the empty answer is not believed", n.exporters, func(e *running) error {
		return e.counted("dra_exporter_source_errors_total", "source", "podresources", "reason", "empty_disbelieved")
	})
	time.Sleep(trouble)
	n.stillCharged()
	n.order(n.cluster.StartComponent, "kube-apiserver")
	n.sourceUp("podresources", 1)
	n.stillCharged()
	n.agree(6)
}

// A pod ends while the API server is stopped.
func testServerAway(n *namespace) {
	n.endsWithoutServer("away", n.cluster.StopComponent, n.cluster.StartComponent)
}

// A pod ends while the API server does not answer.
func testServerHangs(n *namespace) {
	n.endsWithoutServer("hangs", n.cluster.PauseComponent, n.cluster.ResumeComponent)
}

// endsWithoutServer lets a pod end while the API server can't report it. Every exporter must end
// the hold when the driver unprepares the device, according to the driver's journal. When the API
// server is back, the device must still have no holder. Other pods must keep their devices.
func (n *namespace) endsWithoutServer(name string, takeAway, bringBack func(string) error) {
	o := n.namespace(n.T, "server-"+name)
	o.claim("job", request("gpu", gpudriver.ClassGPU))
	o.pod("job", once(podSpec("job", untilFinish()...)))
	o.phase("job", corev1.PodRunning)
	holds, _ := o.agree(1)
	n.order(takeAway, "kube-apiserver")
	o.finish("job")
	begin, end := time.Now(), time.Time{}
	eventually(n.T, "the driver takes the device back", func() error {
		all := o.takenBack("job")
		if len(all) == 0 {
			return errors.New("the journal does not say so")
		}
		end = all[0].Time
		n.ownership.truth.Ended(all[0].UID, end)
		return nil
	})
	over := func(_ *running, r *present.Report) error {
		if got := holdsOfExporter(r, o.name); len(got) > 0 {
			return fmt.Errorf("%v hold devices", got)
		}
		row := holder(r.Claims, o.name, "job", holds[0].Device)
		if row.Ended == nil || row.Ended.Sub(end).Abs() > 2*timing {
			return fmt.Errorf("the claim has ended at %v, want %v", row.Ended, end)
		}
		return nil
	}
	n.each("every exporter ends the hold", n.exporters, snapshots(over))
	n.Logf("the server was away for %v when the driver took the device back, and %v later all exporters knew",
		end.Sub(begin).Round(time.Millisecond), time.Since(end).Round(time.Millisecond))
	var lifts []func()
	for _, e := range n.exporters {
		lifts = append(lifts, e.watch.guard(n.T, func(r *present.Report) error { return over(e, r) }))
	}
	n.stillCharged()
	n.order(bringBack, "kube-apiserver")
	begin = time.Now()
	o.phase("job", corev1.PodSucceeded)
	n.Logf("%v after the server was back, it knew that the pod has ended", time.Since(begin).Round(time.Millisecond))
	o.agree(0)
	liftAll(lifts)
	n.agree(6)
}

// takenBack returns the events in the driver's journal that say that a claim was unprepared.
func (n *namespace) takenBack(claim string) []plugin.Event {
	return slices.DeleteFunc(must.Get(n.cluster.Journal())(n), func(e plugin.Event) bool {
		return e.Prepared || e.Namespace != n.name || e.Name != claim
	})
}

// A restart of the driver does not change who holds its devices.
func testDriverRestart(n *namespace) {
	n.order(n.cluster.StopComponent, "driver")
	time.Sleep(trouble)
	n.stillCharged()
	n.order(n.cluster.StartComponent, "driver")
	time.Sleep(trouble)
	n.stillCharged()
}

// A hundred pods share four claims, and all are deleted at the same time.
func testHundredPods(t *testing.T, w *world) {
	const claims, pods = 4, 100
	n := w.namespace(t, "hundred")
	for i := range claims {
		n.claim(fmt.Sprintf("claim-%d", i), memory(request("part", gpudriver.ClassShared), 2, "10Gi"))
	}
	begin := time.Now()
	for i := range pods {
		n.pod(fmt.Sprintf("pod-%d", i), podSpec(fmt.Sprintf("claim-%d", i%claims)))
	}
	n.running(pods)
	t.Logf("%d pods ran after %v", pods, time.Since(begin).Round(time.Millisecond))
	n.agree(pods)
	n.charges("shared-2", claimPart("claim-0", 0.25), podPart("pod-0", 0.01), podPart("pod-99", 0.01))
	begin = time.Now()
	n.clear()
	t.Logf("they were gone after %v", time.Since(begin).Round(time.Millisecond))
}

// testDevices checks what the exporter shows about all devices, with and without a holder.
func testDevices(t *testing.T, w *world) {
	r := must.Get(w.exporter.report())(t)
	listed := 0
	for i := range r.Devices {
		if r.Devices[i].Driver == gpudriver.Name {
			listed++
		}
	}
	expect.That(t, listed == len(w.vendor.gpus),
		"%d devices of the driver, want the %d of the slices", listed, len(w.vendor.gpus))
	for _, g := range w.vendor.gpus {
		d := deviceOf(r, g.name)
		expect.That(t, d.Up != nil && *d.Up && d.UUID == g.uuid,
			"%s: up %v, UUID %q; want up and %q", g.name, d.Up, d.UUID, g.uuid)
	}
	taint, err := w.exporter.value("dra_device_tainted", "device", gpudriver.Worn, "key", gpudriver.Taint, "value",
		"true", "effect", "NoSchedule")
	expect.That(t, err == nil && taint == 1, "the taint of worn-0: %v, %v; want 1", taint, err)
	// The whole GPU and its partitions have capacities, although not all can be allocated at once.
	for device, gib := range map[string]float64{
		"cut-0": 80, "cut-0-partition-0": 20, "cut-0-partition-3": 20,
		"shared-0": 80,
	} {
		expect.OK(t, w.exporter.has("dra_device_capacity", gib*(1<<30), "device", device, "resource", "memory"))
	}
	expect.That(t, deviceOf(r, "shared-0").Multiple && !deviceOf(r, "gpu-0").Multiple,
		"shared-0 alone of shared-0 and gpu-0 allows multiple allocations")
}

// TestNodeShutdown runs with -long, on its own cluster, whose kubelet finds logind on a D-Bus. When
// the node shuts down, the kubelet reports immediately that its pods have failed, but their
// containers run on for the grace period. The pods must hold their devices until their containers
// have ended.
func TestNodeShutdown(t *testing.T) {
	if !*long {
		t.Skip("NOT RUN: it starts a cluster of its own, with -args -long")
	}
	const grace, sure = 15, 10
	l := startLogind(t)
	w := newWorld(t, cluster.Options{Runtime: cluster.Containerd, Bus: l.address})
	n := w.namespace(t, "shutdown")
	n.user(endsSlowly(once(podSpec("one")), grace))
	lift := n.keeps(1)
	time.Sleep(time.Minute) // This makes the inaccuracy at both ends small in the sum.
	l.shutDown(t)
	time.Sleep(sure * time.Second)
	n.stillRuns("user")
	lift()
	n.phase("user", corev1.PodFailed)
	n.agree(0)
	l.released(t)
	w.finish(t)
}

// Names on the bus (org.freedesktop.login1(5)).
const (
	logindName    = "org.freedesktop.login1"
	logindPath    = "/org/freedesktop/login1"
	logindManager = "org.freedesktop.login1.Manager"
)

// logind is the part of systemd-logind that the kubelet uses: an inhibitor lock, which delays the
// shutdown while it is held, and the signal of the shutdown.
type logind struct {
	address string
	conn    *dbus.Conn

	mu          sync.Mutex
	lock, ended *os.File // Both ends of the lock; nil if it was not taken.
}

// startLogind starts a D-Bus with a logind.
func startLogind(t *testing.T) *logind {
	t.Helper()
	dir := t.TempDir()
	l := &logind{address: "unix:path=" + filepath.Join(dir, "bus")}
	config := filepath.Join(dir, "bus.conf")
	must.Do(t, os.WriteFile(config, fmt.Appendf(nil, `<busconfig>
<type>custom</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
</busconfig>`, l.address), 0o600))
	bus := exec.Command("dbus-daemon", "--nofork", "--config-file="+config)
	bus.Stderr = os.Stderr
	bus.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := bus.Start(); err != nil {
		t.Fatalf("start a D-Bus: %v: it is Debian's package dbus-daemon", err)
	}
	t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait() // It was killed.
	})
	eventually(t, "the D-Bus answers", func() error {
		var err error
		l.conn, err = dbus.Connect(l.address)
		return err
	})
	t.Cleanup(func() {
		expect.OK(t, l.conn.Close())
	})
	delay := prop.Map{logindManager: {"InhibitDelayMaxUSec": {Value: uint64(time.Hour / time.Microsecond)}}}
	must.Get(prop.Export(l.conn, logindPath, delay))(t)
	must.Do(t, l.conn.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, logindPath, logindManager))
	if reply, err := l.conn.RequestName(logindName, dbus.NameFlagDoNotQueue); err != nil ||
		reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("own %s: %v, %v", logindName, reply, err)
	}
	return l
}

// inhibit gives the caller the lock: one end of a pipe.
func (l *logind) inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.lock, l.ended = write, read
	return dbus.UnixFD(write.Fd()), nil
}

// shutDown waits until the kubelet has the lock, and announces the shutdown.
func (l *logind) shutDown(t *testing.T) {
	t.Helper()
	eventually(t, "the kubelet delays the shutdown", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lock == nil {
			return fmt.Errorf("nobody has asked for the lock")
		}
		return nil
	})
	if err := l.lock.Close(); err != nil { // The kubelet has its own copy.
		t.Fatal(err)
	}
	must.Do(t, l.conn.Emit(logindPath, logindManager+".PrepareForShutdown", true))
}

// released waits until the kubelet releases the lock.
func (l *logind) released(t *testing.T) {
	must.Do(t, l.ended.SetReadDeadline(time.Now().Add(*waitLimit)))
	_, err := io.ReadAll(l.ended)
	expect.That(t, err == nil, "the kubelet holds the lock: %v", err)
	expect.OK(t, l.ended.Close())
}

// TestPodGroups runs with -long, on its own cluster, in which pod groups may have claims
// (KEP-5729). Such a claim is reserved for the group and not for its pods.
func TestPodGroups(t *testing.T) {
	if !*long || !kubeletSince(podGroupsSince) {
		t.Skip("NOT RUN: it starts a cluster of its own, with -args -long and a kubelet that knows pod groups")
	}
	w := newWorld(t, cluster.Options{Gates: []string{"GenericWorkload", "DRAWorkloadResourceClaims"}})
	// A long hold makes the inaccuracy at the start and end of other holds small in the sum.
	anchor := w.namespace(t, "anchor")
	anchor.claim("one", request("gpu", gpudriver.ClassGPU))
	anchor.pod("user", podSpec("one"))
	anchor.running(1)
	anchor.agree(1)
	time.Sleep(time.Minute)
	t.Run("Claims", func(t *testing.T) {
		w.runAll(t, map[string]func(*testing.T, *world){"Template": testPodGroupTemplate, "Named": testPodGroupNamed}, nil)
	})
	w.finish(t)
}

// group creates a pod group with a claim, which pods of the group can name.
func (n *namespace) group(claim *schedulingv1beta1.PodGroupResourceClaim) {
	claim.Name = "devices"
	create(n, n.client.SchedulingV1beta1().PodGroups(n.name), &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "group"},
		Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}},
			ResourceClaims:   []schedulingv1beta1.PodGroupResourceClaim{*claim},
		},
	})
}

func grouped(spec corev1.PodSpec) corev1.PodSpec {
	spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("group")}
	return spec
}

// A claim is created for a pod group from a template. Each pod of the group that names the claim
// holds it, whether a main container names it or none.
func testPodGroupTemplate(t *testing.T, w *world) {
	n := w.namespace(t, "pod-group-template")
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.group(&schedulingv1beta1.PodGroupResourceClaim{ResourceClaimTemplateName: ptr.To("made")})
	n.pod("a", grouped(templateSpec("made")))
	n.pod("b", grouped(podLevel(templateSpec("made"))))
	n.running(2)
	holds, _ := n.agree(2)
	n.reservedForGroup(holds[0].Claim)
	n.unresolved()
	for _, e := range n.exporters {
		part := 0.5
		if e.noServer {
			part = 1
		}
		n.chargesBy([]*running{e}, func(*running) string { return holds[0].Device }, claimPart(holds[0].Claim, 1),
			podPart("a", part))
	}
	n.remove("b", 1)
	n.agree(1)
	n.charges(holds[0].Device, podPart("a", 1))
	n.remove("a", 1)
	n.agree(0) // The claim stays reserved for the group, which has no pods.
}

// The same is true for an existing claim that the group names.
func testPodGroupNamed(t *testing.T, w *world) {
	n := w.namespace(t, "pod-group-named")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.group(&schedulingv1beta1.PodGroupResourceClaim{ResourceClaimName: ptr.To("one")})
	n.pod("a", grouped(podSpec("one")))
	n.running(1)
	n.agree(1)
	n.reservedForGroup("one")
	n.force(n.awaitPod("a", ""))
	n.pod("a", grouped(podSpec("one")))
	n.running(1)
	n.agree(1)
	n.remove("a", 1)
	n.agree(0)
}

// reservedForGroup checks that the claim is reserved only for the pod group.
func (n *namespace) reservedForGroup(name string) {
	by := n.getClaim(name).Status.ReservedFor
	expect.That(n, len(by) == 1 && by[0].Resource == "podgroups" && by[0].Name == "group",
		"claim %s is reserved for %+v, want the group", name, by)
}
