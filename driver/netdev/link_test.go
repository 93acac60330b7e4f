package netdev

import (
	"os"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const nic = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/net/ens1f0v0/" // of server.tree

// The operational state says whether there is a link, or else carrier. Without a link there is no
// speed.
func TestLink(t *testing.T) {
	for name, tc := range map[string]struct {
		operstate, carrier string // "": no file
		up                 float64
		known              bool
	}{
		"up":                    {"up", "1", 1, true},
		"cable pulled":          {"down", "0", 0, true},
		"of a bridge without":   {"lowerlayerdown", "0", 0, true},
		"waits for 802.1X":      {"dormant", "1", 0, true},
		"not said, and carrier": {"unknown", "1", 1, true},
		"not said, no carrier":  {"unknown", "0", 0, true},
		"carrier alone":         {"", "0", 0, true},
		"nothing":               {"", "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "server.tree")
			m.remove(m.path("ens1f0v0", "operstate"))
			for file, text := range map[string]string{"operstate": tc.operstate, "carrier": tc.carrier} {
				if text != "" {
					m.Write(nic + file + ": " + text + "\n")
				}
			}
			got := drivertest.Values(m.sample()["ens1f0v0"])
			if up, ok := got["link_up network"]; up != tc.up || ok != tc.known {
				t.Errorf("link_up %v, %v; want %v, %v", up, ok, tc.up, tc.known)
			}
			if speed, ok := got["capacity speed"]; ok {
				t.Errorf("speed %v, which the kernel calls -1", speed)
			}
		})
	}
}

// An interface that is off has no link: the kernel refuses to read carrier.
func TestLinkOff(t *testing.T) {
	m := newMachine(t, "server.tree")
	m.Write(nic + "operstate: unknown\n")
	if err := os.Symlink("/sys/class/net/lo/speed", m.path("ens1f0v0", "carrier")); err != nil { // invalid, too
		t.Fatal(err)
	}
	up, ok := drivertest.Values(m.sample()["ens1f0v0"])["link_up network"]
	expect.That(t, up == 0 && ok, "link_up %v, %v", up, ok)
}

// The link of an interface that a driver moved into a pod is read in the pod's sysfs. Without
// permission, it is unknown, and the traffic is still read.
func TestLinkInPod(t *testing.T) {
	m := newMachine(t)
	m.source.isSysfs = func(sysfs.Dir) bool { return true }
	m.process(42, row("net1", 700))
	m.attach(driver.Hardware{}, 42)
	read := func() map[string]float64 {
		s, ok := m.device("")
		must.That(t, ok, "no sample")
		return drivertest.Values(s)
	}
	if got := read(); got["io_bytes network receive"] != 700 || len(got) != numCounters {
		t.Errorf("without the pod's sysfs: %v", got)
	}
	m.Write("proc/42/root/sys/class/net/net1/operstate: down\nproc/42/root/sys/class/net/net1/carrier_down_count: 2\n")
	if got := read(); got["link_up network"] != 0 || got["errors link_down"] != 2 || len(got) != numCounters+2 {
		t.Errorf("with it: %v", got)
	}
	m.source.isSysfs = sysfs.IsSysfs
	if got := read(); len(got) != numCounters {
		t.Errorf("with something else mounted there: %v", got)
	}
}
