package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const tableHead = `Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:     0       0    0    0    0     0          0         0      0       0    0    0    0     0       0          0
`

// row is an interface's row of net/dev that received some bytes.
func row(name string, bytes uint64) string {
	return fmt.Sprintf("%6s: %7d 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", name, bytes)
}

// process makes a process whose network namespace has these rows; a namespace is a file, by
// whatever names.
func (m *machine) process(pid int, rows ...string) {
	path := m.table(pid)
	must.Do(m, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(m, os.WriteFile(path, []byte(tableHead+strings.Join(rows, "")), 0o644))
}

// sibling makes a process in the network namespace of another.
func (m *machine) sibling(pid, of int) {
	must.Do(m, os.MkdirAll(filepath.Dir(m.table(pid)), 0o755))
	must.Do(m, os.Link(m.table(of), m.table(pid)))
}

func (m *machine) table(pid int) string {
	return filepath.Join(m.source.Procfs, strconv.Itoa(pid), "net", "dev")
}

func (m *machine) exit(pid int) { m.remove(filepath.Dir(filepath.Dir(m.table(pid)))) }

// attach makes the device nic-0 the interface net1 of the pod with these processes.
func (m *machine) attach(hardware driver.Hardware, pids ...int) {
	m.attached = []driver.Attachment{{
		Driver: "dra.net", Device: "nic-0", Hardware: hardware, Interface: "net1",
		PIDs: pids,
	}}
}

// device returns the sample of nic-0 by its name, or of the host's interface that it is.
func (m *machine) device(netDev string) (sample driver.Sample, ok bool) {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	for _, s := range samples {
		if s.Device == "nic-0" || netDev != "" && s.Hardware.NetDev == netDev {
			expect.That(m, !ok, "the device has two samples: %+v and %+v", sample, s)
			sample, ok = s, true
		}
	}
	return sample, ok
}

func TestPodsInterface(t *testing.T) {
	m := newMachine(t)
	m.process(1)
	m.process(7, row("eth0", 5), row("net1", 1000))
	m.attach(driver.Hardware{}, 7)
	s, ok := m.device("")
	must.That(t, ok && s.Driver == "dra.net", "sample %+v, %v", s, ok)
	want := map[string]float64{
		"io_bytes network receive": 1000, "io_bytes network transmit": 9,
		"network_packets receive": 2, "network_packets transmit": 10,
		"network_errors receive": 3, "network_errors transmit": 11,
		"network_drops receive": 4, "network_drops transmit": 12,
	}
	expect.Equal(t, "readings", want, drivertest.Values(s))
	if got := received(s); !got.Since.IsZero() || !got.At.Equal(m.Clock) {
		t.Errorf("%+v, want a value of unknown beginning at %v", got, m.Clock)
	}
}

// Changes of a pod's processes do not matter as long as one is left. Without processes there is no
// sample.
func TestPodsProcesses(t *testing.T) {
	m := newMachine(t)
	m.process(7, row("net1", 1000))
	m.sibling(8, 7)
	for _, tc := range []struct {
		name string
		do   func()
		want float64
	}{
		{"two of one namespace", func() {}, 1000},
		{"the first ends", func() { m.exit(7) }, 1000},
		{"another one takes its number", func() { m.process(7, row("net1", 77)); m.attach(driver.Hardware{}, 8) }, 1000},
		{"none is left", func() { m.exit(7); m.exit(8) }, -1},
	} {
		m.attach(driver.Hardware{}, 7, 8)
		tc.do()
		m.later()
		s, ok := m.device("")
		got := received(s).Value
		expect.That(t, ok == (tc.want >= 0) && (!ok || got == tc.want), "%s: %v, %v; want %v", tc.name, got, ok, tc.want)
	}
}

// A device on the host is read only there. What a device counted continues in a pod and back.
func TestMovesToPodAndBack(t *testing.T) {
	const name = "enxusb"
	m := newMachine(t, "server.tree")
	target := must.Get(os.Readlink(m.path(name, "")))(t)
	device := driver.Hardware{NetDev: name}
	check := func(what string, bytes, dropped float64) {
		s, ok := m.device(name)
		v := drivertest.Values(s)
		expect.That(t, ok && v["io_bytes network receive"] == bytes && v["network_drops receive"] == dropped,
			"%s: %v, want %v bytes and %v drops", what, v, bytes, dropped)
		m.later()
	}
	m.set(name, "statistics/rx_bytes", 1000)
	m.set(name, "statistics/rx_dropped", 1)
	m.set(name, missedErrors, 2)
	check("on the host", 1000, 3)
	m.process(7, row("net1", 1)) // another's of the same name, or a share of it
	m.attach(device, 7)
	check("on the host, and said to be in a pod", 1000, 3)
	m.remove(m.path(name, ""))
	m.process(7, row("net1", 1500))
	check("in the pod", 1500, 4)
	m.exit(7)
	m.Write("class/net/" + name + " -> " + target + "\n")
	m.set(name, "statistics/rx_bytes", 2000)
	check("back on the host", 2000, 3)
}

// Ambiguous devices are not read.
func TestAmbiguousInterfaces(t *testing.T) {
	nic := driver.Attachment{Driver: "dra.net", Device: "nic-0", Interface: "net1", PIDs: []int{7}}
	other := driver.Attachment{Driver: "dra.net", Device: "nic-1", Interface: "net1", PIDs: []int{7}}
	elsewhere := driver.Attachment{Driver: "dra.net", Device: "nic-0", Interface: "net1", PIDs: []int{8}}
	both := driver.Attachment{Driver: "dra.net", Device: "nic-0", Interface: "net1", PIDs: []int{7, 8}}
	gone := driver.Attachment{Driver: "dra.net", Device: "nic-0", Interface: "net2", PIDs: []int{7, 8, 99}}
	hosts := driver.Attachment{Driver: "dra.net", Device: "nic-0", Interface: "eth0", PIDs: []int{2}}
	for _, tc := range []struct {
		name        string
		attachments []driver.Attachment
		samples     int
		err         string
	}{
		{"one", []driver.Attachment{nic}, 1, ""},
		{"two devices in one place", []driver.Attachment{nic, other}, 0, "said to be several devices"},
		{"one device in two places", []driver.Attachment{nic, elsewhere}, 0, ""},
		{"two namespaces", []driver.Attachment{both}, 0, "in several network namespaces"},
		{"no such interface", []driver.Attachment{gone}, 0, ""},
		{"the host's own namespace", []driver.Attachment{hosts}, 0, ""},
		{
			"garbage",
			[]driver.Attachment{{Driver: "dra.net", Device: "nic-0", Interface: "net1", PIDs: []int{9}}},
			1,
			"invalid syntax",
		},
		{
			"too few columns",
			[]driver.Attachment{{Driver: "dra.net", Device: "nic-0", Interface: "net1", PIDs: []int{10}}},
			0,
			"columns",
		},
		{
			"garbage is its own alone",
			[]driver.Attachment{{Driver: "dra.net", Device: "bad", Interface: "net1", PIDs: []int{9}}, nic},
			2,
			"invalid syntax",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.process(1, row("eth0", 1))
			m.sibling(2, 1)
			m.process(7, row("net1", 1))
			m.process(8, row("net1", 2))
			m.process(9, "net1: ? 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
			m.process(10, "net1: 1 2 3\n")
			m.attached = tc.attachments
			samples, err := m.source.Sample(t.Context())
			if len(samples) != tc.samples || (err == nil) != (tc.err == "") ||
				err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%d samples, error %v; want %d, %q", len(samples), err, tc.samples, tc.err)
			}
		})
	}
}

