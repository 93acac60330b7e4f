package scrape

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// readings are values by quantity and labels, such as errors/ecc_corrected/mem.
type readings map[string]float64

// The readings of devices of ResourceSlices through each preset: the values of the exposition, in
// the units of the catalogue. testdata/README.md has the origin of slices and expositions.
func TestDevices(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for preset, want := range map[string]map[string]readings{
		"gaudi-metric-exporter": {
			"0000-b3-00-0-0x1020": {
				"utilization": 37 * 0.01, "memory_used": 32 * gib, "memory_capacity": 96 * gib,
				"power": 412.5, "power_limit/default": 600, "energy": 81234.567,
				"temperature/chip": 52, "temperature/board": 44, "clock/soc": 1650e6, "link_width/pcie": 16,
				"errors/pcie_replay": 3, "needs_attention/reset/row_remap_pending": 0,
				"link_up/network/1": 1, "link_up/network/2": 0,
			},
			"0000-b4-00-0-0x1020": {
				"utilization": 0, "memory_used": 768 * mib, "memory_capacity": 96 * gib,
				"power": 96, "power_limit/default": 600, "energy": 9,
				"temperature/chip": 31, "temperature/board": 28, "clock/soc": 300e6, "link_width/pcie": 8,
				"errors/pcie_replay": 0, "needs_attention/reset/row_remap_pending": 1,
			},
		},
		"neuron-monitor": { // cores 0 and 1 are of device 0, 2 and 3 of device 1
			"neuron-device-0": {
				"utilization": 0.75, "memory_used": 1000 + 2000 + 100 + 200 + 10 + 20 + 1 + 2 + 4096 + 8192,
				"errors/ecc_corrected/mem": 2, "errors/ecc_uncorrected/mem": 0,
				"errors/ecc_corrected/sram": 1, "errors/ecc_uncorrected/sram": 0,
			},
			"neuron-device-1": {
				"utilization": 0.125, "memory_used": 64 + 5,
				"errors/ecc_corrected/mem": 0, "errors/ecc_uncorrected/mem": 0,
				"errors/ecc_corrected/sram": 0, "errors/ecc_uncorrected/sram": 4,
			},
		},
		"gke-tpu-device-plugin": {
			"0": {
				"utilization": 0.87, "engine_utilization/tensor": 0.425, "engine_utilization/dram": 0.61,
				"memory_used": 16 * gib, "memory_capacity": 33550237696,
			},
			"1": {
				"utilization": 0, "engine_utilization/tensor": 0, "engine_utilization/dram": 0,
				"memory_used": mib, "memory_capacity": 33550237696,
			},
		},
		"ascend-npu-exporter": {
			"npu-0-0": {
				"utilization": 0.64, "engine_utilization/compute": 0.58, "engine_utilization/tensor": 0.31,
				"engine_utilization/dram": 0.27, "memory_used": 32 * gib, "memory_capacity": 64 * gib, "power": 289.5,
				"temperature/npu": 55, "temperature/memory": 51, "clock/aicore": 1800e6,
				"errors/ecc_corrected": 1, "errors/ecc_uncorrected": 0,
				"lifetime_errors/ecc_corrected": 9, "lifetime_errors/ecc_uncorrected": 0,
			},
			"npu-1-0": {
				"utilization": 0, "engine_utilization/compute": 0, "engine_utilization/tensor": 0,
				"engine_utilization/dram": 0.01, "memory_used": 3200 * mib, "memory_capacity": 64 * gib, "power": 92.300003,
				"temperature/npu": 38, "temperature/memory": 37, "clock/aicore": 800e6,
				"errors/ecc_corrected": 0, "errors/ecc_uncorrected": 2,
				"lifetime_errors/ecc_corrected": 0, "lifetime_errors/ecc_uncorrected": 2,
			},
		},
		"furiosa-metrics-exporter": { // cores at 90 % and 12.5 %, 1 000 and 500 MHz
			"npu0": {
				"utilization": 0.9, "memory_used": 20 * gib, "memory_capacity": 48 * gib, "power": 118.5,
				"temperature/peak": 61.5, "temperature/ambient": 37, "clock/core": 1000e6,
			},
			"npu1": {
				"utilization": 0, "memory_used": 0, "memory_capacity": 48 * gib, "power": 38, "temperature/peak": 33,
				"clock/core": 500e6,
			},
		},
		"tenstorrent-telemetry": {
			"tt-0": {
				"power": 86, "temperature/asic": 57.25, "temperature/board": 43.5,
				"clock/ai": 1000e6, "clock/axi": 900e6, "clock/arc": 540e6,
			},
			"tt-1": {
				"power": 11, "temperature/asic": 38, "temperature/board": 37,
				"clock/ai": 500e6, "clock/axi": 900e6, "clock/arc": 540e6,
			},
		},
		"hami-vgpu-monitor": {
			"hami-gpu-0": {
				"utilization": 0.73, "engine_utilization/dram": 0.21, "memory_used": 5 * gib, "memory_capacity": 15 * gib,
				"temperature/gpu": 64, "power": 61.25,
				"lifetime_errors/ecc_corrected": 5, "lifetime_errors/ecc_uncorrected": 1,
			},
			"hami-gpu-1": {
				"utilization": 0, "engine_utilization/dram": 0, "memory_used": 0, "memory_capacity": 15 * gib,
				"temperature/gpu": 35, "power": 9.5,
			},
		},
		"amd-device-metrics-exporter": { // the second GPU, which no slice lists, and its partition 1
			"gpu-0000-26-00-0": {
				"power": 550, "energy": 9, "temperature/junction": 61, "temperature/memory": 58,
				"errors/ecc_corrected": 4, "errors/ecc_uncorrected": 0, "errors/pcie_replay": 0,
			},
			"gpu-1-129": {
				"utilization": 0.42, "engine_utilization/dram": 0.07, "engine_utilization/video": 0.08,
				"memory_used": 183264 * mib, "memory_capacity": 196592 * mib, "power": 748, "energy": 1.4e6,
				"temperature/edge": 70, "temperature/junction": 76, "temperature/memory": 71,
				"errors/ecc_corrected": 2, "errors/ecc_uncorrected": 1, "errors/pcie_replay": 3,
			},
			"gpu-3-131": {"utilization": 0.18, "memory_used": 4 * gib, "memory_capacity": 24574 * mib},
		},
		"node-exporter": {
			"gpu-1-129": {
				"utilization": 0.37, "memory_used": gib, "memory_capacity": 8573157376, "power": 213.5, "voltage/in0": 0.9,
				"temperature/temp1": 46, "temperature/temp2": 53.5, "clock/sclk": 2100e6, "clock/mclk": 1250e6,
				"fan_speed": 102.0 / 255,
			},
			"0000-a3-00-0-0x56c0": {"energy": 123456.5},
		},
	} {
		t.Run(preset, func(t *testing.T) {
			got := devices(t, preset, "")
			if preset == "node-exporter" {
				nics(t, got)
			}
			expect.Equal(t, "", want, got, cmpopts.EquateApprox(1e-12, 0))
		})
	}
}

