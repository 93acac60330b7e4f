package recorded

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// known is our quantity for a metric of a vendor's exporter, and its unit in ours.
type known struct {
	preset, what string
	unit         float64
}

// metricsOfVendors returns the meaning of the metrics in expositions, by the vendors' documents and
// not by the presets. Labels that distinguish readings are in brackets.
func metricsOfVendors() map[string]known {
	const mega, mebi, percent = 1e6, 1 << 20, 0.01
	return map[string]known{
		"DCGM_FI_DEV_SM_CLOCK":                    {"dcgm-exporter", "clock sm", mega},
		"DCGM_FI_DEV_MEM_CLOCK":                   {"dcgm-exporter", "clock memory", mega},
		"DCGM_FI_DEV_MEMORY_TEMP":                 {"dcgm-exporter", "temperature memory", 1},
		"DCGM_FI_DEV_GPU_TEMP":                    {"dcgm-exporter", "temperature gpu", 1},
		"DCGM_FI_DEV_POWER_USAGE":                 {"dcgm-exporter", "power", 1},
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":    {"dcgm-exporter", "energy", 1e-3},
		"DCGM_FI_DEV_PCIE_REPLAY_COUNTER":         {"dcgm-exporter", "errors pcie_replay", 1},
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE":           {"dcgm-exporter", "utilization", 1},
		"DCGM_FI_DEV_ENC_UTIL":                    {"dcgm-exporter", "engine_utilization encoder", percent},
		"DCGM_FI_DEV_DEC_UTIL":                    {"dcgm-exporter", "engine_utilization decoder", percent},
		"DCGM_FI_DEV_FB_USED":                     {"dcgm-exporter", "memory_used", mebi},
		"DCGM_FI_DEV_FB_RESERVED":                 {"dcgm-exporter", "memory_reserved", mebi},
		"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": {"dcgm-exporter", "errors row_remap uncorrectable", 1},
		"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS":   {"dcgm-exporter", "errors row_remap correctable", 1},
		"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE":         {"dcgm-exporter", "engine_utilization tensor", 1},
		"DCGM_FI_PROF_DRAM_ACTIVE":                {"dcgm-exporter", "engine_utilization dram", 1},
		"memory in all":                           {"dcgm-exporter", "memory_capacity", mebi}, // of several metrics

		"gpu_gfx_activity":  {"amd-device-metrics-exporter", "utilization", percent},
		"gpu_used_vram":     {"amd-device-metrics-exporter", "memory_used", mebi},
		"gpu_total_vram":    {"amd-device-metrics-exporter", "memory_capacity", mebi},
		"gpu_package_power": {"amd-device-metrics-exporter", "power", 1},

		"npu_chip_info_hbm_total_memory": {"ascend-npu-exporter", "memory_capacity", mebi},
		"npu_chip_info_hbm_used_memory":  {"ascend-npu-exporter", "memory_used", mebi},
		"npu_chip_info_power":            {"ascend-npu-exporter", "power", 1},
		"npu_chip_info_temperature":      {"ascend-npu-exporter", "temperature npu", 1},

		"furiosa_npu_hw_power":                {"furiosa-metrics-exporter", "power", 1},
		"furiosa_npu_hw_temperature[peak]":    {"furiosa-metrics-exporter", "temperature peak", 1},
		"furiosa_npu_hw_temperature[ambient]": {"furiosa-metrics-exporter", "temperature ambient", 1},
		"furiosa_npu_core_utilization":        {"furiosa-metrics-exporter", "utilization", percent},

		"HostCoreUtilization": {"hami-vgpu-monitor", "utilization", percent},
		"HostGPUMemoryUsage":  {"hami-vgpu-monitor", "memory_used", 1},

		"hardware_ecc_events_total[mem_ecc_corrected]":    {"neuron-monitor", "errors ecc_corrected mem", 1},
		"hardware_ecc_events_total[mem_ecc_uncorrected]":  {"neuron-monitor", "errors ecc_uncorrected mem", 1},
		"hardware_ecc_events_total[sram_ecc_corrected]":   {"neuron-monitor", "errors ecc_corrected sram", 1},
		"hardware_ecc_events_total[sram_ecc_uncorrected]": {"neuron-monitor", "errors ecc_uncorrected sram", 1},
		"neuroncore_utilization_ratio":                    {"neuron-monitor", "utilization", 1},

		"duty_cycle":      {"gke-tpu-device-plugin", "utilization", percent},
		"duty_cycle_node": {"gke-tpu-device-plugin", "utilization", percent},
		"memory_total":    {"gke-tpu-device-plugin", "memory_capacity", 1},

		"hw_memory_size_bytes":            {"xpumd", "memory_capacity", 1},
		"hw_memory_usage_bytes":           {"xpumd", "memory_used", 1},
		"hw_power_watts":                  {"xpumd", "power", 1},
		"hw_frequency_hertz":              {"xpumd", "clock gpu", 1},
		"hw_temperature_celsius[gpu]":     {"xpumd", "temperature gpu", 1},
		"hw_temperature_celsius[memory]":  {"xpumd", "temperature memory", 1},
		"hw_gpu_io_bytes_total[receive]":  {"xpumd", "io_bytes pcie receive", 1},
		"hw_gpu_io_bytes_total[transmit]": {"xpumd", "io_bytes pcie transmit", 1},
	}
}

