package ledger_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// xidLabels returns the labels of the error in these tests.
func xidLabels() driver.Labels { return driver.Labels{"xid", "31"} }

// errorsAt sets readings of gpu-0's power and count of errors, with events at the given durations
// before now.
func errorsAt(h *exportertest.History, errors int, ago ...time.Duration) {
	h.Read(jointest.Watts(100), driver.Reading{
		Quantity: driver.Errors, Labels: xidLabels(), Value: float64(errors), Since: jointest.Start().Add(1),
	})
	for _, d := range ago {
		event(h, driver.Event{At: h.Now.Add(-d)})
	}
}

// event adds an event to gpu-0's sample.
func event(h *exportertest.History, e driver.Event) {
	e.Quantity, e.Labels = driver.Errors, xidLabels()
	s := &h.In.Sources[0].Samples[0]
	s.Events = append(s.Events, e)
}

// witnessed returns the counts of errors that hit claims and pods, by name.
func witnessed(x exportertest.Scraped) map[string]float64 {
	out := map[string]float64{}
	for _, family := range []string{"dra_claim_errors_total", "dra_pod_errors_total"} {
		for key, v := range x.Matching(family) {
			l := exportertest.ParseKey(key)
			out[l["resourceclaim_name"]+l["pod"]] = v
		}
	}
	return out
}

func expectWitnessed(t *testing.T, x exportertest.Scraped, device float64, want map[string]float64) {
	t.Helper()
	if got := x.One(t, "dra_device_errors_total", "device=gpu-0"); got != device {
		t.Errorf("the device has %v errors, want %v", got, device)
	}
	if got := witnessed(x); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("errors hit %v, want %v", got, want)
	}
}

// An error counts in full for each holder at the time when it happens, not at the time when it is
// read.
func TestErrorHitsWhoHeldTheDeviceThen(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "a0", "a1")
	errorsAt(h, 0)
	h.Pass(2 * time.Second)
	h.Free("a")
	h.Hold("b", "b0") // began in the middle between the answers
	errorsAt(h, 1, 1500*time.Millisecond)
	expectWitnessed(t, h.Tick(2*time.Second), 1, map[string]float64{"a": 1, "a0": 1, "a1": 1})
	h.Hold("c", "c0")
	errorsAt(h, 2, 200*time.Millisecond)
	x := h.Tick(time.Second)
	expectWitnessed(t, x, 2, map[string]float64{"a": 1, "a0": 1, "a1": 1, "b": 1, "b0": 1, "c": 1, "c0": 1})
	at := float64(h.Now.Add(-1200*time.Millisecond).UnixNano()) / 1e9
	for _, who := range [][2]string{
		{"dra_claim_last_error_timestamp_seconds", "resourceclaim_name=c"},
		{"dra_device_last_error_timestamp_seconds", "device=gpu-0"},
	} {
		if got := x.One(t, who[0], who[1]); got != at {
			t.Errorf("%s{%s} is %v, want %v", who[0], who[1], got, at)
		}
	}
	h.Free("b")
	h.Free("c")
	errorsAt(h, 2)
	h.Pass(time.Second)
	errorsAt(h, 3, 100*time.Millisecond) // while nobody holds it
	x = h.Tick(time.Second)
	expectWitnessed(t, x, 3, map[string]float64{"a": 1, "a0": 1, "a1": 1, "b": 1, "b0": 1, "c": 1, "c0": 1})
}

// An error hits nobody who was dropped before a restart, even if it may have held the device then.
func TestErrorOfForgottenHolder(t *testing.T) {
	h := exportertest.NewHistory(t)
	errorsAt(h, 1)
	h.Hold("a", "a0")
	h.Pass(time.Second)
	h.In.Sources[0].Samples = nil
	h.Pass(10 * time.Second)
	h.Free("a")
	h.Pass(time.Second)
	h.Pass(time.Second)
	h.Ledger.Evict(h.Last.Snapshot, func(*book.Holder, bool, time.Time) bool { return true })
	var k log
	k.write(h.Ledger, h.Now)
	h.Restart(k.Kept, h.Now)
	errorsAt(h, 3)
	expectWitnessed(t, h.Tick(time.Second), 2, map[string]float64{})
}

// The state of a holder that is known before the kubelet has answered is read after a restart, and
// its counters continue.
func TestRestartBeforeTheFirstAnswer(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "a0")
	h.Energy(0)
	h.TickWithoutAnswer(time.Second)
	h.Energy(100)
	h.TickWithoutAnswer(time.Second)
	var k log
	k.write(h.Ledger, h.Now)
	h.Restart(k.Kept, h.Now)
	h.Energy(300)
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 300})
}