// nics takes the NICs away: node_exporter has the 41 counters of their RDMA device's port 1, one
// after the other from 1 000 and 2 000; the first two are of traffic.
func nics(t *testing.T, got map[string]readings) {
	eth0, mlx := got["eth0"], got["mlx5-1"]
	delete(got, "eth0")
	delete(got, "mlx5-1")
	for name, want := range map[string]float64{
		"io_bytes/network/receive": 1007, "io_bytes/network/transmit": 2007, "io_bytes/rdma/receive": 1000,
		"io_bytes/rdma/transmit": 1001, "errors/link_down": 1002, "errors/link_down/phy": 2, "temperature/temp1": 68,
		"power": 18.25, "errors/port/symbol_error": 1003,
	} {
		expect.Is(t, eth0[name], want, "%s of eth0", name)
	}
	for name, want := range map[string]float64{
		"io_bytes/rdma/receive": 2000, "io_bytes/rdma/transmit": 2001, "errors/link_down": 2002,
	} {
		expect.Is(t, mlx[name], want, "%s of mlx5-1", name)
	}
	events := slices.DeleteFunc(slices.Collect(maps.Keys(mlx)), func(name string) bool {
		return !strings.HasPrefix(name, "rdma_events/")
	})
	expect.That(t, len(events) == 20, "%d events of mlx5-1: %v", len(events), events)
}

