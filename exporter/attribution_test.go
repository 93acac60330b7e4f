package exporter

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

func TestAttribution(t *testing.T) {
	amount := func(resource string, v float64) driver.Amount { return driver.Amount{Resource: resource, Value: v} }
	share := func(claim, id string, consumed ...driver.Amount) podresources.Allocation {
		a := allocationOf("gpu-0", claim, "p-"+claim)
		a.ShareID, a.Consumed = id, consumed
		return a
	}
	admin := share("root", "")
	admin.Admin = true
	for name, tc := range map[string]struct {
		shares []podresources.Allocation
		want   Attribution
		parts  map[string]float64 // of each claim
	}{
		"free":                  {nil, AttributionNone, map[string]float64{}},
		"admin alone":           {[]podresources.Allocation{admin}, AttributionNone, map[string]float64{"root": 0}},
		"one claim":             {[]podresources.Allocation{share("a", "")}, AttributionExclusive, map[string]float64{"a": 1}},
		"one claim and admin":   {[]podresources.Allocation{share("a", ""), admin}, AttributionExclusive, map[string]float64{"a": 1, "root": 0}},
		"two shares of a claim": {[]podresources.Allocation{share("a", "1"), share("a", "2")}, AttributionExclusive, map[string]float64{"a": 1}},
		"two shares of a claim by capacity": {
			[]podresources.Allocation{share("a", "1", amount("memory", 1)), share("a", "2", amount("memory", 3))},
			AttributionExclusive,
			map[string]float64{"a": 1},
		},
		"two claims": {[]podresources.Allocation{share("a", ""), share("b", "")}, AttributionEqual, map[string]float64{"a": 0.5, "b": 0.5}},
		"two shares against one": {
			[]podresources.Allocation{share("a", "1"), share("a", "2"), share("b", "3")}, AttributionEqual, map[string]float64{"a": 2. / 3, "b": 1. / 3},
		},
		"capacity": {
			[]podresources.Allocation{share("a", "1", amount("memory", 10)), share("b", "2", amount("memory", 30))},
			AttributionCapacity,
			map[string]float64{"a": 0.25, "b": 0.75},
		},
		"capacity and admin": {
			[]podresources.Allocation{share("a", "1", amount("memory", 10)), share("b", "2", amount("memory", 30)), admin},
			AttributionCapacity,
			map[string]float64{"a": 0.25, "b": 0.75, "root": 0},
		},
		"capacity of two resources": {
			[]podresources.Allocation{
				share("a", "1", amount("cores", 1), amount("memory", 10)), share("b", "2", amount("cores", 1), amount("memory", 30)),
			},
			AttributionCapacity,
			map[string]float64{"a": (0.5 + 0.25) / 2, "b": (0.5 + 0.75) / 2},
		},
		"one resource in common": {
			[]podresources.Allocation{share("a", "1", amount("cores", 9), amount("memory", 10)), share("b", "2", amount("memory", 30))},
			AttributionCapacity,
			map[string]float64{"a": 0.25, "b": 0.75},
		},
		"no resource in common": {
			[]podresources.Allocation{share("a", "1", amount("cores", 9)), share("b", "2", amount("memory", 30))},
			AttributionEqual,
			map[string]float64{"a": 0.5, "b": 0.5},
		},
		"capacity of one alone": {
			[]podresources.Allocation{share("a", "1", amount("memory", 10)), share("b", "2")}, AttributionEqual, map[string]float64{"a": 0.5, "b": 0.5},
		},
		"none of a resource is no capacity": {
			[]podresources.Allocation{share("a", "1", amount("memory", 10)), share("b", "2", amount("memory", 0))},
			AttributionEqual,
			map[string]float64{"a": 0.5, "b": 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Join(Input{Inventory: driver.Inventory{simID("gpu-0"): {}}, View: podresources.View{Allocations: tc.shares}})
			d := r.Devices[0]
			if d.Attribution != tc.want {
				t.Errorf("divided %q, want %q", d.Attribution, tc.want)
			}
			parts := map[string]float64{}
			for _, s := range d.Shares {
				parts[s.Claim.Name] += s.Weight
			}
			for claim, want := range tc.parts {
				if !closeTo(parts[claim], want, 0) {
					t.Errorf("%s has %v, want %v", claim, parts[claim], want)
				}
			}
			if len(parts) != len(tc.parts) {
				t.Errorf("got %v, want %v", parts, tc.parts)
			}
		})
	}
}

