package amdgpu

import (
	"maps"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// card is one graphics card at the PCI address 0000:03:00.0.
const card = `
class/drm/card0 -> ../../devices/pci0000:00/0000:03:00.0/drm/card0
devices/pci0000:00/0000:03:00.0/drm/card0/device -> ../../../0000:03:00.0
devices/pci0000:00/0000:03:00.0/drm/renderD128/device -> ../../../0000:03:00.0
devices/pci0000:00/0000:03:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:03:00.0/vendor: 0x1002
`

// cardWith returns the readings of a card with these files, and a table.
func cardWith(
	t *testing.T, files map[string]string, format, content uint8, values map[string][]uint64,
) map[string]float64 {
	m := newMachine(t, card)
	const folder = "devices/pci0000:00/0000:03:00.0/"
	for file, text := range files {
		m.file(folder+file, text+"\n")
	}
	m.file(folder+"gpu_metrics", string(table(t, format, content, values)))
	return read(m)
}

func read(m *machine) map[string]float64 {
	return values(m.sample()["0000:03:00.0"])
}

// Thermal throttling of a card, by the bit that RDNA 3 sets almost always, and by another.
func TestThermalThrottling(t *testing.T) {
	const hotspot, memory, power = 1 << 36, 1 << 34, 1 << 0
	for name, tc := range map[string]struct {
		busy, junction, limit string
		status                uint64
		want                  float64
	}{
		"at rest (RX 7600S)":       {"0", "54000", "100000", hotspot | memory, 0},
		"at work":                  {"90", "54000", "100000", hotspot, 0},
		"at its limit":             {"90", "96000", "100000", hotspot, 1},
		"at rest and at its limit": {"0", "99000", "100000", hotspot, 0},
		"hot memory":               {"90", "54000", "100000", hotspot | memory, 1},
		"nothing":                  {"90", "99000", "100000", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				"gpu_busy_percent": tc.busy, "hwmon/hwmon1/temp2_input": tc.junction, "hwmon/hwmon1/temp2_crit": tc.limit,
			}
			got := cardWith(t, files, 1, 3, map[string][]uint64{"indep_throttle_status": {tc.status | power}})
			expect.That(t, got["throttle_active thermal"] == tc.want && got["throttle_active power"] == 1,
				"readings %v, want %v for thermal, and 1 for power", got, tc.want)
		})
	}
}

// An APU is charged the power of its GPU, without the processor's. It can use the memory that the
// kernel gives it.
func TestAPU(t *testing.T) {
	memory := map[string]string{
		"mem_info_vram_total": "536870912", "mem_info_vram_used": "514580480",
		"mem_info_gtt_total": "16441004032", "mem_info_gtt_used": "3946811392",
		"gpu_busy_percent": "3", "hwmon/hwmon1/power1_average": "9087000",
	}
	with := func(more map[string]string) map[string]string {
		files := maps.Clone(memory)
		maps.Copy(files, more)
		return files
	}
	for name, tc := range map[string]struct {
		files           map[string]string
		format, content uint8
		table           map[string][]uint64
		power, capacity float64 // 0: none
	}{
		"format 3 (Strix Point)": {
			memory, 3, 0, map[string][]uint64{"apu_socket_power": {9839}, "average_gfx_power": {1536}}, 1.536, 16441004032,
		},
		"format 2 (Phoenix)": {
			memory, 2, 1, map[string][]uint64{"apu_socket_power": {8401}, "average_gfx_power": {585}}, 0.585, 16441004032,
		},
		"watts in format 2": {
			memory, 2, 1, map[string][]uint64{"apu_socket_power": {9}, "average_gfx_power": {5}}, 0, 16441004032,
		},
		"no part (Renoir)": {memory, 2, 2, nil, 0, 16441004032},
		"no table":         {with(map[string]string{"hwmon/hwmon1/in1_label": "vddnb"}), 1, 3, nil, 0, 16441004032},
		"MI300A": {
			with(map[string]string{"device": "0x74a0"}), 1, 6, map[string][]uint64{"curr_socket_power": {300}}, 0, 16441004032,
		},
		"enough of its own": {
			with(map[string]string{"mem_info_vram_total": "68719476736"}), 3, 0,
			map[string][]uint64{"average_gfx_power": {1536}},
			1.536, 68719476736,
		},
		"no APU": {memory, 1, 3, nil, 9.087, 536870912},
	} {
		t.Run(name, func(t *testing.T) {
			got := cardWith(t, tc.files, tc.format, tc.content, tc.table)
			watts, ok := got["power"]
			expect.That(t, watts == tc.power && ok == (tc.power > 0), "power %v, %v; want %v", watts, ok, tc.power)
			used := 514580480.
			if tc.capacity == 16441004032 {
				used += 3946811392
			}
			expect.That(t, got["memory_capacity"] == tc.capacity && got["memory_used"] == used,
				"memory %v of %v, want %v of %v", got["memory_used"], got["memory_capacity"], used, tc.capacity)
		})
	}
}