// An error of an unknown time hits all holders since the reading before.
func TestErrorOfUnknownTime(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "a0")
	errorsAt(h, 0)
	h.Pass(2 * time.Second)
	h.Free("a")
	h.Hold("b", "b0")
	errorsAt(h, 2)
	expectWitnessed(t, h.Tick(2*time.Second), 2, map[string]float64{"a": 2, "a0": 2, "b": 2, "b0": 2})
	errorsAt(h, 4, time.Second) // one of the two errors has an event
	h.Hold("c", "c0")           // began at the time of the event
	expectWitnessed(t, h.Tick(time.Second), 4,
		map[string]float64{"a": 2, "a0": 2, "b": 4, "b0": 4, "c": 2, "c0": 2})
}

// An event that names a process hits only the pod of the process and its claim. If that pod does
// not hold the device, no holder is hit. If the process is unknown, all holders are hit.
func TestErrorOfAProcess(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0", "p1")
	h.Hold("b", "p2")
	h.In.PodOf = map[int]string{1: "uid-p0", 2: "uid-p1", 7: "uid-elsewhere"}
	for i := range h.In.View.Allocations {
		for j := range h.In.View.Allocations[i].Holders {
			holder := &h.In.View.Allocations[i].Holders[j]
			holder.UID = "uid-" + holder.Name
		}
	}
	errorsAt(h, 0)
	h.Pass(time.Second)
	for i, pid := range []int{2, 7, 99} {
		errorsAt(h, i+1)
		event(h, driver.Event{At: h.Now, PID: pid})
		x := h.Tick(time.Second)
		expectWitnessed(t, x, float64(i+1), []map[string]float64{
			{"a": 1, "p1": 1},
			{"a": 1, "p1": 1},
			{"a": 2, "p0": 1, "p1": 2, "b": 1, "p2": 1},
		}[i])
	}
}

// An event is counted once, also if the source reports it again, or if its counter rises only at
// the next reading.
func TestEventIsCountedOnce(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "a0")
	errorsAt(h, 0)
	h.Pass(2 * time.Second)
	errorsAt(h, 0, 1900*time.Millisecond) // the event comes before its count
	again := h.In.Sources[0].Samples[0].Events[0]
	expectWitnessed(t, h.Tick(time.Second), 0, map[string]float64{})
	h.Free("a")
	h.Hold("b", "b0")
	errorsAt(h, 1)
	event(h, again)
	expectWitnessed(t, h.Tick(time.Second), 1, map[string]float64{"a": 1, "a0": 1})
	errorsAt(h, 2, 0)
	event(h, again)
	expectWitnessed(t, h.Tick(time.Second), 2, map[string]float64{"a": 1, "a0": 1, "b": 1, "b0": 1})
}

// An error of a device also hits the holders of its partitions.
func TestErrorOfTheParent(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.In.Inventory[jointest.ID("part")] = driver.Entry{Hardware: driver.Hardware{
		Kind: driver.KindPartition, UUID: "part", Parent: "gpu-0", ParentShare: 0.5,
	}}
	h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation("part", "a", "a0"))
	h.ReadOf("part", driver.Reading{Quantity: driver.Utilization, Value: 1})
	errorsAt(h, 0)
	h.Pass(time.Second)
	errorsAt(h, 1, 500*time.Millisecond)
	expectWitnessed(t, h.Tick(time.Second), 1, map[string]float64{"a": 1, "a0": 1})
}

// Throttling is not divided: each holder is charged all of it in its own time.
func TestThrottlingOfHolders(t *testing.T) {
	h := exportertest.NewHistory(t)
	throttled := func(seconds float64) {
		h.Read(driver.Reading{Quantity: driver.ThrottledSeconds, Labels: driver.Labels{"thermal"}, Value: seconds})
	}
	h.Hold("a", "a0")
	throttled(0)
	h.Pass(2 * time.Second)
	h.Hold("b", "b0") // began in the middle between the answers
	throttled(1)
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_throttled_seconds_total", "reason=thermal"}:      1,
		{"dra_claim_throttled_seconds_total", "resourceclaim_name=a"}: 1,
		{"dra_claim_throttled_seconds_total", "resourceclaim_name=b"}: 0.5,
		{"dra_pod_throttled_seconds_total", "pod=b0"}:                 0.5,
	})
}

