package exporter

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// run lets processes be on gpu-0 from now on; each is of the pod that podOf tells.
func (h *history) run(processes ...driver.Process) {
	h.in.PodOf = podOf()
	for i := range processes {
		for j := range processes[i].Readings {
			processes[i].Readings[j].At = h.now
		}
	}
	h.in.Sources[0].Samples[0].Processes = processes
}

// uses is a process with what it uses.
func uses(pid int, utilization, memory float64) driver.Process {
	return driver.Process{PID: pid, Readings: []driver.Reading{
		{Quantity: driver.Utilization, Value: utilization}, {Quantity: driver.MemoryUsed, Value: memory},
	}}
}

func gauges(utilization, memory, power float64) []driver.Reading {
	return []driver.Reading{
		{Quantity: driver.Utilization, Value: utilization}, {Quantity: driver.MemoryUsed, Value: memory}, {Quantity: driver.Power, Value: power},
	}
}

// What processes use divides a shared device; see divideByProcess. Processes 1, 2 and 3 are of the pods p0, p1 and p2, 4 of none.
func TestAttributionByProcess(t *testing.T) {
	type row struct{ utilization, memory, power float64 }
	for name, tc := range map[string]struct {
		claims      map[string][]string // pods by claim
		processes   []driver.Process
		attribution string
		want        map[string]row // by claim, or pod, or nobody
	}{
		"of the device's 0.8, 100 and 200": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{uses(1, 0.6, 50), uses(2, 0.2, 30)},
			"process",
			map[string]row{"a": {0.6, 50, 150}, "b": {0.2, 30, 50}, "": {0, 20, 0}, "p0": {0.6, 50, 150}},
		},
		"a process of nobody, and the device does more": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{uses(1, 0.2, 50), uses(4, 0.2, 20)},
			"process",
			map[string]row{"a": {0.2, 50, 100}, "b": {0, 0, 0}, "": {0.6, 50, 100}},
		},
		"processes have more than the device": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{uses(1, 0.9, 150), uses(2, 0.3, 50)},
			"process",
			map[string]row{"a": {0.6, 75, 150}, "b": {0.2, 25, 50}, "": {0, 0, 0}},
		},
		"pods of one claim": {
			map[string][]string{"a": {"p0", "p1"}},
			[]driver.Process{uses(1, 0.3, 60), uses(2, 0.1, 20), uses(4, 0.1, 20)},
			"exclusive",
			map[string]row{"a": {0.8, 100, 200}, "p0": {0.6, 75, 150}, "p1": {0.2, 25, 50}, "": {0, 0, 0}},
		},
		"nobody is busy": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{uses(1, 0, 50), uses(2, 0, 30)},
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
			[]driver.Process{uses(1, 0.4, 80), uses(2, 0.4, 20)},
			"process",
			map[string]row{"a": {0.2, 40, 50}, "b": {0.2, 40, 50}, "c": {0.4, 20, 100}, "p0": {0.4, 80, 100}, "": {0, 0, 0}},
		},
		"no process of a holder": {
			map[string][]string{"a": {"p0"}, "b": {"p1"}},
			[]driver.Process{uses(4, 0.6, 50)},
			"equal",
			map[string]row{"a": {0.4, 50, 100}, "b": {0.4, 50, 100}, "": {0, 0, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			for claim, pods := range tc.claims {
				h.hold(claim, pods...)
			}
			h.read(gauges(0.8, 100, 200)...)
			h.run(tc.processes...)
			x := h.tick(0)
			for who, want := range tc.want {
				prefix, label := "dra_claim_", "resourceclaim_name="+who
				switch {
				case who == "":
					prefix, label = "dra_device_unattributed_", "device=gpu-0"
				case who[0] == 'p':
					prefix, label = "dra_pod_", "pod="+who
				}
				h.values(x, map[[2]string]float64{
					{prefix + "utilization_ratio", label}: want.utilization,
					{prefix + "memory_used_bytes", label}: want.memory,
					{prefix + "power_watts", label}:       want.power,
				})
			}
			if n := len(x.matching("dra_claim_device_info", "attribution="+tc.attribution)); n != len(tc.claims) {
				t.Errorf("%d claims of %d are divided %s: %v", n, len(tc.claims), tc.attribution, x["dra_claim_device_info"])
			}
		})
	}
}

// A holder whose UID is not known could be the one that a process is of.
func TestNoAttributionByProcessWithoutUIDs(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0")
	h.hold("b", "p1").Holders[0].UID = ""
	h.read(gauges(0.8, 100, 200)...)
	h.run(uses(1, 0.8, 100))
	h.values(h.tick(0), map[[2]string]float64{{"dra_claim_power_watts", "resourceclaim_name=b"}: 100})
}

// Counters are divided by what the processes used in the time in which they counted, and allocated time is not.
func TestCountersByProcess(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0")
	h.hold("b", "p1")
	joules := 0.0
	tick := func(first, second float64) exposition {
		h.read(driver.Reading{Quantity: driver.Energy, Value: joules}, driver.Reading{Quantity: driver.Utilization, Value: first + second})
		h.run(uses(1, first, 0), uses(2, second, 0))
		joules += 100
		return h.tick(time.Second)
	}
	tick(0, 0)
	for range 4 { // what is measured now is of the second before
		tick(0.3, 0.1)
	}
	x := tick(0, 0.5)
	h.values(x, map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:           4 * 75,
		{"dra_claim_energy_joules_total", "resourceclaim_name=b"}:           4*25 + 100,
		{"dra_pod_energy_joules_total", "pod=p0"}:                           4 * 75,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}:     0,
		{"dra_claim_allocated_share_seconds_total", "resourceclaim_name=a"}: 2.5,
	})
	for claim, want := range map[string]float64{"a": 4, "b": 5} {
		got := x.one(t, "dra_claim_last_active_timestamp_seconds", "resourceclaim_name="+claim) - unix(unixTime())
		if got != want {
			t.Errorf("claim %s was last active after %v s, want %v", claim, got, want)
		}
	}
}

// A device that is shared for long keeps a timeline that is bounded.
func TestTimelineByProcessIsBounded(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0")
	h.hold("b", "p1")
	for i := range 3 * maxSegments {
		h.read(gauges(0.8, 100, 200)...)
		h.run(uses(1, 0.1+float64(i%7)/10, 1), uses(2, 0.1, 1))
		h.in.View.At = h.now
		h.ledger.Advance(Join(h.in), h.now)
		h.now = h.now.Add(time.Second)
	}
	if n := len(h.ledger.devices[simID("gpu-0")].timeline); n > 2*maxSegments {
		t.Errorf("the timeline has %d segments", n)
	}
}

// A counter that is seldom new is divided by what the processes used second by second since it was.
func TestSlowCounterByProcess(t *testing.T) {
	h := newHistory(t)
	h.hold("a", "p0")
	h.hold("b", "p1")
	old := driver.Reading{Quantity: driver.Energy, At: h.now}
	var x exposition
	for second := range 5 {
		if second == 4 {
			old = driver.Reading{Quantity: driver.Energy, Value: 400, At: h.now}
		}
		first := second <= 2
		busy := map[bool]float64{true: 0.5, false: 0}
		h.read(old, driver.Reading{Quantity: driver.Utilization, Value: 0.5})
		h.run(uses(1, busy[first], 0), uses(2, busy[!first], 0))
		x = h.tick(time.Second)
	}
	h.values(x, map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}: 200,
		{"dra_claim_energy_joules_total", "resourceclaim_name=b"}: 200,
	})
}
