package dashboards

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recordings returns the folder of recordings of hardware, which are no part of the tree.
func recordings(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("RECORDED")
	if folder == "" {
		t.Skip("RECORDED is not set: no recordings of hardware")
	}
	return folder
}

// node is a node with devices of vendors, as their drivers publish them, and a pod on some.
type node struct {
	*exportertest.History
	name string
}

// newNode returns a node with these devices. Each with a pod is
// held by two containers of it.
func newNode(t *testing.T, name, driverName string, devices map[string]driver.Hardware, pods map[string][]string) node {
	n := node{exportertest.NewHistory(t), name}
	n.In.Inventory, n.In.Sources = driver.Inventory{}, []join.SourceSamples{{Name: "nvml"}}
	for device, h := range devices {
		id := driver.ID{Driver: driverName, Pool: name, Device: device}
		n.In.Inventory[id] = driver.Entry{Hardware: h}
		for _, pod := range pods[device] {
			holder := podresources.Holder{Pod: podresources.Pod{Namespace: "team", Name: pod}, UID: "uid-" + pod}
			a := podresources.Allocation{Device: id, Claim: podresources.Claim{Namespace: "team", Name: pod + "-gpu"}}
			for _, holder.Container = range []string{"main", "sidecar"} {
				a.Holders = append(a.Holders, holder)
			}
			n.In.View.Allocations = append(n.In.View.Allocations, a)
		}
	}
	return n
}

// page returns the exposition of the last tick, with the source's metric of itself, as at a time.
func (n *node) page(t *testing.T, at time.Time) page {
	text := exportertest.Text(t, n.Last) + "dra_exporter_source_up{source=\"nvml\"} 1\n"
	return page{n.name, at, families(t, text)}
}

// recordedH100 returns the pages of a node whose GPU shows what an H100 did while it computed: the
// last is of the given time.
func recordedH100(t *testing.T, until time.Time) []page {
	n, seconds := h100(t)
	var out []page
	for i, second := range seconds {
		n.feed(second)
		n.Tick(time.Second)
		out = append(out, n.page(t, until.Add(time.Duration(i-len(seconds)+1)*time.Second)))
	}
	return out
}

// h100 returns a node with an H100 and the seconds of a recorded workload.
func h100(t *testing.T) (node, []map[string]any) {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(recordings(t), "gpu", "h100-workloads.json")))(t)
	var file struct {
		Device, Driver string
		Segments       []struct {
			Workload string
			Seconds  []map[string]any
		}
	}
	must.Do(t, json.Unmarshal(content, &file))
	for _, s := range file.Segments {
		if s.Workload == "int_hash" {
			return newNode(t, "n2", "gpu.nvidia.com", map[string]driver.Hardware{"gpu-0": {
				UUID: "GPU-0", PCI: "0000:3b:00.0", Vendor: "nvidia", Model: file.Device, DriverVersion: file.Driver,
			}}, map[string][]string{"gpu-0": {"int-hash"}}), s.Seconds
		}
	}
	t.Fatal("the workload is not there")
	return node{}, nil
}

// feed gives the GPU the readings of a recorded second.
func (n *node) feed(second map[string]any) {
	var readings []driver.Reading
	for key, v := range second {
		value, ok := v.(float64)
		if !ok {
			continue
		}
		r := driver.Reading{Value: value, At: n.Now}
		kind, of, _ := strings.Cut(key, "_")
		switch {
		case key == "utilization_ratio":
			r.Quantity = driver.Utilization
		case key == "memory_used_bytes":
			r.Quantity = driver.MemoryUsed
		case key == "power_watts":
			r.Quantity = driver.Power
		case key == "nvml_energy_joules":
			r.Quantity = driver.Energy
		case key == "occupancy_ratio":
			r.Quantity = driver.Occupancy
		case kind == "pcie":
			direction, _, _ := strings.Cut(of, "_")
			r.Quantity, r.Labels = driver.IOBytes, driver.Labels{"pcie", direction}
		case kind == "engine":
			r.Quantity, r.Labels = driver.EngineUtilization, driver.Labels{of}
		case kind == "clock" && strings.HasPrefix(of, "hertz_"):
			r.Quantity, r.Labels = driver.Clock, driver.Labels{strings.TrimPrefix(of, "hertz_")}
		default:
			continue
		}
		readings = append(readings, r)
	}
	n.ReadOf("GPU-0", readings...)
}

