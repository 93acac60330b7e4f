package join_test

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The use of processes divides a shared device; see divideByProcess. Processes 1, 2 and 3 belong to
// the pods p0, p1 and p2, 4 to none.
func TestAttributionByProcess(t *testing.T) {
	type row struct{ utilization, memory, power float64 }
	for name, tc := range map[string]struct {
		claims      map[string][]string // pods by claim
		processes   []driver.Process
		attribution string
		want        map[string]row // by claim or pod; "" is unattributed
	}{
		"of the device's 0.8, 100 and 200": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{exportertest.Process(1, 0.6, 50), exportertest.Process(2, 0.2, 30)},
			"process",
			map[string]row{"a": {0.6, 50, 150}, "b": {0.2, 30, 50}, "": {0, 20, 0}, "p0": {0.6, 50, 150}},
		},
		"a process without holder, and the device does more": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{exportertest.Process(1, 0.2, 50), exportertest.Process(4, 0.2, 20)},
			"process",
			map[string]row{"a": {0.2, 50, 100}, "b": {0, 0, 0}, "": {0.6, 50, 100}},
		},
		"processes have more than the device": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{exportertest.Process(1, 0.9, 150), exportertest.Process(2, 0.3, 50)},
			"process",
			map[string]row{"a": {0.6, 75, 150}, "b": {0.2, 25, 50}, "": {0, 0, 0}},
		},
		"pods of one claim": {
			map[string][]string{"a": {"p0", "p1"}},
			[]driver.Process{
				exportertest.Process(1, 0.3, 60), exportertest.Process(2, 0.1, 20), exportertest.Process(4, 0.1, 20),
			},
			"exclusive",
			map[string]row{"a": {0.8, 100, 200}, "p0": {0.6, 75, 150}, "p1": {0.2, 25, 50}, "": {0, 0, 0}},
		},
		"no process is busy": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{exportertest.Process(1, 0, 50), exportertest.Process(2, 0, 30)},
			"process",
			map[string]row{"a": {0, 50, 100}, "b": {0, 30, 100}, "": {0.8, 20, 0}},
		},
		"memory alone is known": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{{PID: 1, Readings: []driver.Reading{{Quantity: driver.MemoryUsed, Value: 75}}}},
			"equal",
			map[string]row{"a": {0.4, 75, 100}, "b": {0.4, 0, 100}, "": {0, 25, 0}},
		},
		"a pod with two claims": {
			map[string][]string{"a": {"p0"}, "b": {"p0"}, "c": {"p1"}},
			[]driver.Process{exportertest.Process(1, 0.4, 80), exportertest.Process(2, 0.4, 20)},
			"process",
			map[string]row{"a": {0.2, 40, 50}, "b": {0.2, 40, 50}, "c": {0.4, 20, 100}, "p0": {0.4, 80, 100}, "": {0, 0, 0}},
		},
		"no process of a holder": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{exportertest.Process(4, 0.6, 50)},
			"equal",
			map[string]row{"a": {0.4, 50, 100}, "b": {0.4, 50, 100}, "": {0, 0, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			for claim, pods := range tc.claims {
				h.Hold(claim, pods...)
			}
			h.Read(exportertest.Gauges(0.8, 100, 200)...)
			h.Run(tc.processes...)
			x := h.Tick(0)
			for who, want := range tc.want {
				prefix, label := "dra_claim_", "resourceclaim_name="+who
				switch {
				case who == "":
					prefix, label = "dra_device_unattributed_", "device=gpu-0"
				case who[0] == 'p':
					prefix, label = "dra_pod_", "pod="+who
				}
				h.Expect(x, map[[2]string]float64{
					{prefix + "utilization_ratio", label}: want.utilization,
					{prefix + "memory_used_bytes", label}: want.memory,
					{prefix + "power_watts", label}:       want.power,
				})
			}
			if n := len(x.Matching("dra_claim_device_info", "attribution="+tc.attribution)); n != len(tc.claims) {
				t.Errorf("%d claims of %d are divided %s: %v", n, len(tc.claims), tc.attribution, x["dra_claim_device_info"])
			}
		})
	}
}

