package intelgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The devices of testdata/server.tree.
const (
	battlemage = "0000:03:00.0" // xe, GTs for rendering and media
	function1  = "0000:03:00.1" // its virtual functions: one with a card,
	function2  = "0000:03:00.2" // one without
	twoTiles   = "0000:4d:00.0" // xe
	arc        = "0000:0b:00.0" // i915
	gaudi      = "0000:9a:00.0"
	npu        = "0000:00:0b.0"

	battlemageFolder = "devices/pci0000:00/" + battlemage + "/"
	twoTilesFolder   = "devices/pci0000:4c/" + twoTiles + "/"
	arcFolder        = "devices/pci0000:0a/" + arc + "/"
	arcGT            = arcFolder + "drm/card3/gt/gt0/"
	gaudiFolder      = "devices/pci0000:99/" + gaudi + "/"
	npuFolder        = "devices/pci0000:00/" + npu + "/"
)

// machine is a source over a tree of its own, and its clock.
type machine struct {
	*drivertest.Machine
	source *Source
}

func newMachine(tb testing.TB, trees ...string) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb, trees...)}
	m.restart()
	return m
}

// restart makes a new source.
func (m *machine) restart() {
	m.source = New(m.Root)
	m.source.now = m.Now
}

// server is the tree of a server with devices of all kinds.
func server(tb testing.TB) string {
	return drivertest.TestData(tb, "server.tree")
}

// later advances the time and the server's counters: GPUs are idle for a quarter of it, the media
// GT for all of it, each energy file rises by 100 J a second, and the NPU is busy for 40 %.
func (m *machine) later(d time.Duration) {
	m.Clock = m.Clock.Add(d)
	for path, perSecond := range map[string]uint64{
		battlemageFolder + "tile0/gt0/gtidle/idle_residency_ms": 250,
		battlemageFolder + "tile0/gt1/gtidle/idle_residency_ms": 1000,
		battlemageFolder + "hwmon/hwmon3/energy2_input":         100_000_000,
		twoTilesFolder + "tile0/gt0/gtidle/idle_residency_ms":   250,
		twoTilesFolder + "tile1/gt1/gtidle/idle_residency_ms":   500,
		twoTilesFolder + "hwmon/hwmon4/energy1_input":           100_000_000,
		twoTilesFolder + "hwmon/hwmon4/energy2_input":           80_000_000,
		arcFolder + "hwmon/hwmon6/energy1_input":                100_000_000,
		arcGT + "rc6_residency_ms":                              250,
		npuFolder + "npu_busy_time_us":                          400_000,
	} {
		content, err := os.ReadFile(filepath.Join(m.Root, path))
		if err != nil {
			continue // removed by the test
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64); err == nil { // else broken by the test
			m.Write(fmt.Sprintf("%s: %d\n", path, n+perSecond*uint64(d)/uint64(time.Second)))
		}
	}
}

// sample returns the samples by PCI address.
func (m *machine) sample() map[string]driver.Sample {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	named := map[string]driver.Sample{}
	for _, s := range samples {
		named[s.Hardware.PCI] = s
	}
	return named
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "README.md", "proof", Fills()) }

var approximately = cmpopts.EquateApprox(0, 1e-9)

func TestHardware(t *testing.T) {
	hardware := map[string]driver.Hardware{}
	for address, s := range newMachine(t, server(t)).sample() {
		hardware[address] = s.Hardware
	}
	nodes := func(n int) []string {
		return []string{fmt.Sprintf("/dev/dri/card%d", n), fmt.Sprintf("/dev/dri/renderD%d", 128+n)}
	}
	want := map[string]driver.Hardware{
		battlemage: {PCI: battlemage, Vendor: "intel", NUMANode: "0", DeviceNodes: nodes(0)},
		function1: {
			PCI: function1, Vendor: "intel", NUMANode: "0", DeviceNodes: nodes(1), Kind: driver.KindPartition,
			Parent: battlemage,
		},
		function2: {PCI: function2, Vendor: "intel", NUMANode: "0", Kind: driver.KindPartition, Parent: battlemage},
		twoTiles:  {PCI: twoTiles, Vendor: "intel", NUMANode: "1", DeviceNodes: nodes(2)},
		arc:       {PCI: arc, Vendor: "intel", DeviceNodes: nodes(3)},
		gaudi:     {PCI: gaudi, Vendor: "intel", NUMANode: "1", DeviceNodes: []string{"/dev/accel/accel0"}, Model: "GAUDI2"},
		npu:       {PCI: npu, Vendor: "intel", DeviceNodes: []string{"/dev/accel/accel1"}},
	}
	expect.Equal(t, "hardware", want, hardware)
}

// wholeServer has the server's readings after a second.
func wholeServer() map[string]map[string]float64 {
	return map[string]map[string]float64{
		battlemage: { // the media GT is idle; of the card, whose energy stands at 0, only the package's is counted
			"utilization": 0.75, "engine_utilization render": 0.75, "engine_utilization video": 0,
			"clock graphics": 2400e6, "clock video": 1100e6, "clock_max graphics": 2900e6, "clock_max video": 2900e6,
			"memory_capacity": 12 << 30,
			"energy":          7100, "power": 100, "power_limit enforced": 190, "power_limit default": 200,
			"temperature gpu": 61, "temperature memory": 72, "fan_rotation fan1": 1200, "fan_rotation fan2": 1300,
			"voltage gpu": 0.655, "throttle_active power": 1, "throttle_active thermal": 0, "throttle_active hw_thermal": 0,
			"throttle_active other": 0,
		},
		function1: {}, function2: {},
		twoTiles: {
			"utilization": 0.75, "engine_utilization render": 0.75, "clock graphics": 1600e6, "clock_max graphics": 2900e6,
			"memory_capacity": 128 << 30,
			"energy":          90_100, "power": 100, "power_limit enforced": 600,
			"throttle_active power": 0, "throttle_active thermal": 0, "throttle_active hw_thermal": 0,
			"throttle_active other": 0,
		},
		arc: {
			"utilization": 0.75, "engine_utilization render": 0.75, "clock graphics": 2000e6, "clock_max graphics": 2050e6,
			"memory_capacity": 16 << 30,
			"energy":          40_100, "power": 100, "power_limit enforced": 120, "temperature gpu": 83,
			"fan_rotation fan1": 1500,
			"voltage gpu":       0.7, "throttle_active power": 0, "throttle_active thermal": 1, "throttle_active hw_thermal": 0,
			"throttle_active other": 1,
		},
		gaudi: {
			"clock graphics": 1650e6, "power": 245, "power_limit enforced": 600, "temperature on-board": 41,
			"temperature on-die": 56, "needs_attention none ok": 1,
		},
		npu: {"utilization": 0.4, "active_seconds": 5.4, "memory_used": 256 << 20, "clock npu": 1850e6},
	}
}

func TestValues(t *testing.T) {
	m := newMachine(t, server(t))
	first := m.sample()
	for _, address := range []string{battlemage, twoTiles, arc, npu} {
		got := drivertest.Values(first[address])
		_, isBusy := got["utilization"]
		_, hasPower := got["power"]
		expect.That(t, !isBusy && !hasPower, "%s has a rate after one sample: %v", address, got)
	}
	m.later(time.Second)
	second := m.sample()
	for address, want := range wholeServer() {
		expect.Equal(t, address, want, drivertest.Values(second[address]), approximately)
	}
	expect.That(t, len(second) == len(wholeServer()), "%d samples", len(second))
}
