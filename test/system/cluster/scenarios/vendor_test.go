package scenarios

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

const (
	idleWatts = 60.0
	maxWatts  = 660.0

	replacementJoules = 50e6 // The counter of replacement hardware starts this much higher.
)

// vendor is a vendor's exporter of simulated GPUs. Each GPU has its own load, and its energy is
// known exactly.
type vendor struct {
	begun   time.Time
	gpus    []gpu // Those in ResourceSlices.
	plugged []gpu // Those that only device plugins have.

	mu    sync.Mutex
	times []time.Time // The times of all requests.
}

type gpu struct {
	name string
	uuid string // Empty for a partition, which has a name instead.
	load sim.Profile

	replaced bool
}

// newVendor returns a vendor's exporter of the devices in the slices.
func newVendor(all []resourceapi.ResourceSlice) *vendor {
	v := &vendor{begun: time.Now()}
	for i := range all {
		if all[i].Spec.Driver != gpudriver.Name {
			continue
		}
		for _, d := range all[i].Spec.Devices {
			g := newGPU(d.Name)
			if _, partition := d.Attributes["partition"]; !partition {
				g.uuid = *d.Attributes["uuid"].StringValue
			}
			v.gpus = append(v.gpus, g)
		}
	}
	slices.SortFunc(v.gpus, func(a, b gpu) int { return cmp.Compare(a.name, b.name) })
	for _, uuid := range []string{deviceplugin.UnlistedUUID, deviceplugin.SlicedUUID, deviceplugin.SpareUUID} {
		g := newGPU(uuid)
		g.uuid = uuid
		v.plugged = append(v.plugged, g)
	}
	return v
}

// newGPU returns a GPU. Its load depends only on its name.
func newGPU(name string) gpu {
	seed := fnv.New64a()
	seed.Write([]byte(name))
	return gpu{name: name, load: sim.Bursts(seed.Sum64(), 2*time.Second, 0.5, 0.1, 0.8)}
}

// named returns the name of the device with this UUID, or the UUID if no slice has it.
func (v *vendor) named(uuid string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.IndexFunc(v.gpus, func(g gpu) bool { return g.uuid == uuid }); i >= 0 {
		return v.gpus[i].name
	}
	return uuid
}

// has reports whether the vendor's exporter has a device.
func (v *vendor) has(device string) bool { return v.endpoint(device, false) != "" }

// endpoint returns the prefix of the metrics by which an exporter reads a device: by names, as
// namesConfig says, or by hardware. It is empty if the vendor's exporter does not have the device.
func (v *vendor) endpoint(device string, names bool) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(slices.Concat(v.gpus, v.plugged), func(g gpu) bool { return g.name == device })
	switch {
	case i < 0:
		return ""
	case i >= len(v.gpus):
		return "gpu"
	case names:
		return "named"
	case v.gpus[i].uuid == "":
		return "partition"
	default:
		return "gpu"
	}
}

// answers reports whether an exporter reads any device of a device's endpoint: each endpoint is
// requested by itself.
func (v *vendor) answers(r *present.Report, device string, names bool) bool {
	of := v.endpoint(device, names)
	return slices.ContainsFunc(r.Devices, func(d present.DeviceReport) bool {
		return d.Up != nil && *d.Up && v.endpoint(d.Device, names) == of
	})
}

// replace replaces the hardware of a device. The load stays the same. The new counter is
// replacementJoules higher.
func (v *vendor) replace(device, uuid string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.gpus {
		if v.gpus[i].name == device {
			v.gpus[i].uuid, v.gpus[i].replaced = uuid, true
		}
	}
}

// joules returns the energy that a device used between two times.
func (v *vendor) joules(device string, from, to time.Time) float64 {
	i, ok := slices.BinarySearchFunc(v.gpus, device, func(g gpu, name string) int { return cmp.Compare(g.name, name) })
	if !ok {
		return 0
	}
	return v.energy(v.gpus[i], to) - v.energy(v.gpus[i], from)
}

func (v *vendor) energy(g gpu, at time.Time) float64 {
	since := at.Sub(v.begun)
	return idleWatts*since.Seconds() + (maxWatts-idleWatts)*g.load.Integral(since)
}

// ServeHTTP serves the current values: of GPUs by UUID as gpu_*, of partitions by name as
// partition_*, and of all devices by name as named_*. Replaced hardware does not affect named_*.
func (v *vendor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	at := time.Now()
	v.mu.Lock()
	v.times = append(v.times, at)
	all := slices.Concat(v.gpus, v.plugged)
	v.mu.Unlock()
	var b strings.Builder
	for _, g := range all {
		joules := v.energy(g, at)
		v.serve(&b, g, "named", "device", g.name, joules, at)
		switch {
		case g.uuid == "":
			v.serve(&b, g, "partition", "device", g.name, joules, at)
		case g.replaced:
			v.serve(&b, g, "gpu", "uuid", g.uuid, joules+replacementJoules, at)
		default:
			v.serve(&b, g, "gpu", "uuid", g.uuid, joules, at)
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = fmt.Fprint(w, &b) // The client may have gone.
}

// serve writes the metrics of one device.
func (v *vendor) serve(b *strings.Builder, g gpu, prefix, label, name string, joules float64, at time.Time) {
	load := g.load.Level(at.Sub(v.begun))
	for metric, value := range map[string]float64{
		"energy_joules_total": joules,
		"power_watts":         idleWatts + (maxWatts-idleWatts)*load,
		"utilization_ratio":   load,
		"memory_used_bytes":   1 << 30,
		"temperature_celsius": 30 + 40*load,
	} {
		fmt.Fprintf(b, "%s_%s{%s=%q} %v\n", prefix, metric, label, name, value)
	}
}

// hardwareConfig maps the series of the vendor's exporter to devices by the UUIDs in
// ResourceSlices.
func hardwareConfig(url string) string {
	return "endpoints:\n" + endpoint(url, "gpu", "uuid, hardware: uuid") +
		endpoint(url, "partition", "device, hardware: device")
}

// namesConfig maps them by the names of the devices, and by UUID for devices of device plugins.
func namesConfig(url string) string {
	return "endpoints:\n" + endpoint(url, "gpu", "uuid, hardware: uuid") +
		endpoint(url, "named", "device, hardware: device")
}

func endpoint(url, prefix, match string) string {
	return fmt.Sprintf(`- name: %[1]s
  url: %[2]s
  interval: 1s
  refresh: 0s
  driver: %[3]s
  match: {label: %[4]s}
  metrics:
  - {name: %[1]s_energy_joules_total, quantity: energy}
  - {name: %[1]s_power_watts, quantity: power}
  - {name: %[1]s_utilization_ratio, quantity: utilization}
  - {name: %[1]s_memory_used_bytes, quantity: memory_used}
  - {name: %[1]s_temperature_celsius, quantity: temperature, labels: {sensor: gpu}}
`, prefix, url, gpudriver.Name, match)
}