// Two sources know different processes of a device, or different quantities of one: all count, and
// of what both know the first source's.
func TestProcessesOfTwoSources(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Hold("b", "p1")
	h.Hold("c", "p2")
	h.Read(exportertest.Gauges(0.8, 100, 200)...)
	memory := driver.Process{PID: 1, Readings: []driver.Reading{{Quantity: driver.MemoryUsed, Value: 10}}}
	h.Run(memory, exportertest.Process(2, 0.2, 40))
	first := h.In.Sources[0].Samples[0]
	second := driver.Sample{Hardware: first.Hardware, Processes: []driver.Process{
		exportertest.Process(1, 0.4, 99), exportertest.Process(2, 0.9, 99), exportertest.Process(3, 0.1, 30),
	}}
	for i := range second.Processes {
		for j := range second.Processes[i].Readings {
			second.Processes[i].Readings[j].At = h.Now
		}
	}
	h.In.Sources = append(h.In.Sources, join.SourceSamples{Name: "second", Samples: []driver.Sample{second}})
	x := h.Tick(0)
	for claim, want := range map[string][2]float64{"a": {0.4, 10}, "b": {0.2, 40}, "c": {0.1, 30}} {
		h.Expect(x, map[[2]string]float64{
			{"dra_claim_utilization_ratio", "resourceclaim_name=" + claim}: want[0],
			{"dra_claim_memory_used_bytes", "resourceclaim_name=" + claim}: want[1],
		})
	}
	expect.That(t, len(first.Processes) == 2 && len(first.Processes[0].Readings) == 1,
		"the samples of the first source were changed: %+v", first.Processes)
}

// A holder whose UID is not known could be the one that a process is of.
func TestNoAttributionByProcessWithoutUIDs(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Hold("b", "p1").Holders[0].UID = ""
	h.Read(exportertest.Gauges(0.8, 100, 200)...)
	h.Run(exportertest.Process(1, 0.8, 100))
	h.Expect(h.Tick(0), map[[2]string]float64{{"dra_claim_power_watts", "resourceclaim_name=b"}: 100})
}

// Counters are divided by the use of processes in the time of the counts. Allocated time is not.
func TestCountersByProcess(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Hold("b", "p1")
	joules := 0.0
	tick := func(first, second float64) exportertest.Scraped {
		h.Read(driver.Reading{
			Quantity: driver.Energy, Value: joules,
		}, driver.Reading{Quantity: driver.Utilization, Value: first + second})
		h.Run(exportertest.Process(1, first, 0), exportertest.Process(2, second, 0))
		joules += 100
		return h.Tick(time.Second)
	}
	tick(0, 0)
	for range 4 { // a measurement is of the second before
		tick(0.3, 0.1)
	}
	x := tick(0, 0.5)
	h.Expect(x, map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:           4 * 75,
		{"dra_claim_energy_joules_total", "resourceclaim_name=b"}:           4*25 + 100,
		{"dra_pod_energy_joules_total", "pod=p0"}:                           4 * 75,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}:     0,
		{"dra_claim_allocated_share_seconds_total", "resourceclaim_name=a"}: 2.5,
	})
	for claim, want := range map[string]float64{"a": 4, "b": 5} {
		got := x.One(
			t, "dra_claim_last_active_timestamp_seconds", "resourceclaim_name="+claim,
		) - exportertest.Unix(jointest.Start())
		expect.That(t, got == want, "claim %s was last active after %v s, want %v", claim, got, want)
	}
}