// expositionReasons explain values of expositions that are not read.
func expositionReasons() []reason {
	zero := func(l line) bool { return l.theirs == 0 }
	return []reason{
		{".*: .* temperature memory", "0 °C: the GPU has no such sensor", zero},
		{".*furiosa.*: .* power", "4.8 MW: out of range, since the unit is not settled", func(l line) bool {
			return l.theirs > 1e4
		}},
		{".*: .*XID_ERRORS", "the number of the last error, and no count", nil},
		{".*: .*(FB_FREE|total_memory|used_memory)", "part of the memory in all, or of a memory that the chip lacks", nil},
		{".*: .*(DEV_GPU_UTIL|MEM_COPY_UTIL)", "a finer metric of the same is there", nil},
		{".*: .*(ROW_REMAP_FAILURE|VGPU_LICENSE_STATUS|PCIE_.X_BYTES)", "a flag, or a rate: no quantity", nil},
		{".*: .*(pcie_bidirectional|npu_alive|chip_info_name|gpu_info|hw_memory_io_bytes).*", "no quantity", nil},
		{
			".*neuron.*: .*(neuroncore|runtime_memory|utilization).*",
			"of cores: neuron_hardware_info, which says whose, is not there", nil,
		},
		{".*: .*vGPU_device_memory_limit.*", "of containers, which name no processes", nil},
	}
}

// TestExpositions compares each recorded exposition with the readings of the source scrape.
func TestExpositions(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(folder(t, "expositions"), "*.prom"))
	must.That(t, err == nil && len(files) != 0, "no expositions: %v", err)
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".prom")
		t.Run(name, func(t *testing.T) {
			text := must.Get(os.ReadFile(path))(t)
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families := must.Get(parser.TextToMetricFamilies(bytes.NewReader(text)))(t)
			theirs, preset := opinionOfExposition(families)
			must.That(t, preset != "", "no preset has metrics of it")
			ours := scraped(t, text, preset, machineOf(t, families))
			check(t, name, theirs, ours, expositionReasons())
		})
	}
}

// opinionOfExposition returns the values of an exposition, by device and reading, and the preset of
// its exporter. An unknown metric keeps its name. Of several series of one reading, the greatest
// counts, as in the presets for cores and pods.
func opinionOfExposition(families map[string]*dto.MetricFamily) (values map[string]float64, preset string) {
	values = map[string]float64{}
	table := metricsOfVendors()
	keep := func(k known, device string, value float64) {
		preset = k.preset
		key := device + " " + k.what
		values[key] = max(values[key], value*k.unit)
	}
	capacity := map[string]map[string]float64{}
	for name, family := range families {
		for _, metric := range family.Metric {
			labels := map[string]string{}
			for _, l := range metric.Label {
				labels[l.GetName()] = l.GetValue()
			}
			value := metric.GetUntyped().GetValue() + metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			device := deviceOf(labels)
			if strings.HasPrefix(name, "DCGM_FI_DEV_FB_") {
				if capacity[device] == nil {
					capacity[device] = map[string]float64{}
				}
				capacity[device][name] = value
			}
			found := false
			for _, try := range []string{name, name + bracket(labels)} {
				if k, ok := table[try]; ok {
					keep(k, device, value)
					found = true
				}
			}
			if !found {
				values[device+" "+name+bracket(labels)] = value
			}
		}
	}
	for device, parts := range capacity {
		sum := parts["DCGM_FI_DEV_FB_USED"] + parts["DCGM_FI_DEV_FB_FREE"] + parts["DCGM_FI_DEV_FB_RESERVED"]
		keep(table["memory in all"], device, sum)
	}
	return values, preset
}

