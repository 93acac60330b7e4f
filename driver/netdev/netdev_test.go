package netdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a source over a tree of its own, and its clock.
type machine struct {
	*drivertest.Machine
	attached []driver.Attachment
	source   *Source
}

func newMachine(tb testing.TB, trees ...string) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb)}
	for _, tree := range trees {
		m.Write(drivertest.TestData(tb, tree))
	}
	m.source = New(driver.Host{
		Sysfs: m.Root, Procfs: filepath.Join(m.Root, "proc"),
		Attachments: func() []driver.Attachment { return m.attached },
	})
	m.source.now = m.Now
	return m
}

// set writes the value of an interface's file.
func (m *machine) set(name, file string, value uint64) {
	must.Do(m, os.WriteFile(m.path(name, file), fmt.Appendln(nil, value), 0o644))
}

func (m *machine) path(name, file string) string { return filepath.Join(m.source.root, name, file) }

func (m *machine) remove(path string) {
	must.Do(m, os.RemoveAll(path))
}

// later lets a second go by.
func (m *machine) later() { m.Clock = m.Clock.Add(time.Second) }

func (m *machine) sample() map[string]driver.Sample {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	return byName(samples)
}

func byName(samples []driver.Sample) map[string]driver.Sample {
	named := map[string]driver.Sample{}
	for _, s := range samples {
		named[s.Hardware.NetDev] = s
	}
	return named
}

// received returns the reading of received bytes.
func received(s driver.Sample) driver.Reading {
	for _, r := range s.Readings {
		if r.Quantity == driver.IOBytes && r.Labels[1] == "receive" {
			return r
		}
	}
	return driver.Reading{}
}

func TestRecordedMachine(t *testing.T) {
	samples := newMachine(t, "virtio.tree").sample()
	hardware := map[string]driver.Hardware{}
	for name, s := range samples {
		hardware[name] = s.Hardware
	}
	want := map[string]driver.Hardware{
		"eth0": {NetDev: "eth0", PCI: "0000:00:03.0"},
		"ifb0": {NetDev: "ifb0"},
		"ifb1": {NetDev: "ifb1"},
	}
	expect.Equal(t, "hardware", want, hardware)
	if got := drivertest.Values(samples["eth0"]); len(got) != numCounters+1 || got["link_up network"] != 1 {
		t.Errorf("%d readings of eth0, whose speed is unknown: %v", len(got), got)
	}
}

func TestServer(t *testing.T) {
	m := newMachine(t, "server.tree")
	samples := m.sample()
	hardware := map[string]driver.Hardware{}
	for name, s := range samples {
		hardware[name] = s.Hardware
	}
	const function = "0000:3b:00.0"
	want := map[string]driver.Hardware{
		"ens1f0np0":     {NetDev: "ens1f0np0", PCI: function, RDMADev: "mlx5_0", NUMANode: "1"},
		"ens1f0npf0vf0": {NetDev: "ens1f0npf0vf0", Parent: function, NUMANode: "1"},
		"ens1f0v0": {
			NetDev: "ens1f0v0", Kind: driver.KindPartition, PCI: "0000:3b:00.2", Parent: function,
			RDMADev: "mlx5_2", NUMANode: "1",
		},
		"en3f0pf0sf88": {
			NetDev: "en3f0pf0sf88", Kind: driver.KindPartition, Parent: function, RDMADev: "mlx5_4",
			NUMANode: "1",
		},
		"enxusb":       {NetDev: "enxusb"},
		"bond0":        {NetDev: "bond0"},
		"veth0a1b2c3d": {NetDev: "veth0a1b2c3d"},
	}
	expect.Equal(t, "hardware", want, hardware)
	counters := map[string]float64{
		"io_bytes network receive": 100000000, "io_bytes network transmit": 10000001,
		"network_packets receive": 1000002, "network_packets transmit": 100003,
		"network_errors receive": 10004, "network_errors transmit": 1005,
		"network_drops receive": 106, "network_drops transmit": 17,
	}
	withSpeed := maps.Clone(counters)
	withSpeed["capacity speed"], withSpeed["link_up network"], withSpeed["errors link_down"] = 12.5e9, 1, 3
	expect.Equal(t, "readings of the physical function", withSpeed, drivertest.Values(samples["ens1f0np0"]))
	m.set("ens1f0np0", missedErrors, 50)
	m.later()
	withSpeed["network_drops receive"] += 50
	expect.Equal(t, "readings with missed packets", withSpeed, drivertest.Values(m.sample()["ens1f0np0"]))
	for name, want := range map[string]float64{"enxusb": 125e6, "ens1f0v0": 0, "bond0": 0, "veth0a1b2c3d": 0} {
		if got := drivertest.Values(samples[name])["capacity speed"]; got != want {
			t.Errorf("speed of %s is %v bytes per second, want %v", name, got, want)
		}
	}
}