// TestCompatH100 compares the series of a recorded H100 with what NVML itself said in the same
// seconds, and with the readings, in dcgm-exporter's units.
func TestCompatH100(t *testing.T) {
	t.Parallel()
	_, seconds := h100(t)
	now := time.Unix(1_700_000_100, 0)
	const window = 6
	e := recordPages(t, recordedH100(t, now), replacement(t, "dcgm-exporter", func(o *rules.Options) {
		o.RateWindow = window * time.Second
	}))
	last := seconds[len(seconds)-1]
	of := func(second map[string]any, key string) float64 { return second[key].(float64) }
	for _, m := range []struct {
		expr       string
		want, near float64
	}{
		{"DCGM_FI_DEV_POWER_USAGE", of(last, "power_watts"), 0},
		// NVML was asked a moment later.
		{"DCGM_FI_DEV_POWER_USAGE", of(last, "nvml_power_watts"), 0.02 * of(last, "nvml_power_watts")},
		{"DCGM_FI_DEV_GPU_UTIL", of(last, "utilization_ratio") * 100, 0},
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", of(last, "utilization_ratio"), 0},
		{"DCGM_FI_PROF_SM_ACTIVE", of(last, "engine_sm"), 0},
		{"DCGM_FI_PROF_PIPE_INT_ACTIVE", of(last, "engine_int"), 0},
		{"DCGM_FI_PROF_SM_OCCUPANCY", of(last, "occupancy_ratio"), 0},
		{"DCGM_FI_DEV_SM_CLOCK", of(last, "clock_hertz_sm") / 1e6, 0},
		{"DCGM_FI_DEV_MEM_CLOCK", of(last, "clock_hertz_memory") / 1e6, 0},
		{"DCGM_FI_DEV_FB_USED", of(last, "memory_used_bytes") / (1 << 20), 0},
		{ // mJ, by NVML's own counter
			"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION - DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION offset 3s",
			1e3 * (of(last, "nvml_energy_joules") - of(seconds[len(seconds)-4], "nvml_energy_joules")), 1,
		},
		{
			"DCGM_FI_PROF_PCIE_RX_BYTES",
			(of(last, "pcie_receive_bytes_total") -
				of(seconds[len(seconds)-1-window], "pcie_receive_bytes_total")) / window, 1e5,
		},
		{"count(DCGM_FI_DEV_GPU_UTIL)", 1, 0},
		{`count(DCGM_FI_DEV_GPU_UTIL{pod="int-hash", namespace="team", container=~"main|sidecar", exported_pod="int-hash",
			gpu="0", device="nvidia0", UUID="GPU-0", pci_bus_id="00000000:3b:00.0", modelName="NVIDIA H100 80GB HBM3",
			Hostname="n2", hostname="n2", node="n2", instance="n2", job="dcgm-exporter", DCGM_FI_DRIVER_VERSION="580.159.04",
			DCGM_FI_SYSTEM_DRIVER_VERSION="580.159.04",
			dra_claim_name="int-hash-gpu", dra_claim_namespace="team", dra_driver_name="gpu.nvidia.com",
			dra_pool_name="n2", dra_device_name="gpu-0", GPU_I_ID="", GPU_I_PROFILE=""})`, 1, 0},
	} {
		vector, err := e.query(m.expr, now)
		if err != nil || len(vector) != 1 {
			t.Errorf("%s: %v, %v", m.expr, vector, err)
			continue
		}
		got := vector[0].F
		expect.That(t, math.Abs(got-m.want) <= m.near+1e-9*math.Abs(m.want), "%s is %v, want %v", m.expr, got, m.want)
	}
}

// samplesOf returns what the source scrape reads from another exporter's page.
func samplesOf(t *testing.T, text, preset string) []driver.Sample {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	config, err := scrape.ParseConfig(
		fmt.Appendf(nil, "endpoints: [{name: recorded, url: %q, preset: %s}]", server.URL, preset), "")
	must.Do(t, err)
	source := must.Get(scrape.New(config.Endpoints[0], ""))(t)
	samples := must.Get(source.Sample(t.Context()))(t)
	return samples
}