// Allocations by device plugins are divided among pods, each with its part, and belong to no claim.
// A claim on the same device counts as one of them.
func TestAttributionOfPlugins(t *testing.T) {
	h := exportertest.NewHistory(t)
	slice := func(share, pod string) podresources.Allocation {
		a := jointest.Allocation("gpu-0", "", pod)
		a.ShareID = share
		return a
	}
	h.In.View.Allocations = []podresources.Allocation{
		slice("0", "a"), slice("1", "b"), slice("2", "b"), jointest.Allocation("gpu-0", "claim", "c"),
	}
	for i := range 3 {
		h.Energy(float64(400 * i))
		h.Pass(time.Second)
	}
	x := exportertest.Scrape(t, h.Last)
	h.Expect(x, map[[2]string]float64{
		{"dra_pod_energy_joules_total", "pod=a"}:                        200,
		{"dra_pod_energy_joules_total", "pod=b"}:                        400,
		{"dra_pod_energy_joules_total", "pod=c"}:                        200,
		{"dra_claim_energy_joules_total", "resourceclaim_name=claim"}:   200,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}: 0,
		{"dra_device_allocations", "device=gpu-0"}:                      4,
	})
	expect.Is(t, len(x.Matching("dra_pod_claim_info", "resourceclaim_name=", "claim_name=", "attribution=equal")), 3,
		"rows of device plugins in %v", x["dra_pod_claim_info"])
	for name := range x {
		expect.That(t, len(x.Matching(name, "resourceclaim_name=")) == 0 || name == "dra_pod_claim_info",
			"%s has a claim without a name: %v", name, x[name])
	}
	h.In.View.Allocations = []podresources.Allocation{slice("0", "a")}
	if d := joinedAfter(h); d.Attribution != join.AttributionExclusive {
		t.Errorf("of one pod it is divided by %q", d.Attribution)
	}
	h.In.View.Allocations = []podresources.Allocation{slice("1", "b"), slice("2", "b")}
	if d := joinedAfter(h); d.Attribution != join.AttributionExclusive {
		t.Errorf("two slices of one pod are divided by %q", d.Attribution)
	}
	h.In.View.Allocations = []podresources.Allocation{slice("1", "a"), slice("2", "b")}
	if d := joinedAfter(h); d.Attribution != join.AttributionEqual {
		t.Errorf("slices of two pods are divided by %q", d.Attribution)
	}
}

func joinedAfter(h *exportertest.History) *join.Device {
	h.Pass(time.Second)
	return &h.Joined.Devices[0]
}

func TestDivideParent(t *testing.T) {
	const unknown = -1
	held := func(share, activity float64) join.Part {
		return join.Part{Share: share, Activity: activity, Held: true}
	}
	for name, tc := range map[string]struct {
		idle  float64
		parts []join.Part
		want  []float64
	}{
		"idle by share, the rest by activity and share": {
			0.2,
			[]join.Part{held(0.25, 1), held(0.5, 0.25), held(0.125, 0)},
			[]float64{0.2*0.25 + 0.8*0.25/0.375, 0.2*0.5 + 0.8*0.125/0.375, 0.2 * 0.125},
		},
		"the idle power is unknown":  {0, []join.Part{held(0.25, 1), held(0.25, 0)}, []float64{1, 0}},
		"all is idle":                {1, []join.Part{held(0.25, 0), held(0.5, 0)}, []float64{0.25, 0.5}},
		"drawn, though none is busy": {0, []join.Part{held(0.25, 0), held(0.5, 0)}, []float64{0.25, 0.5}},
		"no activity is known":       {0.5, []join.Part{held(0.25, unknown), held(0.5, unknown)}, []float64{0.25, 0.5}},
		"one activity is unknown": {
			0, []join.Part{held(0.25, unknown), held(0.25, 0.1), held(0.25, 0.3)}, []float64{0.25, 0.1875, 0.5625},
		},
		"active, and held by nobody": {
			0.5, []join.Part{held(0.5, 0.5), {Share: 0.5, Activity: 0.5}, {Share: 0.25}}, []float64{0.5, 0.5, 0},
		},
		"one that could be made":     {0, []join.Part{held(0.5, unknown), {Share: 1, Activity: unknown}}, []float64{0.5, 0}},
		"an unknown share":           {0.5, []join.Part{held(0, 1), held(0.5, 1)}, []float64{0, 0.75}},
		"shares of more than all":    {1, []join.Part{held(1, 0), held(1, 0)}, []float64{0.5, 0.5}},
		"the same, activity unknown": {0, []join.Part{held(1, unknown), held(1, 1)}, []float64{0.5, 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			join.DivideParent(tc.parts, tc.idle)
			for i, want := range tc.want {
				got := tc.parts[i].Fraction
				expect.That(t, math.Abs(got-want) <= 1e-12, "partition %d has %v, want %v", i, got, want)
			}
		})
	}
}
