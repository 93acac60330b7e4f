package attack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	netDriver = "dra.net"
	nicUID    = "5a5a5a5a-0000-4000-8000-000000000001"
	// lostUID is the UID of a pod with an interface and without a process that can be found, so
	// that the program searches for one.
	lostUID = "5a5a5a5a-0000-4000-8000-000000000002"
)

// nicPod is a pod with an interface net1: a sandbox process in a network namespace and in the pod's
// cgroup.
type nicPod struct {
	t       testing.TB
	cgroup  string // the pod's folder
	sandbox int
}

// newNICPod starts the pod. It needs root.
func newNICPod(t testing.TB) *nicPod {
	p := &nicPod{t: t, cgroup: filepath.Join(cgroupRoot(), fmt.Sprintf("attack%d", os.Getpid()), "kubepods", "pod"+nicUID)}
	must.Do(t, os.MkdirAll(p.cgroup, 0o755))
	t.Cleanup(func() {
		for _, container := range []string{"sandbox", "main"} {
			remove(t, filepath.Join(p.cgroup, container))
		}
		for dir := p.cgroup; strings.Contains(dir, "attack"); dir = filepath.Dir(dir) {
			remove(t, dir)
		}
	})
	id := os.Getpid() % 10000
	namespace, wire := fmt.Sprintf("attack%d", id), fmt.Sprintf("atk%d", id)
	ip(t, "netns add "+namespace)
	t.Cleanup(func() { ip(t, "netns del "+namespace) })
	ip(t, "link add "+wire+" type veth peer name net1 netns "+namespace)
	ip(t, "link set "+wire+" up")
	ip(t, "-n "+namespace+" addr add 198.19.252.1/30 dev net1")
	ip(t, "-n "+namespace+" link set net1 up")
	ip(t, "-n "+namespace+" neigh add 198.19.252.2 lladdr 02:00:00:00:00:01 dev net1")
	p.sandbox = p.start("sandbox", "ip", "netns", "exec", namespace, "sleep", "1000")
	return p
}

// cgroupRoot returns a hierarchy of cgroups, of version 2 or of systemd's.
func cgroupRoot() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/systemd"
}

// start starts a process in a container of the pod, until the test ends.
func (p *nicPod) start(container string, command ...string) int {
	folder := filepath.Join(p.cgroup, container)
	must.Do(p.t, os.MkdirAll(folder, 0o755))
	// The shell enters the cgroup and then becomes the command: no process of it is elsewhere.
	cmd := exec.Command("sh", append([]string{"-c", `echo $$ > "$0"; exec "$@"`, filepath.Join(folder, "cgroup.procs")},
		command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.Do(p.t, cmd.Start())
	p.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
	})
	return cmd.Process.Pid
}

// remove removes a cgroup when the last of its processes has ended.
func remove(t testing.TB, cgroup string) {
	t.Helper()
	var err error
	for range 200 {
		if err = syscall.Rmdir(cgroup); err == nil || errors.Is(err, syscall.ENOENT) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("remove cgroup %s: %v", cgroup, err)
}

// ip runs a command of iproute2.
func ip(t testing.TB, command string) {
	said, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
	must.That(t, err == nil, "ip %s: %v: %s", command, err, said)
}

// transmit makes the pod send packets.
func (p *nicPod) transmit(packets int) {
	send := fmt.Sprintf("for i in $(seq %d); do echo hello > /dev/udp/198.19.252.2/9; done", packets)
	said, err := exec.Command("nsenter", "-t", strconv.Itoa(p.sandbox), "-n", "bash", "-c", send).CombinedOutput()
	must.That(p.t, err == nil, "send: %v: %s", err, said)
}

// packets returns the number of packets that the kernel has sent through the interface; -1: there
// is no such interface.
func (p *nicPod) packets() float64 {
	table := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", p.sandbox)))(p.t)
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); fields[0] == "net1:" {
			n := must.Get(strconv.ParseFloat(fields[10], 64))(p.t)
			return n
		}
	}
	return -1
}

// exported returns the number of packets that the device has sent, by the program; -1: the program
// does not export it.
func (g *target) exported() (float64, error) {
	a, err := g.scrape(honestTimeout)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(a.body) {
		if strings.HasPrefix(line, "dra_device_network_packets_total{") && strings.Contains(line, `device="nic-0"`) &&
			strings.Contains(line, `direction="transmit"`) {
			fields := strings.Fields(line)
			return strconv.ParseFloat(fields[len(fields)-1], 64)
		}
	}
	return -1, nil
}