// notGiven are the names on recorded pages that the rules do not give, or not with the same value.
func notGiven() map[string]string {
	return map[string]string{
		"DCGM_FI_DEV_VGPU_LICENSE_STATUS":      "no quantity",
		"DCGM_FI_PROF_PCIE_TX_BYTES":           "a rate, which the source scrape does not read",
		"DCGM_FI_PROF_PCIE_RX_BYTES":           "a rate, which the source scrape does not read",
		"DCGM_FI_DEV_MEMORY_TEMP":              "0 °C: the GPU has no such sensor",
		"DCGM_FI_DEV_XID_ERRORS":               "the number of the last one, which the source scrape does not read",
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "since the exporter's start: compared by its increase",
	}
}

// TestCompatPage reads recorded pages of dcgm-exporter by the source scrape, and compares what the
// rules give back with the page itself: to the unit.
func TestCompatPage(t *testing.T) {
	t.Parallel()
	l40s := func() node {
		return newNode(t, "n3", "gpu.nvidia.com", map[string]driver.Hardware{"gpu-0": {
			UUID: "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43", PCI: "0000:00:07.0", Vendor: "nvidia", Model: "NVIDIA L40S",
			DriverVersion: "595.58.03",
		}}, map[string][]string{"gpu-0": {"server"}})
	}
	mig := func() node {
		const parent = "GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f0418"
		devices := map[string]driver.Hardware{
			"gpu-0": {UUID: parent, Vendor: "nvidia", Model: "NVIDIA A800-SXM4-80GB", DriverVersion: "535.129.03"},
			"gpu-1": {
				UUID: "GPU-9e5b8fec-61bf-5124-a0a9-079af1b65cc6", Vendor: "nvidia", Model: "NVIDIA A800-SXM4-80GB",
				DriverVersion: "535.129.03",
			},
		}
		for place, id := range map[string]string{"0": "3", "2": "5", "4": "6"} {
			devices["gpu-0-mig-2g20gb-14-"+place] = driver.Hardware{
				Kind: driver.KindPartition, Parent: parent, Instance: id + "/0", Vendor: "nvidia", Profile: "2g.20gb",
				Model: "NVIDIA A800-SXM4-80GB", DriverVersion: "535.129.03",
			}
		}
		return newNode(t, "n3", "gpu.nvidia.com", devices, map[string][]string{"gpu-0-mig-2g20gb-14-2": {"server"}})
	}
	for file, newNode := range map[string]func() node{"dcgm-l40s": l40s, "dcgm-a800mig": mig} {
		t.Run(file, func(t *testing.T) {
			text := must.Get(os.ReadFile(filepath.Join(recordings(t), "expositions", file+".prom")))(t)
			n := newNode()
			const later = 5_000 // mJ
			var pages []page
			for i, text := range []string{string(text), withEnergy(string(text), later)} {
				n.In.Sources[0].Samples = samplesOf(t, text, "dcgm-exporter")
				for s := range n.In.Sources[0].Samples {
					for r := range n.In.Sources[0].Samples[s].Readings {
						n.In.Sources[0].Samples[s].Readings[r].At = n.Now
					}
				}
				n.Tick(30 * time.Second)
				pages = append(pages, n.page(t, time.Unix(1_700_000_000+int64(i)*30, 0)))
			}
			e := recordPages(t, pages, replacement(t, "dcgm-exporter", nil))
			compared, names := comparePage(t, e, families(t, string(text)), pages[1].at)
			t.Logf("%s: %d series of %d names are the same to the unit", file, compared, names)
			expect.That(t, compared >= 9, "nothing is shown")
			if file == "dcgm-l40s" {
				const energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
				vector, err := e.query(energy+" - "+energy+" offset 30s", pages[1].at)
				expect.That(t, err == nil && len(vector) == 1 && math.Abs(vector[0].F-later) <= 1,
					"the energy increased by %v mJ, want %d: %v", vector, later, err)
			}
		})
	}
}