// devices returns the readings of the slices' devices from a preset's exposition, by device.
func devices(t *testing.T, preset, more string) map[string]readings {
	body := must.Get(os.ReadFile(filepath.Join("testdata", preset+".prom")))(t)
	written := must.Get(os.ReadFile("testdata/slices.yaml"))(t)
	devices, rejected, err := inventory.ParseSlices(written, "node1")
	must.That(t, err == nil && len(rejected) == 0, "slices: %v, rejected %v", err, rejected)
	e := presetEndpoint(t, preset, more)
	a, _ := collect(t, e, body)
	result := join.Join(join.Input{
		Inventory: devices,
		Sources:   []join.SourceSamples{{Name: "scrape", Samples: a.samples(a.sorted(), e.Driver, true)}},
	})
	expect.That(t, len(result.Rejected) == 0, "the join rejected %v", result.Rejected)
	got := map[string]readings{}
	for i := range result.Devices {
		d := &result.Devices[i]
		for _, r := range d.Readings {
			if got[d.ID.Device] == nil {
				got[d.ID.Device] = readings{}
			}
			name := strings.TrimRight(fmt.Sprintf("%v/%s", r.Quantity, strings.Join(r.Labels[:], "/")), "/")
			got[d.ID.Device][name] = r.Value
		}
	}
	return got
}

// A uuid that all devices of a pool have identifies none of them, whatever the driver: a scraped
// label with it matches nothing.
func TestSharedUUID(t *testing.T) {
	const uuid = "tpu-0c2f3a5e-1111-2222-3333-444455556666" // of both TPUs in the slices
	written := must.Get(os.ReadFile("testdata/slices.yaml"))(t)
	for _, test := range []struct {
		name, slices string
		want         int // devices with a reading
	}{
		{"of several", string(written), 0},
		{"of one", strings.Replace(string(written), uuid, "tpu-1", 1), 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			devices, _, err := inventory.ParseSlices([]byte(test.slices), "node1")
			must.Do(t, err)
			e := presetEndpoint(t, "gke-tpu-device-plugin", ", match: {label: uuid, hardware: uuid}")
			a, _ := collect(t, e, []byte("duty_cycle_node{uuid=\""+uuid+"\"} 50\n"))
			samples := a.samples(a.sorted(), e.Driver, true)
			must.That(t, len(samples) == 1 && len(samples[0].Readings) == 1, "samples %+v", samples)
			matched := 0
			for _, d := range join.Join(join.Input{
				Inventory: devices, Sources: []join.SourceSamples{{Name: "scrape", Samples: samples}},
			}).Devices {
				matched += len(d.Readings)
			}
			expect.That(t, matched == test.want, "%d devices have the reading, want %d", matched, test.want)
		})
	}
}

// The match of every preset is with devices of the driver that it names.
func TestPresetsHaveSlices(t *testing.T) {
	for _, name := range presetNames() {
		e := presetEndpoint(t, name, "")
		if e.Driver == "" || e.Driver == "gpu.nvidia.com" || name == "xpumd" {
			continue
		}
		expect.That(t, len(devices(t, name, "")) != 0, "preset %s: no device of %s is read", name, e.Driver)
	}
}

// Every preset is in the table of the README and among those that the chart's values name.
func TestPresetsDocumented(t *testing.T) {
	for path, form := range map[string]string{
		"README.md": "| `%s` |", "../../deployments/helm/dra-exporter/values.yaml": " %s",
	} {
		text := must.Get(os.ReadFile(path))(t)
		for _, name := range presetNames() {
			expect.That(t, strings.Contains(string(text), fmt.Sprintf(form, name)), "%s does not name the preset %s", path, name)
		}
	}
}
