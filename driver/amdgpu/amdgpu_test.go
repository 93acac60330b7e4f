package amdgpu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu/amdgputest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// The folders of the GPUs of server.tree.
const (
	whole       = "devices/pci0000:0a/0000:0a:01.0/0000:0c:00.0/"
	divided     = "devices/pci0000:20/0000:22:00.0/"
	workstation = "devices/pci0000:40/0000:41:00.0/"

	kfdProcesses = "class/kfd/kfd/proc/"
)

// machine is a source over a tree of its own, and its clock.
type machine struct {
	*drivertest.Machine
	begun  time.Time
	source *Source
}

func newMachine(tb testing.TB, trees ...string) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb, trees...)}
	m.begun = m.Clock
	m.renew()
	return m
}

// renew makes a source that knows nothing.
func (m *machine) renew() {
	m.source = New(m.Root)
	m.source.now, m.source.callTimeout = m.Now, time.Minute // files do not block, but the machine may stand still
}

// server returns a machine with server.tree and all that its form can't hold.
func server(tb testing.TB) *machine {
	m := newMachine(tb, drivertest.TestData(tb, "server.tree"))
	for file, content := range map[string]string{
		workstation + "pp_dpm_sclk": "0: 500Mhz *\n1: 2500Mhz\n",
		workstation + "pp_dpm_mclk": "0: 96Mhz *\n1: 456Mhz\n2: 1000Mhz\n",
		whole + "pp_dpm_socclk":     "0: 500Mhz\n1: 800Mhz *\n2: 1143Mhz\n",
		whole + "pp_dpm_fclk":       "0: 1200Mhz\n1: 1900Mhz *\n",
		whole + "ras/umc_err_count": "ue: 2\nce: 11\nde: 5\n",
		whole + "ras/gfx_err_count": "ue: 4\nce: 0\n",
	} {
		m.file(file, content)
	}
	const nodes = "class/kfd/kfd/topology/nodes/"
	for node, properties := range map[string]string{
		"1": "simd_count 1216\nsimd_per_cu 4\nlocation_id 3072\ndomain 0\ndrm_render_minor 128\n" +
			"num_sdma_engines 2\nnum_sdma_xgmi_engines 2\n",
		"2": "simd_count 608\nsimd_per_cu 4\nlocation_id 8704\ndomain 0\ndrm_render_minor 129\n",
		"3": "simd_count 608\nsimd_per_cu 4\nlocation_id 268444160\ndomain 0\ndrm_render_minor 130\n" +
			"num_sdma_engines 2\n",
	} {
		m.file(nodes+node+"/properties", properties)
		m.file(nodes+node+"/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 103079215104\nflags 0\n")
	}
	m.later(0)
	return m
}

