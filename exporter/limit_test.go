package exporter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Invariant 8: the series are no more than devices, quantities and holders make, and no more than --max-series.
func TestBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := testConfig()
		config.MaxSeries = rapid.SampledFrom([]int{0, 0, 1, 30, 60, 120}).Draw(t, "max")
		replay(t, config, func(w *world, r Result, s *Snapshot) {
			x := scrape(t, s)
			if got := x.series(); got != s.Series {
				t.Fatalf("%d series are exported, %d counted", got, s.Series)
			}
			if got := x.one(t, "dra_exporter_series"); got != float64(s.Series) {
				t.Fatalf("dra_exporter_series is %v, want %d", got, s.Series)
			}
			if got := x.one(t, "dra_exporter_series_dropped"); got != float64(s.Dropped) {
				t.Fatalf("dra_exporter_series_dropped is %v, want %d", got, s.Dropped)
			}
			if config.MaxSeries > 0 && s.Series > config.MaxSeries {
				t.Fatalf("%d series are exported, at most %d may", s.Series, config.MaxSeries)
			}
			if config.MaxSeries == 0 && s.Dropped != 0 {
				t.Fatalf("%d series are dropped without a limit", s.Dropped)
			}
			if bound := seriesBound(r, s); s.Series > bound {
				t.Fatalf("%d series are more than the bound of %d", s.Series, bound)
			}
			checkRanks(t, x, s)
		})
	})
}

// seriesBound is a bound of the series, computed from devices, their readings, and holders.
func seriesBound(r Result, s *Snapshot) int {
	bound := 0
	attributed := 3 + 2 + 1 // gauges, integrals or counters, one link; what the test's sources read
	for _, d := range r.Devices {
		bound += 5 + 2*len(d.Readings) + len(d.Readings) + 2*2 + attributed // values, sources, integrals, unattributed
		for _, share := range d.Shares {
			bound += 1 + len(share.Consumed) + len(share.Holders)
		}
	}
	return bound + (len(s.Claims)+len(s.Pods))*(attributed+3) + 2*len(s.ClaimInfos) + len(s.PodInfos)
}

// families are the ranks' families, the first dropped first.
func families() []string {
	return []string{"dra_pod_allocated_seconds_total", "dra_claim_allocated_seconds_total", "dra_device_allocations", "dra_claim_device_info", "dra_device_info"}
}

// checkRanks holds what is exported to the order in which families are dropped.
func checkRanks(t failer, x exposition, s *Snapshot) {
	t.Helper()
	there := func(name string) bool { return len(x[name]) > 0 }
	expected := map[string]int{
		"dra_pod_allocated_seconds_total": len(s.Pods), "dra_claim_allocated_seconds_total": len(s.Claims), "dra_device_allocations": len(s.Devices),
	}
	for i, name := range families()[:3] {
		if !there(name) && expected[name] > 0 {
			for _, lower := range families()[:i] {
				if there(lower) {
					t.Fatalf("%s is dropped and %s is not", name, lower)
				}
			}
			continue
		}
		if len(x[name]) != expected[name] && there(name) {
			t.Fatalf("%s has %d series, want all %d or none", name, len(x[name]), expected[name])
		}
	}
}

// crowd is a history of a device with many claims, of which some ended at known times.
func crowd(t *testing.T, maxSeries int) *history {
	t.Helper()
	h := newHistory(t)
	for i := range 6 {
		h.hold(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i))
	}
	h.energy(0)
	h.tick(time.Second)
	for i := range 4 { // c0 ends first
		h.free(fmt.Sprintf("c%d", i))
		h.energy(float64(i))
		h.tick(time.Second)
	}
	h.ledger.limit.max = maxSeries
	h.tick(time.Second)
	return h
}

// What ended is given up first, the oldest first, and counted until its retention would have been over.
func TestLimitEvictsTheOldest(t *testing.T) {
	h := crowd(t, 0)
	whole := h.last.Series
	const each = 3 + 3 // allocated, share and energy, of the claim and of the pod
	h = crowd(t, whole-each-1)
	x := scrape(t, h.last)
	for i, want := range []int{0, 0, 1, 1, 1, 1} {
		got := len(x.matching("dra_claim_energy_joules_total", fmt.Sprintf("resourceclaim_name=c%d", i)))
		pods := len(x.matching("dra_pod_energy_joules_total", fmt.Sprintf("pod=p%d", i)))
		if i != 1 && (got != want || pods != want) {
			t.Errorf("c%d has %d series, its pod %d, want %d", i, got, pods, want)
		}
	}
	if h.last.Dropped < each+1 || h.last.Dropped > 2*each || h.last.Series+h.last.Dropped != whole {
		t.Errorf("%d series are dropped of %d, %d are left", h.last.Dropped, whole, h.last.Series)
	}
	for range 3 {
		h.now = h.now.Add(2 * time.Minute)
		h.tick(time.Second)
	}
	if h.last.Dropped != 0 {
		t.Errorf("%d series are dropped after their retention", h.last.Dropped)
	}
}

