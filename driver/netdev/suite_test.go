package netdev

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