// Pods of one claim share its part; the info metrics say how.
func TestAttributionAmongPods(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0", "p1")
	h.hold("b", "p2")
	h.read(driver.Reading{Quantity: driver.Power, Value: 100})
	x := h.tick(0)
	h.values(x, map[[2]string]float64{
		{"dra_claim_power_watts", "resourceclaim_name=a"}:       50,
		{"dra_claim_power_watts", "resourceclaim_name=b"}:       50,
		{"dra_pod_power_watts", "pod=p0"}:                       25,
		{"dra_pod_power_watts", "pod=p1"}:                       25,
		{"dra_pod_power_watts", "pod=p2"}:                       50,
		{"dra_device_unattributed_power_watts", "device=gpu-0"}: 0,
	})
	for pod, want := range map[string]string{"p0": "equal", "p1": "equal", "p2": "exclusive"} {
		if len(x.matching("dra_pod_claim_info", "pod="+pod, "attribution="+want)) != 1 {
			t.Errorf("%s is not divided %s: %v", pod, want, x["dra_pod_claim_info"])
		}
	}
	if n := len(x.matching("dra_claim_device_info", "attribution=equal")); n != 2 {
		t.Errorf("%d claims are divided equally, want 2", n)
	}
}

// energyAt plays a history of one device that counts 10 J a second, in ticks of a second.
func energyAt(h *history, seconds int) exposition {
	h.energy(10 * float64(seconds))
	return h.tick(time.Second)
}

// A change between two answers is put where a sign of it was seen, else in the middle; where the answers are far apart,
// at the answer.
func TestDating(t *testing.T) {
	at := func(ms int) time.Time { return unixTime().Add(time.Duration(ms) * time.Millisecond) }
	pod := func(ms int, gone bool) podresources.Change {
		return podresources.Change{At: at(ms), Gone: gone, PodUID: "uid-p0"}
	}
	for name, tc := range map[string]struct {
		changes []podresources.Change
		gap     time.Duration // between the answers around each change
		want    float64       // seconds
	}{
		"middles":                       {nil, time.Second, 3},
		"pod":                           {[]podresources.Change{pod(1200, false), pod(4900, true)}, time.Second, 3.7},
		"pod came":                      {[]podresources.Change{pod(1200, false)}, time.Second, 3.3},
		"pod went":                      {[]podresources.Change{pod(4900, true)}, time.Second, 3.4},
		"CDI":                           {[]podresources.Change{{At: at(1100), CDI: []string{"example.com/gpu=c0"}}}, time.Second, 3.4},
		"the last sign of a coming":     {[]podresources.Change{pod(1100, false), pod(1800, false)}, time.Second, 2.7},
		"the first sign of a going":     {[]podresources.Change{pod(4200, true), pod(4800, true)}, time.Second, 2.7},
		"signs of others":               {[]podresources.Change{{At: at(1100), PodUID: "uid-p1"}, {At: at(1200), CDI: []string{"example.com/gpu=c1"}}}, time.Second, 3},
		"signs of other times":          {[]podresources.Change{pod(-1100, false), pod(2100, false), pod(3500, true)}, time.Second, 3},
		"a sign before an answer":       {[]podresources.Change{pod(-900, false)}, time.Second, 3.5},
		"a sign at the earlier answer":  {[]podresources.Change{pod(1000, false)}, time.Second, 3.5},
		"a sign before and one between": {[]podresources.Change{pod(900, false), pod(1200, false)}, time.Second, 3.3},
		"a sign at the later answer":    {[]podresources.Change{pod(2000, false)}, time.Second, 2.5},
		"far apart: with the answers":   {nil, 4 * time.Second, 12},
		"far apart: with the signs":     {[]podresources.Change{pod(5500, false), pod(18500, true)}, 4 * time.Second, 13},
		"just not too far: the middles": {nil, 3 * time.Second, 9},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.in.View.Changes = tc.changes
			var x exposition
			for i := range 7 {
				switch i {
				case 2:
					h.hold("c0", "p0")
				case 5:
					h.free("c0")
				}
				h.energy(10 * h.now.Sub(unixTime()).Seconds())
				x = h.tick(tc.gap)
			}
			h.values(x, map[[2]string]float64{
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 10 * tc.want,
				{"dra_pod_energy_joules_total", "pod=p0"}:                  10 * tc.want,
				{"dra_claim_allocated_seconds_total", "device=gpu-0"}:      tc.want,
				{"dra_pod_allocated_share_seconds_total", "device=gpu-0"}:  tc.want,
				{"dra_device_allocated_seconds_total", "device=gpu-0"}:     tc.want,
				{"dra_device_energy_joules_total", "device=gpu-0"}:         10 * 6 * tc.gap.Seconds(),
			})
		})
	}
}

