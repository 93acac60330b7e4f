package scenarios

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// timing limits the difference between the exporter's and the driver's times of one hold, on a busy
// machine. usualTiming limits the mean difference of all holds.
const (
	timing      = 1500 * time.Millisecond
	usualTiming = 250 * time.Millisecond
)

// span is a time in which a claim held its devices according to the driver.
type span struct {
	from, to time.Time
	event    plugin.Event
}

// spans returns the times of all claims according to the driver's journal. A claim that is prepared
// again, after a restart of the kubelet, held its devices all the time. A claim that was not
// unprepared holds them until end.
func spans(events []plugin.Event, end time.Time) []span {
	var out []span
	open := map[string]int{} // By UID.
	for _, e := range events {
		uid := string(e.UID)
		i, isOpen := open[uid]
		switch {
		case e.Prepared && !isOpen:
			open[uid] = len(out)
			out = append(out, span{from: e.Time, to: end, event: e})
		case !e.Prepared && isOpen:
			out[i].to = e.Time
			delete(open, uid)
		}
	}
	return out
}

// heldBy returns the ended spans of one claim.
func heldBy(events []plugin.Event, ns, claim string) []span {
	return slices.DeleteFunc(spans(events, time.Time{}), func(s span) bool {
		return s.event.Namespace != ns || s.event.Name != claim || s.to.IsZero()
	})
}

// lasted returns how long a hold may have lasted: at least while the devices were prepared, and at
// most while the claim was reserved for a pod that had not ended. The difference is large if the
// kubelet is slow to prepare the devices.
func (w *world) lasted(s span) (least, most time.Duration) {
	from, to := w.ownership.truth.Reservation(s.event.UID, s.from, s.to)
	return s.to.Sub(s.from), to.Sub(from)
}

// share is a claim's part of a device during a span. weight is its consumed memory, or 1 if it does
// not consume capacity.
type share struct {
	span
	device string
	weight float64
}

// shares returns the shares of each device according to the driver, as far as this way can know
// them. A claim may have its devices as long as it is reserved for a pod that has not ended,
// although they are prepared later and unprepared earlier. With whileReserved a share lasts as long
// as the reservation. Without it, a share lasts while the claim is prepared and a pod uses the
// request. With contradicted there are also the shares of the claims that are prepared in
// namespaces where the kubelet contradicts the API server, whose objects don't say how long a
// device is used there.
func (w *world) shares(all []span, way way, whileReserved, contradicted bool) map[string][]share {
	out := map[string][]share{}
	contradictory := w.ownership.contradictory()
	for _, s := range all {
		if (way.noClaims || way.noPods) && w.ownership.truth.Unlisted(s.event.UID) ||
			!way.noClaims && contradictory[s.event.Namespace] && !contradicted {
			continue
		}
		if whileReserved {
			s.from, s.to = w.ownership.truth.Reservation(s.event.UID, s.from, s.to)
		}
		if end, ok := w.ownership.forcedAt(s.event.Namespace + "/" + s.event.Name); ok && end.Before(s.to) &&
			(!contradicted || !contradictory[s.event.Namespace]) {
			s.to = end
		}
		for _, d := range s.event.Devices {
			weight := 1.0
			if !way.noClaims {
				if d.AdminAccess != nil && *d.AdminAccess {
					continue
				}
				if memory, ok := d.ConsumedCapacity["memory"]; ok {
					weight = memory.AsApproximateFloat64()
				}
			}
			used := s
			if !way.noClaims && !way.noPods && !whileReserved && !contradictory[s.event.Namespace] {
				last := w.ownership.truth.LastUse(s.event.UID, driver.ID{Driver: d.Driver, Pool: d.Pool, Device: d.Device})
				if !last.IsZero() && last.Before(used.to) {
					used.to = last
				}
			}
			out[d.Device] = append(out[d.Device], share{used, d.Device, weight})
		}
	}
	return out
}

// vendor is a vendor's exporter of simulated GPUs. Each GPU has its own load, and its energy is
// known exactly.
type vendor struct {
	begun   time.Time
	gpus    []gpu // Those in ResourceSlices.
	plugged []gpu // Those that only device plugins have.

	mu    sync.Mutex
	times []time.Time // The times of all requests.
}

// charge returns the joules of each claim on a device, by namespace/name. At each moment the
// device's power is divided in proportion to weight.
func (v *vendor) charge(device string, all []share) map[string]float64 {
	var times []time.Time
	for _, s := range all {
		times = append(times, s.from, s.to)
	}
	slices.SortFunc(times, time.Time.Compare)
	out := map[string]float64{}
	for i := 1; i < len(times); i++ {
		from, to := times[i-1], times[i]
		sum := 0.0
		for _, s := range all {
			if !s.from.After(from) && !s.to.Before(to) {
				sum += s.weight
			}
		}
		for _, s := range all {
			if !s.from.After(from) && !s.to.Before(to) {
				out[s.event.Namespace+"/"+s.event.Name] += v.joules(device, from, to) * s.weight / sum
			}
		}
	}
	return out
}

