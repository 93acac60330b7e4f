package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// echoAddress is the environment variable that makes a process of this test an echo server at that
// address, see [TestMain].
const echoAddress = "E2E_ECHO"

// The traffic of a network interface that a pod holds is attributed to the pod, exactly as the
// kernel counts it. Traffic after the pod's end is not attributed.
func TestNetworkTraffic(t *testing.T) {
	t.Parallel()
	link := newLink(t)
	n := newNode(t)
	holder := pod("team", "web", "nic", podresourcestest.Device(netDriver, nodeName, "net-0"))
	bystander := pod("team", "other", "gpu", gpu(0)) // without any, an empty list would not take effect at once
	n.setPods(holder, bystander)
	p := start(t, n.flags(flags{
		"path.sysfs": "/sys",
		"inventory.file": n.inventory(slice(netDriver,
			[2]string{"net-0", fmt.Sprintf("{dra.net/ifName: {string: %s}}", link.name)})),
	}))
	p.eventually("counting", func() bool {
		_, ok := p.scrape().value("dra_pod_io_bytes_total", "pod", "web", "direction", "transmit")
		return ok
	})
	for _, direction := range []string{"receive", "transmit"} {
		p.scrape().want(0, "dra_device_network_errors_total", "device", "net-0", "direction", direction)
	}

	claim := charge{"dra_claim_io_bytes_total", []string{"resourceclaim_name", "nic"}}
	web := charge{"dra_pod_io_bytes_total", []string{"pod", "web"}}
	unattributed := charge{"dra_device_unattributed_io_bytes_total", nil}
	before, spared := link.settle(p, claim, web), unattributed.of(p.scrape())
	link.echo(t, 500, 1200)
	after := link.settle(p, claim, web)
	for i, direction := range []string{"receive", "transmit"} {
		if rise, least := after.kernel[i]-before.kernel[i], []float64{500 * 600, 500 * 1200}[i]; rise < least {
			t.Errorf("%s: the kernel counted %v bytes, want at least %v", direction, rise, least)
		}
	}
	if now := unattributed.of(p.scrape()); now != spared {
		t.Errorf("unattributed: %v bytes, want %v as before", now, spared)
	}
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}

	n.setPods(bystander)
	p.eventually("free", func() bool { return p.scrape().is(0, "dra_device_allocations", "device", "net-0") })
	link.settle(p, unattributed)
	held := claim.of(p.scrape())
	link.echo(t, 100, 800)
	link.settle(p, unattributed)
	if now := claim.of(p.scrape()); now != held {
		t.Errorf("attributed to the ended claim: %v bytes, want %v as before", now, held)
	}
	conserved(t, p.report())
}

// charge is a family of traffic with the labels of the holder.
type charge struct {
	family string
	labels []string
}

// of returns the received and transmitted bytes.
func (c charge) of(m metrics) [2]float64 {
	var out [2]float64
	for i, direction := range []string{"receive", "transmit"} {
		out[i], _ = m.value(c.family,
			append([]string{"device", "net-0", "link", "network", "direction", direction}, c.labels...)...)
	}
	return out
}

// link is a pair of virtual Ethernet interfaces: one in the test's network namespace, and one in
// another with an echo server.
type link struct {
	name   string // of the interface in the test's namespace
	server string
	// base is the state of the counters at the first comparison, by family.
	base map[string]balance
}

// balance is the traffic received and transmitted, as counted by the kernel and by the exporter.
type balance struct{ kernel, exporter [2]float64 }

func newLink(t *testing.T) *link {
	t.Helper()
	id := os.Getpid() % 10000
	l := &link{name: fmt.Sprintf("e2eh%d", id), server: "198.19.253.2:7007", base: map[string]balance{}} // RFC 2544
	namespace, peer := fmt.Sprintf("e2e%d", id), fmt.Sprintf("e2ep%d", id)
	ip(t, "netns add "+namespace)
	t.Cleanup(func() { ip(t, "netns del "+namespace) })
	ip(t, "link add "+l.name+" type veth peer name "+peer+" netns "+namespace)
	t.Cleanup(func() { ip(t, "link del "+l.name) })
	ip(t, "addr add 198.19.253.1/30 dev "+l.name)
	ip(t, "link set "+l.name+" up")
	ip(t, "-n "+namespace+" addr add 198.19.253.2/30 dev "+peer)
	ip(t, "-n "+namespace+" link set "+peer+" up")
	l.serve(t, namespace)
	return l
}

// ip runs a command of iproute2.
func ip(t *testing.T, command string) {
	t.Helper()
	if said, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", command, err, said)
	}
}

// serve starts the echo server in the namespace until the test ends.
func (l *link) serve(t *testing.T, namespace string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", namespace, self)
	cmd.Env = append(os.Environ(), echoAddress+"="+l.server)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
}

// runEcho returns half of every datagram, so that sent and received bytes differ.
func runEcho(address string) error {
	server, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	defer server.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := server.ReadFrom(buffer)
		if err != nil {
			return err
		}
		_, _ = server.WriteTo(buffer[:n/2], from) // the client repeats lost datagrams
	}
}

// echo sends datagrams of a size to the server, one after the other, and receives half of each.
func (l *link) echo(t *testing.T, datagrams, size int) {
	t.Helper()
	conn, err := net.Dial("udp", l.server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data := make([]byte, size)
	deadline := time.Now().Add(startTimeout)
	for sent := 0; sent < datagrams; {
		_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond)) // otherwise it waits until the test's timeout
		_, err := conn.Write(data)
		if err == nil {
			_, err = conn.Read(data)
		}
		switch {
		case err == nil:
			sent++
		case time.Now().After(deadline):
			t.Fatalf("no echo: %v", err)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			time.Sleep(10 * time.Millisecond) // the server does not listen yet
		}
	}
}

// kernel returns the kernel's counters.
func (l *link) kernel(t *testing.T) [2]float64 {
	t.Helper()
	var out [2]float64
	for i, name := range []string{"rx_bytes", "tx_bytes"} {
		data, err := os.ReadFile("/sys/class/net/" + l.name + "/statistics/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if out[i], err = strconv.ParseFloat(strings.TrimSpace(string(data)), 64); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// settle waits until the link is idle and the exporter has read all traffic. All charges must have
// increased by exactly the increase of the kernel's counters since their first call.
func (l *link) settle(p *program, charges ...charge) balance {
	p.t.Helper()
	var b balance
	p.eventually("settled", func() bool {
		b.kernel = l.kernel(p.t)
		time.Sleep(2500 * time.Millisecond) // two ticks
		m := p.scrape()
		for _, c := range charges {
			b.exporter = c.of(m)
			if b.kernel != l.kernel(p.t) {
				return false
			}
			base, begun := l.base[c.family]
			if !begun {
				l.base[c.family] = b
			} else if sub(b.kernel, base.kernel) != sub(b.exporter, base.exporter) {
				p.t.Logf("%s increased by %v, the kernel's counters by %v", c.family, sub(b.exporter, base.exporter),
					sub(b.kernel, base.kernel))
				return false
			}
		}
		return true
	})
	return b
}

func sub(a, b [2]float64) [2]float64 { return [2]float64{a[0] - b[0], a[1] - b[1]} }