func (m *machine) file(name, content string) {
	path := filepath.Join(m.Root, name)
	must.Do(m, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(m, os.WriteFile(path, []byte(content), 0o600))
}

// has reports whether a file is there.
func (m *machine) has(name string) bool {
	_, err := os.Stat(filepath.Join(m.Root, name))
	return err == nil
}

// later lets time pass, in which the GPUs draw 500, 300 and 200 W, and of their copy engines 0.8 of
// four and 1 of two are busy for processes.
func (m *machine) later(d time.Duration) {
	m.Clock = m.Clock.Add(d)
	seconds := m.Clock.Sub(m.begun).Seconds()
	table := func(gpu string, format, content uint8, values map[string][]uint64) {
		if d > 0 && !m.has(gpu+"gpu_metrics") {
			return // removed by the test
		}
		m.file(gpu+"gpu_metrics", string(table(m, format, content, values)))
	}
	for file, perSecond := range map[string]float64{ // microseconds
		"4001/sdma_1001": 500_000, "4002/sdma_1001": 300_000, "4003/sdma_2002": 1_000_000,
	} {
		if file = kfdProcesses + file; d > 0 && m.has(file) {
			m.file(file, fmt.Sprintf("%.0f\n", 1e6+perSecond*seconds))
		}
	}
	const fine = 1 << 16 // of the unit of energy in a joule
	cycles := uint64(1e6 + 1000*seconds)
	table(whole, 1, 6, map[string][]uint64{
		"energy_accumulator": {uint64(1e9 + 500*fine*seconds)}, "accumulation_counter": {cycles},
		"prochot_residency_acc": {0}, "ppt_residency_acc": {uint64(250 * seconds)}, "socket_thm_residency_acc": {7},
		"average_gfx_activity": {1}, "curr_socket_power": {500}, "xgmi_read_data_acc": {1000, 24},
		"xgmi_write_data_acc": {uint64(seconds), 5},
		"0/vcn_busy":          {10, 30}, "0/jpeg_busy": {4}, "pcie_replay_count_acc": {9}, "temperature_hotspot": {99},
	})
	table(divided, 1, 9, map[string][]uint64{
		"energy_accumulator": {uint64(300 * fine * seconds)}, "accumulation_counter": {cycles},
		"hbm_thm_residency_acc": {uint64(1000 * seconds)}, "gfx_busy_inst": {20, 30, 20, 30, 80, 90, math.MaxUint32, 70},
		"temperature_mem": {41}, "average_gfx_activity": {33}, "pcie_replay_count_acc": {2},
	})
	table(workstation, 1, 3, map[string][]uint64{
		"energy_accumulator": {uint64(200 * 1000 * seconds)}, "average_gfx_activity": {24}, "average_umc_activity": {8},
		"average_mm_activity": {50}, "indep_throttle_status": {1<<0 | 1<<36}, "temperature_edge": {38},
		"temperature_hotspot": {49}, "average_socket_power": {1},
	})
}

// sample returns the samples by their GPU's address and the partition's number.
func (m *machine) sample() map[string]driver.Sample {
	named := must.Get(m.try())(m)
	return named
}

func (m *machine) try() (map[string]driver.Sample, error) {
	samples, err := m.source.Sample(m.Context())
	named := map[string]driver.Sample{}
	for _, s := range samples {
		named[strings.TrimSpace(s.Hardware.PCI+s.Hardware.Parent+" "+s.Hardware.Instance)] = s
	}
	return named, err
}

// values returns the readings' values, by quantity and labels, and those of processes by their PID
// as well.
func values(s driver.Sample) map[string]float64 {
	named := drivertest.Values(s)
	for _, p := range s.Processes {
		for name, value := range drivertest.Values(driver.Sample{Readings: p.Readings}) {
			named[string(rune('0'+p.PID%10))+": "+name] = value
		}
	}
	return named
}

func TestHardware(t *testing.T) {
	m := server(t)
	hardware := map[string]driver.Hardware{}
	for name, s := range m.sample() {
		hardware[name] = s.Hardware
	}
	part := func(instance, numa string, devices ...string) driver.Hardware {
		return driver.Hardware{
			Kind: driver.KindPartition, Parent: "0000:22:00.0", Instance: instance, ParentShare: 0.5, Vendor: "amd",
			Profile: "DPX", Serial: "5a00fedcba987654", NUMANode: numa, DeviceNodes: devices,
		}
	}
	want := map[string]driver.Hardware{
		"0000:0c:00.0": {
			PCI: "0000:0c:00.0", Vendor: "amd", Model: "Accelerator 300", Serial: "692100200300",
			FirmwareVersion: "113-M3000100-100", NUMANode: "1",
			DeviceNodes: []string{"/dev/dri/card1", "/dev/dri/renderD128"},
		},
		"0000:22:00.0": {
			PCI: "0000:22:00.0", Vendor: "amd", Serial: "5a00fedcba987654", NUMANode: "0",
		},
		"0000:22:00.0 0": part("0", "0", "/dev/dri/card2", "/dev/dri/renderD129"),
		"0000:22:00.0 1": part("1", "0", "/dev/dri/card3", "/dev/dri/renderD130"),
		"0000:41:00.0": {
			PCI: "0000:41:00.0", Vendor: "amd",
			DeviceNodes: []string{"/dev/dri/card5", "/dev/dri/renderD131"},
		},
	}
	expect.Equal(t, "hardware", want, hardware)
}

// after returns the samples of a server after two minutes.
func after(m *machine) map[string]driver.Sample {
	for range 12 { // a sample of each file
		m.sample()
		m.later(slowEvery)
	}
	return m.sample()
}

func TestReadings(t *testing.T) {
	got := after(server(t))
	for name, want := range map[string]map[string]float64{
		"0000:0c:00.0": {
			"utilization": 0.75, "engine_utilization dram": 0.4, "engine_utilization video": 0.2,
			"engine_utilization jpeg": 0.04, "engine_utilization copy": 0.2,
			"memory_used": 48 << 30, "memory_capacity": 192 << 30,
			"host_memory_used": 1 << 20, "host_memory_capacity": 126 << 30, "power": 500,
			"energy": 1e9/65536 + 500*120, "temperature junction": 55, "temperature memory": 47,
			"clock graphics": 2.1e9, "clock memory": 1.3e9, "clock soc": 800e6, "clock fabric": 1.9e9, "clock video": 300e6,
			"voltage graphics":          0.912,
			"throttled_seconds prochot": 0, "throttled_seconds power": 30, "throttled_seconds thermal": 0,
			"io_bytes xgmi receive": 1 << 20, "io_bytes xgmi transmit": 125 * 1024,
			"power_limit enforced": 750, "power_limit default": 760, "power_limit min": 0, "power_limit max": 770,
			"link_width pcie": 8, "link_width_max pcie": 16, "link_generation pcie": 4, "link_generation_max pcie": 5,
			"errors ecc_uncorrected umc": 2, "errors ecc_corrected umc": 11, "errors ras umc_deferred": 5,
			"errors ecc_uncorrected gfx": 4, "errors ecc_corrected gfx": 0, "errors pcie_replay": 3,
			"errors pcie_aer correctable": 6, "errors pcie_aer uncorrectable": 3,
			"1: memory_used": 40e9, "1: utilization": 0.75 * 0.75, "2: memory_used": 10e9, "2: utilization": 0.75 * 0.25,
		},
		"0000:22:00.0": {
			"power": 300, "energy": 300 * 120, "throttled_seconds thermal_memory": 120, "temperature memory": 41,
			"errors pcie_replay": 2,
		},
		"0000:22:00.0 0": {"utilization": 0.25, "memory_capacity": 96 << 30, "memory_used": 0},
		"0000:22:00.0 1": {
			"utilization": 0.8, "engine_utilization copy": 0.5, "memory_capacity": 96 << 30, "memory_used": 5e9,
			"3: memory_used": 5e9, "3: utilization": 0.8,
		},
		"0000:41:00.0": {
			"utilization": 0.24, "engine_utilization dram": 0.08, "engine_utilization video": 0.12, "power": 200,
			"temperature edge": 38, "temperature junction": 49, "clock graphics": 500e6,
			"fan_rotation fan1":  1240,
			"clock_max graphics": 2500e6, "clock_max memory": 1000e6,
			"clock memory": 96e6, "fan_speed": 0.4, "throttle_active power": 1, "throttle_active current": 0,
			"throttle_active thermal": 0,
			"throttle_active prochot": 0, "throttle_active other": 0,
		},
	} {
		equal := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) })
		expect.Equal(t, name, want, values(got[name]), equal)
	}
}

// BenchmarkSample reads 8 GPUs in 64 partitions with 64 processes, of a tree on disk, a second a
// sample; and a machine without AMD GPUs.
func BenchmarkSample(b *testing.B) {
	b.Run("64", func(b *testing.B) {
		m := newMachine(b)
		amdgputest.WriteCluster(b, m.Root, 8, 8, 64)
		benchmark(b, m, 8+64)
	})
	b.Run("none", func(b *testing.B) { benchmark(b, newMachine(b), 0) })
}

func benchmark(b *testing.B, m *machine, samples int) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		m.Clock = m.Clock.Add(time.Second)
		got, err := m.source.Sample(b.Context())
		if samples == 0 && errors.Is(err, driver.ErrAbsent) {
			err = nil
		}
		if err != nil || len(got) != samples {
			b.Fatal(len(got), err)
		}
	}
}