// testTruth compares the charges of every claim with the energy that its devices used while it held
// them, according to the driver's journal. All holds have ended.
func testTruth(t *testing.T, w *world) {
	time.Sleep(3 * time.Second) // This waits for the last readings.
	for _, e := range w.exporters {
		t.Run(e.name, func(t *testing.T) { w.compareCharges(t, e) })
	}
}

func (w *world) compareCharges(t *testing.T, e *running) {
	r := must.Get(e.report())(t)
	events := must.Get(w.cluster.Journal())(t)
	claims, worst, sum, allowed, stalled := 0, 0.0, 0.0, 1.0, 0.0
	still := w.stalls()
	if e.noClaims {
		// Without ResourceSlices a device is read only while it is held. What it uses until its
		// first reading, and between two holds, is not charged at the right time.
		allowed = 2
	}
	except := w.ownership.contradictory()
	whole := spans(events, r.Time)
	reserved, crowded := w.shares(whole, e.way, true, false), w.shares(whole, e.way, false, true)
	for name, all := range w.shares(whole, e.way, false, false) {
		wide, narrow := w.vendor.charge(name, reserved[name]), w.vendor.charge(name, crowded[name])
		for claim, want := range w.vendor.charge(name, all) {
			least, most := min(want, wide[claim], narrow[claim]), max(want, wide[claim])
			if ns, _, _ := strings.Cut(claim, "/"); except[ns] {
				continue
			}
			claims++
			got, said := 0.0, ""
			for i := range r.Claims { // There is a row for each hold of a claim, and for each claim of the name.
				if c := &r.Claims[i]; c.Namespace+"/"+c.Name == claim && c.Device == name {
					got += energyOf(c.Values)
					said += fmt.Sprintf("from %v for %.1f s until %v; ", c.Since, c.AllocatedSeconds, c.Ended)
				}
			}
			off := max(least-got, got-most, 0)
			worst, sum = max(worst, off), sum+off
			stall := stalledAt(claim, slices.Concat(all, reserved[name]), still).Seconds()
			stalled += stall
			if off > (allowed*timing.Seconds()+stall)*maxWatts {
				t.Errorf("%s was charged %.1f J of %s, and is said to have held it %s; the truth is %.1f to %.1f J: %sreserved: %s",
					claim, got, name, said, least, most, describe(all), describe(reserved[name]))
			}
		}
	}
	must.That(t, claims >= 20, "%d claims say little", claims)
	mean := sum / float64(claims)
	t.Logf("the joules of %d claims are off by %.1f J in the mean and %.1f J at worst", claims, mean, worst)
	if mean > (allowed*usualTiming.Seconds()+stalled/float64(claims))*maxWatts {
		t.Errorf("that is too much: the machine stood still for %v in all", standstill.Total(still))
	}
	for _, g := range w.vendor.gpus {
		if e.noClaims {
			continue // Devices without a holder are unknown.
		}
		if got := energy(r, "device", "", "", g.name); !w.vendor.served(g, got, r.Time) {
			t.Errorf("%s used %v J, which is between no two readings", g.name, got)
		}
	}
}

// stalledAt returns how long the machine stood still around the start and the end of a claim's
// holds. The exporter notices these changes that much later.
func stalledAt(claim string, all []share, still []standstill.Span) time.Duration {
	const around = 3 * time.Second
	sum := time.Duration(0)
	for _, s := range all {
		if s.event.Namespace+"/"+s.event.Name != claim {
			continue
		}
		for _, at := range []time.Time{s.from, s.to} {
			sum += standstill.Span{From: at.Add(-around), To: at.Add(around)}.Overlap(still)
		}
	}
	return sum
}

// served reports whether a device used this energy between one of its first and one of its last
// readings.
func (v *vendor) served(g gpu, joules float64, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	exact := 1e-3
	if g.replaced { // The energy between the last reading of one and the first of the other is lost.
		exact = 4 * timing.Seconds() * maxWatts
	}
	for _, first := range v.times[:min(len(v.times), 100)] { // Of all exporters in turn, with two endpoints each.
		for i := len(v.times) - 1; i >= 0 && now.Sub(v.times[i]) < 5*time.Second; i-- {
			if math.Abs(v.energy(g, v.times[i])-v.energy(g, first)-joules) < exact {
				return true
			}
		}
	}
	return false
}

func describe(all []share) string {
	out := ""
	for _, s := range all {
		out += fmt.Sprintf("%s/%s %s to %s; ", s.event.Namespace, s.event.Name, s.from.Format(time.StampMilli),
			s.to.Format(time.StampMilli))
	}
	return out
}

const (
	idleWatts = 60.0
	maxWatts  = 660.0

	replacementJoules = 50e6 // The counter of replacement hardware starts this much higher.
)

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