// Whole families are dropped, pods before claims before devices, and come back only where there is room to spare.
func TestLimitDropsFamilies(t *testing.T) {
	live := func(most int) (*history, exposition) {
		h := newHistory(t)
		h.ledger = NewLedger(LedgerConfig{Retention: testRetention, MaxSeries: most})
		for i := range 5 {
			h.hold(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i))
		}
		h.energy(1)
		x := h.tick(time.Second)
		return h, x
	}
	_, all := live(0)
	whole := all.series()
	dropped := func(x exposition) string {
		var out []string
		for _, name := range families() {
			if len(x[name]) == 0 {
				out = append(out, strings.Split(name, "_")[1])
			}
		}
		return strings.Join(out, " ")
	}
	last := ""
	for most := whole; most > 0; most-- {
		h, x := live(most)
		if h.last.Series > most || h.last.Series+h.last.Dropped != whole {
			t.Errorf("at most %d: %d series, %d dropped of %d", most, h.last.Series, h.last.Dropped, whole)
		}
		if got := dropped(x); got != last {
			if !strings.HasPrefix(got, last) {
				t.Errorf("at most %d: dropped are %q, before %q", most, got, last)
			}
			last = got
		}
	}
	if last != "pod claim device claim device" {
		t.Errorf("in the end %q are dropped", last)
	}

	h, x := live(whole - 1)
	if dropped(x) != "pod" {
		t.Fatalf("dropped are %q", dropped(x))
	}
	h.free("c4") // there is room for all, but hardly
	if h.tick(time.Second); h.ledger.limit.keep == 0 {
		t.Error("families come back where there is no room to spare")
	}
	for i := range 4 {
		h.free(fmt.Sprintf("c%d", i))
	}
	h.tick(time.Second)
	h.now = h.now.Add(testRetention)
	h.tick(time.Second)
	h.hold("c9", "p9")
	if x = h.tick(time.Second); dropped(x) != "" || h.last.Dropped != 0 {
		t.Errorf("with room dropped are %q, %d series", dropped(x), h.last.Dropped)
	}
}

// A device with more readings than anything real shows as many as there may be.
func TestTooManyReadings(t *testing.T) {
	h := newHistory(t)
	for tick := range 3 {
		var readings []driver.Reading
		for i := range 2 * maxReadings {
			readings = append(readings, driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: float64(tick)})
		}
		h.read(readings...)
		x := h.tick(time.Second)
		if got := len(x["dra_device_errors_total"]); got != maxReadings {
			t.Errorf("%d series, want %d", got, maxReadings)
		}
		if want := (RejectedInput{Input: "a", Reason: "too_many", Count: maxReadings}); len(h.joined.Rejected) != 1 || h.joined.Rejected[0] != want {
			t.Errorf("rejected: %v", h.joined.Rejected)
		}
	}
}

// A label that is new at every tick does not make the ledger grow without end.
func TestNewLabelsAreForgotten(t *testing.T) {
	h := newHistory(t)
	for i := range 300 {
		h.read(driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: 1})
		h.tick(time.Minute)
	}
	d := h.ledger.devices[simID("gpu-0")]
	if bound := 2 * int(forget/time.Minute); len(d.meters) > bound || len(d.counters) > bound {
		t.Errorf("%d meters and %d counters are kept, want no more than %d", len(d.meters), len(d.counters), bound)
	}
}

// A history is bounded however fast its holders change and however long no reading comes.
func TestTimelineIsBounded(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	h.energy(0)
	first := h.now
	for i := range 3 * maxSegments {
		h.free(fmt.Sprint("c", i-1))
		h.in.View.Allocations = []podresources.Allocation{allocationOf("gpu-0", fmt.Sprint("c", i%7), fmt.Sprint("p", i%5))}
		h.tick(100 * time.Millisecond)
		if n := len(h.ledger.devices[simID("gpu-0")].timeline); n > maxSegments+2 {
			t.Fatalf("the timeline has %d segments", n)
		}
	}
	h.read(driver.Reading{Quantity: driver.Energy, Value: 10 * h.now.Sub(first).Seconds()})
	x := h.tick(time.Second)
	sums := x.sums()[sumKey{simID("gpu-0").String(), "energy_joules_total", ","}]
	if !closeTo(sums.device, sumOf(sums.claims)+sums.nobody, 0) || !closeTo(sumOf(sums.claims), sumOf(sums.pods), 0) {
		t.Errorf("the device has %v, the claims %v, the pods %v, nobody %v", sums.device, sumOf(sums.claims), sumOf(sums.pods), sums.nobody)
	}
}