// KFD's bank is the capacity of an APU, where it may be read.
func TestBank(t *testing.T) {
	m := newMachine(t, card)
	const folder, node = "devices/pci0000:00/0000:03:00.0/", "class/kfd/kfd/topology/nodes/1/"
	for file, text := range map[string]string{
		folder + "mem_info_vram_total": "1000", folder + "mem_info_vram_used": "900",
		folder + "mem_info_gtt_total": "5000", folder + "mem_info_gtt_used": "700",
		folder + "gpu_metrics": string(table(t, 3, 0, nil)),

		node + "gpu_id": "7", node + "properties": "location_id 768\ndomain 0\ndrm_render_minor 128\n",
		node + "mem_banks/0/properties": "heap_type 1\nsize_in_bytes 4000\n",
	} {
		m.file(file, text+"\n")
	}
	if got := read(m); got["memory_capacity"] != 4000 || got["memory_used"] != 1600 {
		t.Errorf("memory %v of %v", got["memory_used"], got["memory_capacity"])
	}
}

// The speed of a fan is its rotation if the setting contradicts that.
func TestFan(t *testing.T) {
	for name, tc := range map[string]struct {
		rpm, most, set  string
		speed, rotation float64
	}{
		"set and turning":             {"868", "3300", "102", 0.4, 868},
		"turning, not set (RX 6600)":  {"1395", "3100", "0", 0.45, 1395},
		"set, not turning (RX 7600S)": {"0", "4900", "76", 0, 0},
		"set, a rest (RX 5700 XT)":    {"29", "3400", "65", 0, 29},
		"not set, a rest (Vega 56)":   {"5", "3500", "0", 0, 5},
	} {
		t.Run(name, func(t *testing.T) {
			const monitor = "hwmon/hwmon1/"
			got := cardWith(t, map[string]string{
				monitor + "fan1_input": tc.rpm, monitor + "fan1_max": tc.most, monitor + "pwm1": tc.set,
				monitor + "pwm1_max": "255",
			}, 1, 3, nil)
			want := map[string]float64{"fan_speed": tc.speed, "fan_rotation fan1": tc.rotation}
			expect.Equal(t, "", want, got)
		})
	}
}

// Of a table is read what files do not have.
func TestTableSensors(t *testing.T) {
	got := cardWith(t, map[string]string{
		"hwmon/hwmon1/temp1_input": "24000", "hwmon/hwmon1/temp1_label": "edge",
		"hwmon/hwmon1/in0_input": "985", "hwmon/hwmon1/in0_label": "vddgfx", "pp_dpm_socclk": "0: 300Mhz *",
	}, 1, 3, map[string][]uint64{
		"temperature_edge": {99}, "temperature_hotspot": {99}, "temperature_vrgfx": {34}, "temperature_vrsoc": {32},
		"temperature_vrmem": {33}, "voltage_gfx": {1}, "voltage_soc": {768}, "voltage_mem": {704},
		"current_clocks": {2011, 750, 456, 25, 26, 27, 0},
	})
	want := map[string]float64{
		"temperature edge": 24, "temperature vrgfx": 34, "temperature vrsoc": 32, "temperature vrmem": 33,
		"voltage graphics": 0.985, "voltage soc": 0.768, "voltage memory": 0.704,
		"clock soc": 300e6, "clock video": 25e6, "clock decoder": 26e6, "clock video1": 27e6,
	}
	expect.Equal(t, "of a card", want, got)
	got = cardWith(t, map[string]string{"hwmon/hwmon1/temp1_input": "38000", "hwmon/hwmon1/temp1_label": "edge"}, 3, 0,
		map[string][]uint64{"apu_temperature_gfx": {3812}, "apu_temperature_soc": {4062}, "apu_temperature_skin": {3598}})
	want = map[string]float64{"temperature edge": 38, "temperature soc": 40.62, "temperature skin": 35.98}
	expect.Equal(t, "of an APU", want, got)
}

// An APU without a value of its GPU's power says why it has none.
func TestPackagePowerIsAbsent(t *testing.T) {
	for name, c := range map[string]struct {
		table map[string][]uint64
		want  []driver.Absence
	}{
		"of the package alone": {nil, []driver.Absence{
			{Quantity: driver.Power, Why: driver.AbsentPackage}, {Quantity: driver.Energy, Why: driver.AbsentPackage},
		}},
		"of the GPU": {map[string][]uint64{"average_gfx_power": {585}}, nil},
	} {
		m := newMachine(t, card)
		m.file("devices/pci0000:00/0000:03:00.0/gpu_metrics", string(table(t, 2, 1, c.table)))
		if got := m.sample()["0000:03:00.0"].Absent; !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