// withNICs starts the program on a large node with the pod, and with a listed pod that does not
// exist.
func withNICs(t testing.TB, node *largenode.Node, procfs string) *target {
	pods := largenode.PodList()
	for i, uid := range []string{nicUID, lostUID} {
		name := fmt.Sprintf("nic-%d", i)
		claim := podresourcestest.Claim("team", name, podresourcestest.Device(netDriver, largenode.Name, name))
		pods = append(pods, podresourcestest.Pod("team", name, podresourcestest.Container("main", claim)))
		must.Do(t, node.MakeLogs("team", name, uid))
	}
	setPods(t, node, pods)
	inventory := must.Get(os.ReadFile(node.Path("inventory.yaml")))(t)
	nics := fmt.Sprintf(`---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: nics}
spec:
  driver: %s
  nodeName: %s
  pool: {name: %[2]s, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: nic-0, attributes: {dra.net/ifName: {string: net1}}}
  - {name: nic-1, attributes: {dra.net/ifName: {string: net2}}}
`, netDriver, largenode.Name)
	g := launch(t, node, map[string]string{
		"path.procfs": procfs, "inventory.file": node.Write(t, "nics.yaml", string(inventory)+nics),
	})
	g.await("aware of the node", g.complete)
	return g
}

// expectCounted makes the pod send packets during the attack, and checks that the program has
// counted exactly these.
func (p *nicPod) expectCounted(t testing.TB, g *target) {
	sent, counted, err := p.settled(g)
	expect.OK(t, err)
	g.expectHeld(t, g.during(attackTime(), func(ctx context.Context) {
		for ctx.Err() == nil && g.Running() {
			p.transmit(10)
			_ = pause(ctx)
		}
	}))
	expect.OK(t, settles(g, func() error {
		sentNow, countedNow, err := p.look(g)
		if more, seen := sentNow-sent, countedNow-counted; err == nil && math.Abs(more-seen) > slack {
			err = fmt.Errorf("the pod has sent %v packets, and is said to have sent %v", more, seen)
		}
		return err
	}))
}

// look returns the number of packets that the pod has sent, by the kernel and by the program.
func (p *nicPod) look(g *target) (sent, counted float64, err error) {
	sent = p.packets()
	if counted, err = g.exported(); err == nil && counted < 0 {
		err = errors.New("the interface is not read")
	}
	return sent, counted, err
}

// settled does the same as soon as the program reads the interface.
func (p *nicPod) settled(g *target) (sent, counted float64, err error) {
	err = settles(g, func() error {
		sent, counted, err = p.look(g)
		return err
	})
	return sent, counted, err
}

// slack is the number of packets that may be sent between the readings of the two counters.
const slack = 20

func setPods(t testing.TB, node *largenode.Node, pods []*v1.PodResources) {
	must.Do(t, node.Kubelet.SetPods(pods...))
}

// ownNamespace is a pod whose processes leave its network namespace for their own ones, in which
// they have created interfaces of the same name with other counters.
func ownNamespace(t testing.TB) {
	p := newNICPod(t)
	const fake = `set -e
		ip link add net1 type veth peer name wire
		ip link set wire up
		ip link set net1 up
		ip addr add 198.19.251.1/30 dev net1
		ip neigh add 198.19.251.2 lladdr 02:00:00:00:00:01 dev net1
		for i in $(seq 1000); do echo hello > /dev/udp/198.19.251.2/9; done
		exec sleep 1000`
	for range 4 {
		p.start("main", "unshare", "-n", "bash", "-c", fake)
	}
	g := withNICs(t, largenode.Start(t), "/proc")
	p.expectCounted(t, g)
	// The interface of the pod is removed: the remaining ones are not the pod's.
	ip(t, fmt.Sprintf("link del atk%d", os.Getpid()%10000))
	expect.OK(t, settles(g, func() error {
		n, err := g.exported()
		if err == nil && n >= 0 {
			err = fmt.Errorf("without an interface the pod is said to have sent %v packets", n)
		}
		return err
	}))
}

// manyProcesses is a pod with an interface and many processes, of which the program searches for
// the first. Another pod with many processes has no interface.
func manyProcesses(t testing.TB) {
	node := largenode.Start(t)
	for pid := 1; pid <= 50_000; pid++ {
		dir := fmt.Sprintf("proc/%d/", pid)
		must.Do(t, os.Mkdir(node.Path(dir), 0o755))
		node.Write(t, dir+"cgroup", "0::/kubepods/burstable/pod"+nicUID+"/container\n")
		node.Write(t, dir+"stat", fmt.Sprintf("%d (a) S 1%s %d 4096 100\n", pid, strings.Repeat(" 7", 17), 1_000_000-pid))
	}
	const first = "proc/50000/net/"
	must.Do(t, os.Mkdir(node.Path(first), 0o755))
	node.Write(t, first+"dev", "Inter-|   Receive          |  Transmit\n"+
		" face |bytes    packets errs drop fifo frame compressed multicast|"+
		"bytes    packets errs drop fifo colls carrier compressed\n"+
		"  net1: 1 1 0 0 0 0 0 0 4711 4711 0 0 0 0 0 0\n")
	g := withNICs(t, node, node.Path("proc"))
	g.await("aware of the first process of the pod", func() error {
		if n, err := g.exported(); err != nil || n < 0 {
			return fmt.Errorf("its interface is not read, %w", err)
		}
		return nil
	})
	g.expectHeld(t, g.during(attackTime(), func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(attackTime()):
		}
	}))
}

// settles tries for some ticks, until there is no error.
func settles(g *target, try func() error) (err error) {
	for range 10 {
		if err = try(); err == nil || !g.Running() {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	return err
}

// pause waits some time between two steps of an attack, and returns an error when it is over.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}