// A peak is the highest value of the holder's part since the holder began. It stays after the end.
func TestPeaks(t *testing.T) {
	h := exportertest.NewHistory(t)
	read := func(memory, watts float64) exportertest.Scraped {
		h.Read(exportertest.Gauges(0.5, memory, watts)...)
		return h.Tick(time.Second)
	}
	h.Hold("a", "a0")
	for _, memory := range []float64{10, 40, 20} {
		read(memory, 5*memory)
	}
	h.Free("a")
	h.Hold("b", "b0")
	read(20, 100)
	h.Hold("c", "c0")
	x := read(30, 100)
	x2 := read(20, 60)
	for _, x := range []exportertest.Scraped{x, x2} {
		h.Expect(x, map[[2]string]float64{
			{"dra_device_memory_used_peak_bytes", "device=gpu-0"}:        40,
			{"dra_device_power_peak_watts", "device=gpu-0"}:              200,
			{"dra_claim_memory_used_peak_bytes", "resourceclaim_name=a"}: 40,
			{"dra_pod_memory_used_peak_bytes", "pod=a0"}:                 40,
			{"dra_claim_power_peak_watts", "resourceclaim_name=a"}:       200,
			{"dra_claim_memory_used_peak_bytes", "resourceclaim_name=b"}: 20,
			{"dra_claim_memory_used_peak_bytes", "resourceclaim_name=c"}: 15,
			{"dra_pod_power_peak_watts", "pod=b0"}:                       100,
		})
	}
}

// TestWitnesses plays random histories with errors at known times. Each error hits exactly those
// who held the device at its time, by the naive ledger. No holder has more errors than its device.
func TestWitnesses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewEmptyWorld(t)
		w.AddSource("a", driver.Energy)
		config := exportertest.LedgerConfig()
		config.Retention = time.Hour
		l := ledger.New(config)
		ref := &reference{last: map[refSeries]driver.Reading{}, sums: map[refKey]float64{}}
		happened := map[driver.ID][]time.Time{}
		before := w.Now
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step([]time.Duration{time.Second, time.Second, 100 * time.Millisecond, 2900 * time.Millisecond, 7 * time.Second})
			in := w.Input()
			for _, id := range slices.SortedFunc(maps.Keys(in.Inventory), driver.ID.Compare) {
				s := driver.Sample{Hardware: in.Inventory[id].Hardware}
				grains := int(w.Now.Sub(before) / exportertest.Grain)
				if grains > 0 && rapid.IntRange(0, 3).Draw(t, "error") == 0 {
					// Holders change at whole grains.
					at := before.Add(time.Duration(rapid.IntRange(1, grains).Draw(t, "at"))*exportertest.Grain - exportertest.Grain/2)
					happened[id] = append(happened[id], at)
					s.Events = []driver.Event{{Quantity: driver.Errors, Labels: xidLabels(), At: at}}
				}
				s.Readings = []driver.Reading{{
					Quantity: driver.Errors, Labels: xidLabels(), Value: float64(len(happened[id])), At: w.Now,
				}}
				in.Sources[0].Samples = append(in.Sources[0].Samples, s)
			}
			before = w.Now
			x := exportertest.Scrape(t, exportertest.Whole(l.Advance(join.Join(in), w.Now)))
			ref.advance(w, in)
			ref.compareErrors(t, x, happened)
		}
	})
}

func (f *reference) compareErrors(t *rapid.T, x exportertest.Scraped, happened map[driver.ID][]time.Time) {
	want := map[refKey]float64{}
	for id, times := range happened {
		for _, at := range times {
			claims, pods := f.holders(id, at)
			for claim := range claims {
				want[refKey{id, "dra_claim_errors_total", claim}]++
			}
			for pod := range pods {
				want[refKey{id, "dra_pod_errors_total", pod}]++
			}
		}
	}
	for _, family := range []string{"dra_claim_errors_total", "dra_pod_errors_total"} {
		for labels, got := range x[family] {
			l := exportertest.ParseKey(labels)
			id := driver.ID{Driver: l["driver"], Pool: l["pool"], Device: l["device"]}
			key := refKey{id, family, l["resourceclaim_name"] + l["pod"]}
			must.That(t, got == want[key] && got <= float64(len(happened[id])),
				"%v is %v, the record says %v, the device has %d", key, got, want[key], len(happened[id]))
			delete(want, key)
		}
	}
	must.That(t, len(want) == 0, "not there: %v", want)
}