// TestFactsAreRefreshed: changes behind an interface are visible within factsEvery, and at once if
// it is created again.
func TestFactsAreRefreshed(t *testing.T) {
	m := newMachine(t, "server.tree")
	first := m.Clock
	m.sample()
	m.later()
	m.set("enxusb", "speed", 10_000)
	capacity := func() (driver.Reading, bool) {
		for _, r := range m.sample()["enxusb"].Readings {
			if r.Quantity == driver.Capacity {
				return r, true
			}
		}
		return driver.Reading{}, false
	}
	if got, _ := capacity(); got.Value != 125e6 || !got.At.Equal(first) {
		t.Errorf("speed before its time: %+v, want that of %v", got, first)
	}
	m.Clock = first.Add(factsEvery)
	if got, _ := capacity(); got.Value != 1250e6 || !got.At.Equal(m.Clock) {
		t.Errorf("speed: %+v, want 10 Gbit/s at %v", got, m.Clock)
	}
	m.remove(m.path("enxusb", "speed"))
	m.set("enxusb", "ifindex", 77)
	if got, ok := capacity(); ok {
		t.Errorf("speed of another interface: %+v", got)
	}
}

// TestDeadline: between two interfaces, the source checks whether its time is over, and returns
// what it has.
func TestTemperature(t *testing.T) {
	m := newMachine(t, "server.tree")
	const monitor = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/hwmon/hwmon4/"
	m.Write(monitor + "temp1_input: 51000\n" + monitor + "temp1_label: asic\n" + monitor + "temp2_input: 39250\n")
	named := m.sample()
	for name, want := range map[string]map[string]float64{
		"ens1f0np0": {"temperature asic": 51, "temperature temp2": 39.25}, "ens1f0v0": {}, "enxusb": {},
	} {
		got := drivertest.Values(named[name])
		maps.DeleteFunc(got, func(key string, _ float64) bool { return !strings.HasPrefix(key, "temperature") })
		expect.Equal(t, name, want, got)
	}
	m.Clock = m.Clock.Add(factsEvery)
	m.Write(monitor + "temp1_input: hot\n")
	samples, err := m.source.Sample(t.Context())
	expect.That(t, err != nil && strings.Contains(err.Error(), "read sensor asic of network interface ens1f0np0"),
		"error %v of a sensor that can't be read", err)
	got := drivertest.Values(byName(samples)["ens1f0np0"])
	expect.That(t, driver.IsMalformed(got["temperature asic"]) && got["temperature temp2"] == 39.25,
		"readings %v, want those of the other sensor, and a malformed one", got)
}

func TestDeadline(t *testing.T) {
	m := newMachine(t, "server.tree")
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	m.source.now = func() time.Time {
		calls++
		if calls == 4 { // the start, and three interfaces
			cancel()
		}
		return m.Clock
	}
	samples, err := m.source.Sample(ctx)
	expect.That(t, len(samples) == 3 && errors.Is(err, context.Canceled),
		"%d samples, error %v; want 3 and %v", len(samples), err, context.Canceled)
}

// TestTurns: of many interfaces without hardware each has its turn, and keeps its readings until
// then; those with hardware are read every time.
func TestTurns(t *testing.T) {
	const virtuals = 3*virtualsAtOnce - 10
	receivedBytes := counterFiles()
	m := newMachine(t, "server.tree")
	m.remove(m.path("bond0", ""))
	m.remove(m.path("veth0a1b2c3d", ""))
	m.Write(veths(virtuals, receivedBytes[:1]))
	m.sample() // reads all, being new
	read := map[string]time.Time{}
	for range 3 {
		m.later()
		now := 0
		for name, s := range m.sample() {
			at := received(s).At
			switch isNow := at.Equal(m.Clock); {
			case !strings.HasPrefix(name, "veth") && !isNow:
				t.Errorf("%s, with hardware, was read at %v, not %v", name, at, m.Clock)
			case strings.HasPrefix(name, "veth") && isNow:
				now++
				read[name] = at
			}
		}
		expect.Is(t, now, virtualsAtOnce, "interfaces without hardware were read")
	}
	expect.Is(t, len(read), virtuals, "interfaces without hardware had their turn")
}

