package exposition_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Invariant 8: the series are no more than devices, quantities and holders make, and no more than
// --max-series.
func TestBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{0, 0, 1, 30, 60, 120}).Draw(t, "max")
		w := exportertest.NewWorld(t)
		l, limiter := ledger.New(exportertest.LedgerConfig()), exposition.NewLimiter(limit, exportertest.Everything())
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step(exportertest.Pauses())
			r := join.Join(w.Input())
			s := limiter.Apply(l, l.Advance(r, w.Now))
			x := exportertest.Scrape(t, s)
			if got := x.Series(); got != s.Series {
				t.Fatalf("%d series are exported, %d counted", got, s.Series)
			}
			if got := x.One(t, "dra_exporter_series"); got != float64(s.Series) {
				t.Fatalf("dra_exporter_series is %v, want %d", got, s.Series)
			}
			if got := x.One(t, "dra_exporter_series_dropped"); got != float64(s.Dropped) {
				t.Fatalf("dra_exporter_series_dropped is %v, want %d", got, s.Dropped)
			}
			must.That(t, limit <= 0 || s.Series <= limit, "%d series are exported, at most %d may", s.Series, limit)
			if limit == 0 && s.Dropped != 0 {
				t.Fatalf("%d series are dropped without a limit", s.Dropped)
			}
			bound := seriesBound(r, s)
			must.That(t, s.Series <= bound, "%d series are more than the bound of %d", s.Series, bound)
			checkRanks(t, x, s)
		}
	})
}

// seriesBound is a bound of the series, computed from devices, their readings, and holders.
func seriesBound(r join.Result, s *exposition.Snapshot) int {
	bound := 0
	attributed := 3 + 2 + 1 // gauges, integrals or counters, one link: the readings of the test's sources
	for _, d := range r.Devices {
		bound += 5 + 2*len(d.Readings) + len(d.Readings) + 2*2 + attributed // values, sources, integrals, unattributed
		for _, share := range d.Shares {
			bound += 1 + len(share.Consumed) + len(share.Holders)
		}
	}
	const (
		peaks         = 2 // of power and of memory
		distributions = 3 // of gauges
		times         = 2 // allocated, alone and as a share
		ofClaims      = 3 // dra_claim_device_info, when it was used last, and for how long
		lives         = 2 * 11
	)
	ofUnclaimed := attributed + times + 2 // of a pod without a claim: its part, its use, and when it was last
	for _, pod := range s.Pods {
		if pod.Unclaimed {
			bound += ofUnclaimed
		}
	}
	holders := (len(s.Claims) + len(s.Pods)) * (attributed + peaks + times)
	bound += holders + len(s.Claims)*(distributions+ofClaims) + lives*len(s.Lives)
	return bound + 2*len(s.ClaimInfos) + len(s.PodInfos)
}

// families are the ranks' families, the first dropped first.
func families() []string {
	return []string{
		"dra_pod_allocated_seconds_total", "dra_claim_allocated_seconds_total", "dra_device_allocations",
		"dra_claim_device_info", "dra_device_info",
	}
}

// checkRanks checks the exported families against the order in which they are dropped.
func checkRanks(t exportertest.TB, x exportertest.Scraped, s *exposition.Snapshot) {
	t.Helper()
	there := func(name string) bool { return len(x[name]) > 0 }
	expected := map[string]int{
		"dra_pod_allocated_seconds_total": len(s.Pods), "dra_claim_allocated_seconds_total": len(s.Claims),
		"dra_device_allocations": len(s.Devices),
	}
	for i, name := range families()[:3] {
		if !there(name) && expected[name] > 0 {
			for _, lower := range families()[:i] {
				must.That(t, !there(lower), "%s is dropped and %s is not", name, lower)
			}
			continue
		}
		if len(x[name]) != expected[name] && there(name) {
			t.Fatalf("%s has %d series, want all %d or none", name, len(x[name]), expected[name])
		}
	}
}