// withEnergy returns a page on which the counters of energy are higher.
func withEnergy(text string, by int) string {
	var out []string
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok &&
			strings.HasPrefix(name, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") {
			var joules int
			if _, err := fmt.Sscan(value, &joules); err == nil {
				line = fmt.Sprintf("%s} %d\n", name, joules+by)
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

// comparePage compares each series of a page with that of the rules: labels that it has, and its
// value to the unit. It returns how many are the same.
func comparePage(t *testing.T, e *engine, theirs []*dto.MetricFamily, at time.Time) (same, names int) {
	t.Helper()
	kept := []string{"gpu", "UUID", "device", "modelName", "DCGM_FI_DRIVER_VERSION", "GPU_I_PROFILE", "pci_bus_id"}
	for _, f := range theirs {
		if why := notGiven()[f.GetName()]; why != "" {
			t.Logf("%s is not compared: %s", f.GetName(), why)
			continue
		}
		names++
		// Instances of one profile differ in their number, which is another one here.
		var want, got []string
		vector := must.Get(e.query(f.GetName(), at))(t)
		key := func(get func(string) string, v float64) string {
			out := fmt.Sprintf("%.0f", v)
			for _, label := range kept {
				out += " " + label + "=" + get(label)
			}
			return out
		}
		for _, m := range f.Metric {
			labels := labelsOf(m)
			want = append(want, key(func(l string) string { return labels[l] },
				m.GetUntyped().GetValue()+m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
		for _, s := range vector {
			got = append(got, key(s.Metric.Get, s.F))
		}
		slices.Sort(want)
		slices.Sort(got)
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("%s: %s is not there: %v", f.GetName(), w, got)
				continue
			}
			same++
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d series, want %d:\n%s\n%s", f.GetName(), len(got), len(want), strings.Join(got, "\n"),
				strings.Join(want, "\n"))
		}
	}
	return same, names
}

// TestCompatAMD reads a recorded page of AMD's device-metrics-exporter by the source scrape, adds
// what that page lacks, and compares what the rules give back, which others ask for.
func TestCompatAMD(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile(filepath.Join(recordings(t), "expositions", "amd-mi300x.prom")))(t)
	n := newNode(t, "n4", "gpu.amd.com", map[string]driver.Hardware{"gpu-2-130": {
		Serial: "692409005408", UUID: "ccff74a1-0000-1000-80e0-c6d49f5b0d86", Vendor: "amd", Model: "AMD Instinct MI300X OAM",
		DriverVersion: "6.12.12", FirmwareVersion: "022.042.000.002.000001",
	}}, map[string][]string{"gpu-2-130": {"server"}})
	now := time.Unix(1_700_000_000, 0)
	for i := range 2 {
		n.In.Sources[0].Samples = samplesOf(t, string(text), "amd-device-metrics-exporter")
		for s := range n.In.Sources[0].Samples {
			sample := &n.In.Sources[0].Samples[s]
			sample.Readings = append(sample.Readings,
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"junction"}, Value: 51},
				driver.Reading{Quantity: driver.Energy, Value: 1000 + 700*float64(i)},
				driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"healthy"}, Value: 1})
			for r := range sample.Readings {
				sample.Readings[r].At = n.Now
			}
		}
		n.Tick(30 * time.Second)
	}
	pages := []page{n.page(t, now)}
	for prefix, boards := range map[string]string{"": "", "amd_": "amd_"} {
		e := recordPages(t, pages, replacement(t, "amd-device-metrics-exporter", func(o *rules.Options) {
			o.Compat.AMD.Prefix = prefix
		}))
		checkAsked(t, e, now, "amd-device-metrics-exporter", boards)
		for expr, want := range map[string]float64{
			"gpu_gfx_activity": 0, "gpu_used_vram": 283, "gpu_total_vram": 196592, "gpu_free_vram": 196592 - 283,
			"gpu_package_power": 140, "gpu_junction_temperature": 51, "gpu_energy_consumed": 700e6, "gpu_nodes_total": 1,
			`gpu_health{gpu_id="2", serial_number="692409005408", card_series="AMD Instinct MI300X OAM", card_vendor="AMD",
				gpu_uuid="ccff74a1-0000-1000-80e0-c6d49f5b0d86", hostname="n4", cluster_name="c1", pod="server", namespace="team",
				vbios_version="022.042.000.002.000001", driver_version="6.12.12", job="device-metrics-exporter"}`: 1,
		} {
			vector, err := e.query(prefix+expr, now)
			expect.That(t, err == nil && len(vector) == 1 && math.Abs(vector[0].F-want) <= 1e-6,
				"%s%s is %v, want one of %v: %v", prefix, expr, vector, want, err)
		}
	}
}