func TestRootUnreadable(t *testing.T) {
	m := newMachine(t)
	m.Write("class/net: a file\n")
	if samples, err := m.source.Sample(t.Context()); len(samples) > 0 || err == nil {
		t.Errorf("samples %v, error %v; want an error alone", samples, err)
	}
	m.remove(filepath.Join(m.Root, "class"))
	m.Write("class -> class\n") // a loop
	if samples, err := m.source.Sample(t.Context()); len(samples) > 0 || !errors.Is(err, syscall.ELOOP) {
		t.Errorf("samples %v, error %v; want an error alone", samples, err)
	}
}

func TestTooManyInterfaces(t *testing.T) {
	folder := t.TempDir()
	root := must.Get(os.Open(folder))(t)
	defer func() { _ = root.Close() }()
	add := func(name string) {
		must.Do(t, os.Symlink("nowhere", filepath.Join(folder, name)))
	}
	for n := range maxInterfaces {
		add(fmt.Sprintf("veth%d", n))
	}
	add(loopback)
	if names, err := list(root); len(names) != maxInterfaces || err != nil {
		t.Errorf("%d names, error %v; want %d", len(names), err, maxInterfaces)
	}
	add("veth")
	must.Get(root.Seek(0, io.SeekStart))(t)
	if names, err := list(root); len(names) != maxInterfaces || err == nil {
		t.Errorf("%d names, error %v; want %d and an error", len(names), err, maxInterfaces)
	}
}

// TestThisMachine reads the network interfaces that are really there.
func TestThisMachine(t *testing.T) {
	source := New(driver.Host{Sysfs: "/sys"})
	before, err := source.Sample(t.Context())
	must.Do(t, err)
	after, err := source.Sample(t.Context())
	must.Do(t, err)
	expect.OK(t, errors.Join(drivertest.Validate(after, time.Now()), drivertest.Follows(before, after)))
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	named := byName(after)
	for _, e := range entries {
		s, ok := named[e.Name()]
		if isInterface := e.Type()&fs.ModeSymlink != 0 &&
			e.Name() != loopback; ok != isInterface || ok && len(s.Readings) < numCounters {
			t.Errorf("%s: sample %v, with %d readings", e.Name(), ok, len(s.Readings))
		}
	}
}

func TestParseSpeed(t *testing.T) {
	for _, tc := range []struct {
		line string
		want float64
		err  error
	}{
		{"1000", 125e6, nil},
		{"800000", 100e9, nil},
		{"-1", 0, nil},         // unknown, in today's kernels
		{"4294967295", 0, nil}, // unknown, in earlier ones
		{"2147483647", 0, nil},
		{"0", 0, nil},
		{"", 0, strconv.ErrSyntax},
		{"1e3", 0, strconv.ErrSyntax},
		{"9223372036854775808", 0, strconv.ErrRange},
	} {
		if got, err := parseSpeed([]byte(tc.line)); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("parseSpeed(%q) = %v, %v; want %v, %v", tc.line, got, err, tc.want, tc.err)
		}
	}
}

func TestIsRepresentor(t *testing.T) {
	for name, want := range map[string]bool{
		"p0": false, "p0s1": false, "c1p0": false, "": false, "c": false, "port": false,
		"pf0": true, "pf0vf3": true, "pf1sf88": true, "c1pf0vf3": true, "c12pf0": true,
	} {
		expect.Is(t, isRepresentor(name), want, "isRepresentor(%q)", name)
	}
}

func FuzzParse(f *testing.F) {
	tree := must.Get(os.ReadFile("testdata/server.tree"))(f)
	for line := range strings.Lines(string(tree)) {
		if _, content, ok := strings.Cut(line, ": "); ok {
			f.Add([]byte(content))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		value := bytes.TrimSpace(content)
		if isRepresentor(string(value)) && !bytes.Contains(value, []byte("pf")) {
			t.Errorf("isRepresentor(%q)", value)
		}
		if speed, err := parseSpeed(value); speed < 0 || speed > math.MaxInt32*125e3 || err != nil && speed != 0 {
			t.Errorf("parseSpeed(%q) = %v, %v", value, speed, err)
		}
	})
}