// Where the pods are watched, an end that was not seen before the answer without the pod was just before that.
func TestDatingOfTheWatched(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []podresources.Change
		want    float64 // seconds from the middle between the answers of seconds 1 and 2
	}{
		"not seen yet": {nil, 3.5},
		"seen":         {[]podresources.Change{{At: unixTime().Add(4200 * time.Millisecond), Gone: true, PodUID: "uid-p0"}}, 2.7},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.in.View.Watched, h.in.View.Changes = true, tc.changes
			var x exposition
			for second := range 7 {
				switch second {
				case 2:
					h.hold("c0", "p0")
				case 5:
					h.free("c0")
				}
				x = energyAt(h, second)
			}
			h.values(x, map[[2]string]float64{
				{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 10 * tc.want,
				{"dra_claim_allocated_seconds_total", "device=gpu-0"}:      tc.want,
			})
		})
	}
}

// What a sharer used before it left is its own, even where the reading comes after.
func TestSharerLeaves(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0")
	h.hold("b", "p1")
	h.energy(0)
	h.tick(time.Second)
	for range 9 {
		h.tick(time.Second) // the counter stands still: it is refreshed every 20 s
	}
	h.free("b")
	for range 10 {
		h.tick(time.Second)
	}
	h.energy(200)
	x := h.tick(time.Second)
	h.values(x, map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:       9.5*5 + 10.5*10,
		{"dra_claim_energy_joules_total", "resourceclaim_name=b"}:       9.5 * 5,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}: 0,
	})
}

// Readings that the last answer of the kubelet does not cover wait for the next; after a while they don't.
func TestReadingsWaitForAnAnswer(t *testing.T) {
	h := newHistory(t)
	h.energy(0)
	h.tick(time.Second)
	h.energy(10)
	x := h.tickWithoutAnswer(time.Second)
	h.values(x, map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 0})
	h.hold("a", "p0")
	h.energy(20)
	x = h.tick(time.Second) // the answers are 2 s apart: a came in the middle
	h.values(x, map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:        20,
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}: 10,
	})
	for i := range 5 {
		h.energy(30 + 10*float64(i))
		x = h.tickWithoutAnswer(time.Second)
	}
	h.values(x, map[[2]string]float64{ // it is 7 s and the answer is of 2 s: up to 5 s it is believed
		{"dra_device_energy_joules_total", "device=gpu-0"}:                  50,
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:           40,
		{"dra_claim_allocated_seconds_total", "resourceclaim_name=a"}:       4,
		{"dra_claim_allocated_share_seconds_total", "resourceclaim_name=a"}: 4,
	})
}

