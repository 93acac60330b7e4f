package netdev

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestSuite(t *testing.T) {
	const card = `
devices/virtual/net/veth1/device -> ../../../0000:3b:00.0
devices/0000:3b:00.0/subsystem -> ../../bus/pci
devices/virtual/net/veth1/speed: 1000
devices/virtual/net/veth1/operstate: up
devices/virtual/net/veth1/carrier_down_count: 1
devices/0000:3b:00.0/hwmon/hwmon0/temp1_input: 40000
`
	all := counterFiles()
	isFile := func(name, file string) func(driver.Sample, driver.Reading) bool {
		return func(s driver.Sample, r driver.Reading) bool {
			return s.Hardware.NetDev == name && (file == "" || r.Quantity == driver.NetworkErrors && r.Labels[0] == "receive")
		}
	}
	fault := func(name string, breakIt func(*machine), hits func(driver.Sample, driver.Reading) bool,
		silent bool,
	) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{Name: name, Hits: hits, Silent: silent, Break: breakIt}
	}
	const errorsFile = "statistics/rx_errors"
	content := func(text string) func(*machine) {
		return func(m *machine) {
			must.Do(m, os.WriteFile(m.path("veth0", errorsFile), []byte(text), 0o644))
		}
	}
	drivertest.Files[*machine]{
		Fills: Fills(),
		New: func(tb testing.TB) *machine {
			m := newMachine(tb)
			m.Write(veths(2, all[:]) + card)
			return m
		},
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.later(); advance(m) },
		Faults: []drivertest.FileFault[*machine]{
			fault("file missing", func(m *machine) { m.remove(m.path("veth0", errorsFile)) }, isFile("veth0", errorsFile), true),
			fault("interface missing", func(m *machine) { m.remove(m.path("veth0", "")) }, isFile("veth0", ""), true),
			fault("garbage", content("many\n"), isFile("veth0", errorsFile), false),
			fault("empty", content(""), isFile("veth0", errorsFile), false),
			fault("negative", content("-1\n"), isFile("veth0", errorsFile), false),
			fault("too long", content(strings.Repeat(" ", 64)+"1"), isFile("veth0", errorsFile), false),
			fault("too high", content("18446744073709551616\n"), isFile("veth0", errorsFile), false),
			// The kernel answers so while it takes an interface away, and of the loopback's speed
			// always.
			fault("interface goes", func(m *machine) {
				m.remove(m.path("veth0", "ifindex"))
				must.Do(m, os.Symlink("/sys/class/net/lo/speed", m.path("veth0", "ifindex")))
			}, isFile("veth0", ""), true),
			fault("pipe", func(m *machine) {
				m.remove(m.path("veth0", errorsFile))
				must.Do(m, syscall.Mkfifo(m.path("veth0", errorsFile), 0o644))
			}, isFile("veth0", errorsFile), false),
		},
	}.Run(t)
}

// advance raises the counters of all interfaces.
func advance(m *machine) {
	for name := range m.source.known {
		for n, f := range counterFiles() {
			text, _ := os.ReadFile(m.path(name, f.path)) // a fault may have removed it
			raw, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
			m.set(name, f.path, raw+uint64(1500*(n+1)))
		}
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "netdev", Fills()) }

// BenchmarkSample reads interfaces without hardware, such as pods' veths, of a tree on disk. A
// sysfs costs more: the kernel sums the counters of all CPUs at each file.
func BenchmarkSample(b *testing.B) {
	for _, interfaces := range []int{16, 512, maxInterfaces} {
		b.Run(strconv.Itoa(interfaces), func(b *testing.B) {
			m := newMachine(b)
			files := counterFiles()
			m.Write(veths(interfaces, files[:]))
			benchmark(b, m.source, interfaces)
		})
	}
}

// BenchmarkSampleOfThisMachine reads the real sysfs.
func BenchmarkSampleOfThisMachine(b *testing.B) { benchmark(b, New(driver.Host{Sysfs: "/sys"}), 0) }

func benchmark(b *testing.B, source *Source, want int) {
	b.Helper()
	now := time.Now()
	source.now = func() time.Time { // a second a sample: facts are read when they are due
		now = now.Add(time.Second / time.Duration(max(want, 1)))
		return now
	}
	b.ReportAllocs()
	for b.Loop() {
		samples, err := source.Sample(b.Context())
		if err != nil || len(samples) < want {
			b.Fatal(len(samples), err)
		}
	}
}

// veths is a tree of interfaces without hardware, named veth0 and so on, that have these counters.
func veths(n int, files []counterFile) string {
	var tree strings.Builder
	for i := range n {
		folder := fmt.Sprintf("devices/virtual/net/veth%d", i)
		fmt.Fprintf(&tree, "class/net/veth%d -> ../../%s\n%s/ifindex: %d\n", i, folder, folder, i+2)
		for n, f := range files {
			fmt.Fprintf(&tree, "%s/%s: %d\n", folder, f.path, i*n*123456)
		}
	}
	return tree.String()
}