func TestTooManyAttachments(t *testing.T) {
	m := newMachine(t)
	m.process(7, row("net1", 1))
	m.attach(driver.Hardware{}, 7)
	for n := range maxAttachments {
		m.attached = append(m.attached, driver.Attachment{Driver: "dra.net", Device: strconv.Itoa(n)})
	}
	samples, err := m.source.Sample(t.Context())
	expect.That(t, len(samples) == 1 && err != nil, "%d samples, error %v; want 1 and an error", len(samples), err)
}

func FuzzTable(f *testing.F) {
	f.Add([]byte(tableHead+row("net1", 1<<40)), "net1")
	f.Add([]byte(tableHead), "lo")
	f.Add([]byte("a:b:1 2"), "a")
	f.Fuzz(func(t *testing.T, table []byte, name string) {
		r, ok, err := parseTable(table, name)
		if ok && (err == nil) != (r.bad == [numCounters]error{}) || ok && !strings.Contains(string(table), name) {
			t.Errorf("parseTable(%q, %q) = %v, %v", table, name, ok, err)
		}
		for n, c := range r.values {
			if ok && c > 0 && r.bad[n] == nil && !strings.Contains(string(table), strconv.FormatUint(c, 10)) {
				t.Errorf("parseTable(%q, %q) has %d", table, name, c)
			}
		}
	})
}

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