// crowd is a history of a device with many claims, some of which ended at known times.
func crowd(t *testing.T, maxSeries int) *exportertest.History {
	h := exportertest.NewHistory(t)
	for i := range 6 {
		h.Hold(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i))
	}
	h.Energy(0)
	h.Pass(time.Second)
	for i := range 4 { // c0 ends first
		h.Free(fmt.Sprintf("c%d", i))
		h.Energy(float64(i))
		h.Pass(time.Second)
	}
	h.Limiter = exposition.NewLimiter(maxSeries, exportertest.Everything())
	h.Pass(time.Second)
	return h
}

// Ended holders are dropped first, the oldest before others, and counted until their retention
// would have been over.
func TestLimitEvictsTheOldest(t *testing.T) {
	h := crowd(t, 0)
	whole := h.Last.Series
	const each = 3 + 3 // allocated, share and energy, of the claim and of the pod
	h = crowd(t, whole-each-1)
	x := exportertest.Scrape(t, h.Last)
	for i, want := range []int{0, 0, 1, 1, 1, 1} {
		got := len(x.Matching("dra_claim_energy_joules_total", fmt.Sprintf("resourceclaim_name=c%d", i)))
		pods := len(x.Matching("dra_pod_energy_joules_total", fmt.Sprintf("pod=p%d", i)))
		expect.That(t, i == 1 || got == want && pods == want, "c%d has %d series, its pod %d, want %d", i, got, pods, want)
	}
	expect.That(t, h.Last.Dropped > each && h.Last.Dropped <= 2*each && h.Last.Series+h.Last.Dropped == whole,
		"%d series are dropped of %d, %d are left", h.Last.Dropped, whole, h.Last.Series)
	for range 3 {
		h.Now = h.Now.Add(2 * time.Minute)
		h.Pass(time.Second)
	}
	expect.Is(t, h.Last.Dropped, 0, "series are dropped after their retention")
}

// Whole families are dropped, pods before claims before devices, and come back only where there is
// room to spare.
func TestLimitDropsFamilies(t *testing.T) {
	crowd := func(most, claims int) (*exportertest.History, exportertest.Scraped) {
		h := exportertest.NewHistory(t)
		h.Ledger = ledger.New(ledger.Config{Retention: exportertest.Retention})
		h.Limiter = exposition.NewLimiter(most, exportertest.Everything())
		for i := range claims {
			h.Hold(fmt.Sprintf("c%d", i), fmt.Sprintf("p%d", i))
		}
		h.Energy(1)
		x := h.Tick(time.Second)
		return h, x
	}
	live := func(most int) (*exportertest.History, exportertest.Scraped) { return crowd(most, 5) }
	_, all := live(0)
	whole := all.Series()
	dropped := func(x exportertest.Scraped) string {
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
		expect.That(t, h.Last.Series <= most && h.Last.Series+h.Last.Dropped == whole,
			"at most %d: %d series, %d dropped of %d", most, h.Last.Series, h.Last.Dropped, whole)
		if got := dropped(x); got != last {
			expect.That(t, strings.HasPrefix(got, last), "at most %d: dropped are %q, before %q", most, got, last)
			last = got
		}
	}
	expect.That(t, last == "pod claim device claim device", "in the end %q are dropped", last)

	const many = 30
	_, all = crowd(0, many)
	h, x := crowd(all.Series()-1, many)
	must.That(t, dropped(x) == "pod", "dropped are %q", dropped(x))
	h.Free("c0") // there is room for all, but hardly
	if x = h.Tick(time.Second); dropped(x) != "pod" {
		t.Error("families come back where there is no room to spare")
	}
	// Recently ended holders do not keep a family from returning: they are dropped, although there is
	// room for them.
	most := 0
	for _, limited := range []bool{false, true} {
		h, x = crowd(most, many)
		if limited && dropped(x) == "" {
			t.Fatal("no family is dropped")
		}
		for i := range many - 2 {
			h.Free(fmt.Sprintf("c%d", i))
		}
		x = h.Tick(time.Second)
		most = h.Last.Series * 100 / 95
	}
	expect.That(t, dropped(x) == "", "where most have ended, dropped are %q", dropped(x))
	h.Now = h.Now.Add(exportertest.Retention)
	h.Pass(time.Second)
	h.Hold("c99", "p99")
	if x = h.Tick(time.Second); dropped(x) != "" || h.Last.Dropped != 0 {
		t.Errorf("with room dropped are %q, %d series", dropped(x), h.Last.Dropped)
	}
}