// A pod that is made anew under its name continues its series, and the newest UID is shown.
func TestRecreatedPodContinues(t *testing.T) {
	h := newHistory(t)
	h.hold("c0", "p0")
	for i := range 11 {
		energyAt(h, i)
	}
	h.free("c0")
	var x exposition
	for i := range 20 {
		x = energyAt(h, 11+i)
	}
	h.values(x, map[[2]string]float64{{"dra_pod_energy_joules_total", "pod=p0"}: 105})
	for _, gone := range []string{"dra_pod_claim_info", "dra_claim_device_info", "dra_claim_power_watts", "dra_claim_last_active_timestamp_seconds"} {
		if len(x[gone]) != 0 {
			t.Errorf("%s is still there: %v", gone, x[gone])
		}
	}
	h.hold("c0", "p0").Holders[0].UID = "uid-new"
	for i := range 11 {
		x = energyAt(h, 31+i)
	}
	h.values(x, map[[2]string]float64{{"dra_pod_energy_joules_total", "pod=p0"}: 105 + 105})
	if n := len(x.matching("dra_pod_info", "pod=p0", "uid=uid-new")); n != 1 || len(x["dra_pod_info"]) != 1 {
		t.Errorf("the pod is %v, want its new UID alone", x["dra_pod_info"])
	}
	if got := h.last.Pods[0].Born; !got.Equal(unixTime()) {
		t.Errorf("the series was born at %v, want its first time", got)
	}
}

// A partition that ends with its claim is kept no longer than the retention, though no reading will ever come.
func TestRetentionOfPartition(t *testing.T) {
	h := newHistory(t)
	mig := simID("mig-0")
	h.in.Inventory[mig] = driver.Entry{Hardware: driver.Hardware{UUID: "MIG-0", Kind: driver.KindPartition}}
	h.in.View.Allocations = []podresources.Allocation{allocationOf("mig-0", "c0", "p0")}
	for i := range 3 {
		h.readOf("MIG-0", driver.Reading{Quantity: driver.Energy, Value: float64(i)})
		h.tick(time.Second)
	}
	delete(h.in.Inventory, mig)
	h.in.Sources[0].Samples, h.in.View.Allocations = nil, nil
	h.tick(testRetention - time.Second)
	h.values(h.tick(2*time.Second), map[[2]string]float64{{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 2, {"dra_pod_info", "pod=p0"}: 1})
	x := h.tick(time.Second)
	for _, family := range []string{"dra_claim_energy_joules_total", "dra_pod_energy_joules_total", "dra_claim_info", "dra_pod_info"} {
		if len(x[family]) != 0 {
			t.Errorf("after the retention there is %v", x[family])
		}
	}
}

// A reading that covers the end of a holder and comes after its retention brings its series back, for as long.
func TestChargeAfterRetention(t *testing.T) {
	h := newHistory(t)
	h.energy(0)
	h.hold("c0", "p0")
	for range 10 {
		h.tick(time.Second)
	}
	h.free("c0")
	h.tick(testRetention) // the end
	h.tick(time.Second)
	if x := h.tick(9 * time.Second); len(x["dra_claim_allocated_seconds_total"])+len(x["dra_claim_info"]) != 0 {
		t.Errorf("after the retention there is %v", x["dra_claim_allocated_seconds_total"])
	}
	h.energy(3200) // 320 s, of which 9.5 s were the claim's
	h.values(h.tick(testRetention-time.Second), map[[2]string]float64{
		{"dra_claim_energy_joules_total", "device=gpu-0"}: 95, {"dra_pod_energy_joules_total", "device=gpu-0"}: 95,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}: 3105,
		{"dra_claim_info", "resourceclaim_name=c0"}:                     1, {"dra_pod_info", "uid=uid-p0"}: 1,
	})
	if x := h.tick(time.Second); len(x["dra_claim_energy_joules_total"]) != 1 {
		t.Error("the late charge is not shown for the retention")
	}
	if x := h.tick(time.Second); len(x["dra_claim_energy_joules_total"]) != 0 {
		t.Error("the late charge is shown for ever")
	}
}

// An end that is seen late is shown for the whole retention all the same.
func TestEndSeenLate(t *testing.T) {
	h := newHistory(t)
	h.hold("c0", "p0")
	h.tick(2 * testRetention)
	h.free("c0")
	h.in.View.Changes = []podresources.Change{{At: unixTime().Add(time.Second), Gone: true, PodUID: "uid-p0"}}
	for range 2 {
		h.values(h.tick(testRetention-time.Second), map[[2]string]float64{
			{"dra_claim_allocated_seconds_total", "device=gpu-0"}: 1, {"dra_pod_info", "pod=p0"}: 1,
		})
	}
	h.tick(0)
	h.now = h.now.Add(2 * time.Second)
	if x := h.tick(0); len(x["dra_claim_allocated_seconds_total"]) != 0 {
		t.Error("the end is shown for ever")
	}
}