// bracket returns the label of a series that distinguishes readings.
func bracket(labels map[string]string) string {
	for _, name := range []string{"label", "event_type", "hw_sensor_location", "network_io_direction"} {
		if value := labels[name]; value != "" {
			return "[" + value + "]"
		}
	}
	return ""
}

// deviceOf returns the name of a series' device.
func deviceOf(labels map[string]string) string {
	for _, name := range []string{
		"GPU_I_ID", "UUID", "gpu_uuid", "deviceuuid", "pci_bdf", "accelerator_id", "neuron_device_index", "device", "id",
	} {
		if value := labels[name]; value != "" {
			if name == "GPU_I_ID" {
				return labels["UUID"] + "/" + value
			}
			return value
		}
	}
	return "?"
}

// machineOf returns a sysfs with the AMD GPUs of an exposition, by its serial numbers and the
// unique IDs in its UUIDs.
func machineOf(t *testing.T, families map[string]*dto.MetricFamily) string {
	root := t.TempDir()
	seen := map[string]int{}
	for _, family := range families {
		for _, metric := range family.Metric {
			labels := map[string]string{}
			for _, l := range metric.Label {
				labels[l.GetName()] = l.GetValue()
			}
			uuid := labels["gpu_uuid"]
			if _, ok := seen[uuid]; uuid == "" || ok {
				continue
			}
			n := len(seen)
			seen[uuid] = n
			tree := fmt.Sprintf(`class/drm/card%[1]d -> ../../devices/pci0000:00/0000:%02[2]x:00.0/drm/card%[1]d
devices/pci0000:00/0000:%02[2]x:00.0/drm/card%[1]d/device -> ../../../0000:%02[2]x:00.0
devices/pci0000:00/0000:%02[2]x:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:%02[2]x:00.0/unique_id: %[3]s
`, n, n+1, uuid[:2]+uuid[21:23]+uuid[24:])
			if serial := labels["serial_number"]; serial != "" && serial != "N/A" {
				tree += fmt.Sprintf("devices/pci0000:00/0000:%02x:00.0/serial_number: %s\n", n+1, serial)
			}
			drivertest.WriteTree(t, root, tree)
		}
	}
	for uuid, n := range seen {
		drivertest.WriteTree(t, root, fmt.Sprintf("names/0000:%02x:00.0: %s\n", n+1, uuid))
	}
	return root
}

// scraped returns the source's readings of an exposition, by device and reading.
func scraped(t *testing.T, text []byte, preset, sysfs string) map[string]float64 {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(text)
	}))
	defer server.Close()
	config, err := scrape.ParseConfig(
		fmt.Appendf(nil, "endpoints: [{name: recorded, url: %q, preset: %s}]", server.URL, preset), "")
	must.Do(t, err)
	source := must.Get(scrape.New(config.Endpoints[0], sysfs))(t)
	samples, err := source.Sample(t.Context())
	if err != nil {
		t.Logf("the source says: %v", err)
	}
	for i := range samples { // as the join does
		samples[i].Readings = slices.DeleteFunc(samples[i].Readings, func(r driver.Reading) bool {
			spec := r.Quantity.Spec()
			reason := spec.Check(r.Value)
			if reason != "" {
				t.Logf("the join rejects %v of %s: %s", r.Value, spec.Name, reason)
			}
			return reason != ""
		})
	}
	expect.OK(t, drivertest.Validate(samples, time.Now()))
	t.Logf("check says %q, rejected %v", source.Describe(), source.Rejected())
	out := map[string]float64{}
	for _, s := range samples {
		h := s.Hardware
		device := h.UUID + h.PCI + h.Index + s.Device
		if h.Instance != "" {
			device = h.Parent + "/" + h.Instance
		}
		if name, err := os.ReadFile(filepath.Join(sysfs, "names", device)); err == nil && h.PCI != "" {
			device = strings.TrimSpace(string(name))
		}
		device = strings.TrimPrefix(device, "neuron-device-")
		for what, value := range drivertest.Values(s) {
			out[device+" "+what] = value
			out["1234567890123456789-"+device+" "+what] = value // of TPUs
		}
	}
	return out
}