// A claim was last active when its device was, from its coming on; without telemetry it is not said.
func TestLastActive(t *testing.T) {
	h := newHistory(t)
	active := func(x exposition, second float64) {
		t.Helper()
		h.values(x, map[[2]string]float64{{"dra_claim_last_active_timestamp_seconds", "resourceclaim_name=c0"}: unix(unixTime()) + second})
	}
	use := func(u float64) exposition {
		h.read(driver.Reading{Quantity: driver.Utilization, Value: u})
		return h.tick(time.Second)
	}
	use(1)
	use(1)
	h.hold("c0", "p0")
	active(use(0), 2)
	active(use(0.01), 2) // the threshold itself is idle
	active(use(0.02), 4)
	active(use(0), 4)
	h.read(driver.Reading{Quantity: driver.Power, Value: 300})
	if x := h.tick(time.Second); len(x["dra_claim_last_active_timestamp_seconds"]) != 0 {
		t.Error("a claim is idle without telemetry")
	}
	active(use(0), 4)
	active(use(1), 8)
}

// A network device is active by its traffic.
func TestLastActiveOfNetwork(t *testing.T) {
	h := newHistory(t)
	h.hold("c0", "p0")
	var x exposition
	bytes := 0.0
	for _, rate := range []float64{0, 1e4, 1.1e4, 0, 0} {
		bytes += rate
		h.read(driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"network", "transmit"}, Value: bytes})
		x = h.tick(time.Second)
	}
	h.values(x, map[[2]string]float64{{"dra_claim_last_active_timestamp_seconds", "resourceclaim_name=c0"}: unix(unixTime()) + 2})
}

// Counters that begin anew, marked or not, lose nothing that was read, and never fall.
func TestReset(t *testing.T) {
	for name, since := range map[string]time.Duration{"marked": 1500 * time.Millisecond, "not marked": 0} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.hold("c0", "p0")
			h.energy(1000)
			h.tick(time.Second)
			h.energy(1010)
			h.tick(time.Second)
			r := driver.Reading{Quantity: driver.Energy, Value: 4}
			if since > 0 {
				r.Since = unixTime().Add(since)
			}
			h.read(r)
			x := h.tick(time.Second)
			h.values(x, map[[2]string]float64{
				{"dra_device_energy_joules_total", "device=gpu-0"}: 14, {"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 14,
			})
		})
	}
	t.Run("marked and higher", func(t *testing.T) {
		h := newHistory(t)
		h.energy(10)
		h.tick(time.Second)
		h.read(driver.Reading{Quantity: driver.Energy, Value: 50, Since: h.now.Add(-time.Millisecond)})
		h.values(h.tick(0), map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 50})
	})
}

// When another source takes a quantity over, its counter counts from where it stands.
func TestTakeOver(t *testing.T) {
	h := newHistory(t)
	h.in.Sources = append(h.in.Sources, SourceSamples{Name: "b"})
	second := func(joules float64) {
		h.in.Sources[1].Samples = []driver.Sample{{
			Hardware: driver.Hardware{UUID: "gpu-0"}, Readings: []driver.Reading{{Quantity: driver.Energy, Value: joules, At: h.now}},
		}}
	}
	h.hold("c0", "p0")
	for i := range 3 {
		h.energy(float64(i))
		second(5e6 + float64(i))
		h.tick(time.Second)
	}
	h.in.Sources[0].Samples = nil
	var x exposition
	for i := range 3 {
		second(5e6 + 3 + float64(i))
		x = h.tick(time.Second)
	}
	h.values(x, map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 4, {"dra_claim_energy_joules_total", "device=gpu-0"}: 4})
	if len(x.matching("dra_device_quantity_source_info", "quantity=energy", "source=b")) != 1 {
		t.Errorf("the source is %v, want b", x["dra_device_quantity_source_info"])
	}
}
