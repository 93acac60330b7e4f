package ledger_test

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const gib = 1 << 30

// fitHistory returns the history of claim a, which holds gpu-0 with 80 GiB. The inventory also has
// a partition that is a quarter of such a GPU.
func fitHistory(t *testing.T) *exportertest.History {
	h := exportertest.NewHistory(t)
	gpu := h.In.Inventory[jointest.ID("gpu-0")]
	gpu.Model, gpu.Capacity = "H100", []driver.Amount{{Resource: "memory", Value: 80 * gib}}
	h.In.Inventory[jointest.ID("gpu-0")] = gpu
	h.In.Inventory[jointest.ID("quarter")] = driver.Entry{
		Hardware: driver.Hardware{
			Kind: driver.KindPartition, Model: "H100", Profile: "2g.20gb", Parent: "gpu-1", ParentShare: 0.25,
		},
		Capacity: []driver.Amount{{Resource: "memory", Value: 20 * gib}},
	}
	h.Hold("a", "p0")
	return h
}

// fitting plays ticks of one second, with a utilization and a used memory in GiB.
func fitting(h *exportertest.History, seconds int, utilization, memory float64) {
	fittingEvery(h, time.Second, seconds, utilization, memory)
}

func fittingEvery(h *exportertest.History, pause time.Duration, ticks int, utilization, memory float64) {
	for range ticks {
		h.Read(
			driver.Reading{Quantity: driver.Utilization, Value: utilization},
			driver.Reading{Quantity: driver.MemoryUsed, Value: memory * gib},
		)
		h.Pass(pause)
	}
}

func expectFit(t *testing.T, h *exportertest.History, want fit.Reason) *fit.Advice {
	a := h.Last.Claims[0].Advice
	must.That(t, a != nil && a.Reason == want, "advice %+v, want the reason %q", a, want)
	return a
}

// With a margin of 5 %, a peak of 18 GiB needs 18.9 GiB of the quarter's 20. The utilization is 0.2
// for 4998 s and 0.9 for 2 s. It may exceed the advised activity for 0.1 % of the time, or 5 s.
func TestAdvice(t *testing.T) {
	h := fitHistory(t)
	fitting(h, 60, 0.2, 18)
	x := exportertest.Scrape(t, h.Last)
	expectFit(t, h, fit.NotMeasured) // the advice is that of the first tick
	if got := x.Matching("dra_claim_fit_ratio"); len(got) > 0 {
		t.Fatalf("after 59 seconds: %v", got)
	}
	fitting(h, 2, 0.9, 17.5)
	fittingEvery(h, 10*time.Second, 494, 0.2, 17.5)
	x = exportertest.Scrape(t, h.Last)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Alternative.Name == "2g.20gb" && a.Unused == 0.75 && a.Memory == 18*gib && a.MaxActivity == 0.9,
		"advice %+v", a)
	// A bucket of the distribution is 9 % wide. The reported value is never below the true one.
	expect.That(t, a.Activity >= 0.2 && a.Activity <= 0.2*1.1, "p99.9 of the activity is %v, want 0.2", a.Activity)
	h.Expect(x, map[[2]string]float64{
		{"dra_claim_fit_ratio", "resource=memory"}:             18.0 / 80 / 0.95,
		{"dra_claim_fit_ratio", "resource=activity"}:           a.Activity / 0.95,
		{"dra_claim_fit_unused_ratio", "alternative=2g.20gb"}:  0.75,
		{"dra_claim_fit_unused_ratio", "resourceclaim_name=a"}: 0.75,
	})
	fitting(h, 60, 0.9, 19.2) // 20.2 GiB with the margin
	fitting(h, 60, 0.2, 17)
	expectFit(t, h, fit.Growing)
	fittingEvery(h, 10*time.Second, 600, 0.2, 19)
	x = exportertest.Scrape(t, h.Last)
	if a := expectFit(t, h, fit.NothingSmaller); a.Memory != 19.2*gib || math.Abs(a.Activity-0.9) > 0.09 {
		t.Errorf("after a peak: %+v", a)
	}
	if got := x.Matching("dra_claim_fit_unused_ratio"); len(got) > 0 {
		t.Errorf("after a peak: %v", got)
	}
	h.Free("a")
	fitting(h, 1, 0.2, 17)
	if x = exportertest.Scrape(t, h.Last); len(x.Matching("dra_claim_fit_ratio")) > 0 || h.Last.Claims[0].Advice != nil {
		t.Error("a claim that ended a moment ago has advice")
	}
}

// The advice on an ended claim covers its whole life, even if that was short. It comes at most a
// minute after the last reading of the claim. Only claims that hold devices have metrics of advice.
func TestAdviceForEndedClaim(t *testing.T) {
	h := fitHistory(t)
	c := exportertest.LedgerConfig()
	c.Fit.After = 24 * time.Hour
	h.Ledger = ledger.New(c)
	fitting(h, 120, 0.1, 10)
	fitting(h, 80, 0.2, 18)
	expectFit(t, h, fit.TooShort)
	h.Free("a")
	fitting(h, 1, 0.2, 18)  // it ended in the middle of this second
	fitting(h, 70, 0.9, 79) // of no claim
	x := exportertest.Scrape(t, h.Last)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Memory == 18*gib && a.MaxActivity == 0.2 && a.Alternative.Name == "2g.20gb" && a.Ended != nil,
		"advice %+v", a)
	got := x.Matching("dra_claim_fit_ratio")
	expect.That(t, len(got) == 0, "metrics of a claim that ended: %v", got)

	h.Hold("b", "p1") // too short for advice
	fitting(h, 30, 0.2, 18)
	h.Free("b")
	fitting(h, 130, 0.2, 18)
	if a := h.Last.Claims[1].Advice; a == nil || a.Reason != fit.TooShort {
		t.Errorf("after 30 s: %+v", a)
	}
}

// If two claims hold a device and the use of each is unknown, neither gets advice, also later. The
// use by process is known.
func TestNoAdviceOnDividedUse(t *testing.T) {
	for name, tc := range map[string]struct {
		processes []driver.Process
		want      fit.Reason
	}{
		"divided": {nil, fit.Divided},
		"by process": {
			[]driver.Process{exportertest.Process(1, 0.1, 8*gib), exportertest.Process(2, 0.1, 8*gib)}, fit.Advised,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := fitHistory(t)
			fitting(h, 1, 0.2, 8)
			h.Hold("b", "p1")
			for range 100 {
				h.Read(
					driver.Reading{Quantity: driver.Utilization, Value: 0.2},
					driver.Reading{Quantity: driver.MemoryUsed, Value: 16 * gib},
				)
				if tc.processes != nil {
					h.Run(tc.processes...)
				}
				h.Pass(time.Second)
			}
			h.Free("b")
			fitting(h, 100, 0.2, 16)
			expectFit(t, h, tc.want)
		})
	}
}

// strict returns a ledger with the configuration of the program: there is no advice on claims whose
// memory is read rarely.
func strict() *ledger.Ledger {
	c := exportertest.LedgerConfig()
	c.Fit.MemoryEvery = fit.DefaultMemoryEvery
	return ledger.New(c)
}

// A claim that began before the exporter is judged by what was measured, and the advice says since
// when. A claim that began later has no such time.
func TestAdviceOnWhatBeganBefore(t *testing.T) {
	h := fitHistory(t)
	h.Ledger = strict()
	began := h.Now
	fitting(h, 300, 0.2, 18)
	a := expectFit(t, h, fit.Advised)
	expect.That(t, a.Partial && a.Since.Sub(began).Abs() <= 2*time.Second,
		"it is measured since %v, want %v", a.Since, began)
	h.Free("a")
	fitting(h, 1, 0, 0)
	h.Hold("b", "p0")
	fitting(h, 300, 0.2, 18)
	for i := range h.Last.Claims {
		if a := h.Last.Claims[i].Advice; a != nil && a.Reason != fit.Advised {
			t.Errorf("a claim that began later: %+v", a)
		}
	}
	h = fitHistory(t)
	h.Ledger = strict()
	h.In.View.Allocations[0].AllocatedAt = h.Now
	fitting(h, 300, 0.2, 18)
	if a := expectFit(t, h, fit.Advised); a.Partial {
		t.Errorf("a claim that was measured from its beginning: %+v", a)
	}
}

// A use of 70 GiB for 1 s of every 5 s can be missed by readings every 5 s. There is no advice on
// such readings.
func TestNoAdviceOnMemoryReadRarely(t *testing.T) {
	h := fitHistory(t)
	h.Ledger = strict()
	h.In.View.Allocations[0].AllocatedAt = h.Now
	fittingEvery(h, 5*time.Second, 60, 0.2, 8)
	expectFit(t, h, fit.ReadRarely)
}

// If a claim used links to other devices, a decoder or much memory bandwidth, a smaller device is
// vetoed, no matter how long ago that was.
func TestVetoesAreRemembered(t *testing.T) {
	for veto, read := range map[fit.Veto]func(second int) driver.Reading{
		fit.VetoPeers: func(second int) driver.Reading {
			return driver.Reading{
				Quantity: driver.IOBytes, Labels: driver.Labels{"nvlink", "transmit"}, Value: 200e9 * float64(min(second, 3)),
			}
		},
		fit.VetoEngine: func(second int) driver.Reading {
			busy := 0.0
			if second == 2 {
				busy = 0.9
			}
			return driver.Reading{Quantity: driver.EngineUtilization, Labels: driver.Labels{"decoder"}, Value: busy}
		},
		fit.VetoBandwidth: func(second int) driver.Reading {
			return driver.Reading{Quantity: driver.EngineUtilization, Labels: driver.Labels{"dram"}, Value: 0.5}
		},
	} {
		h := fitHistory(t)
		for second := range 100 {
			h.Read(
				driver.Reading{Quantity: driver.Utilization, Value: 0.2},
				driver.Reading{Quantity: driver.MemoryUsed, Value: 8 * gib}, read(second),
			)
			h.Pass(time.Second)
		}
		if a := expectFit(t, h, fit.NothingSmaller); a.Veto != veto {
			t.Errorf("%s: %+v", veto, a)
		}
	}
}

// sample is the use of a pod's GPU at a time in seconds. A value of -1 is unknown.
type sample struct{ at, busy, memory float64 }

// recordedPods returns recordings of 143 pods of a production service over 22.8 h, by name. See
// traces/README.md beside the recordings.
func recordedPods(t *testing.T) map[string][]sample {
	t.Helper()
	folder := os.Getenv("RECORDED")
	if folder == "" {
		t.Skip("RECORDED names no folder of recordings")
	}
	out := map[string]map[float64]*sample{}
	sampleAt := func(pod string, at float64) *sample {
		if out[pod] == nil {
			out[pod] = map[float64]*sample{}
		}
		if out[pod][at] == nil {
			out[pod][at] = &sample{at: at, busy: -1, memory: -1}
		}
		return out[pod][at]
	}
	recording := func(of string) string { return filepath.Join(folder, "traces", "pod_gpu_"+of+"_anon.csv.gz") }
	eachRow(t, recording("duty_cycle"), func(pod string, at, value float64) {
		sampleAt(pod, at).busy = value / 100
	})
	eachRow(t, recording("memory_used_bytes"), func(pod string, at, value float64) {
		sampleAt(pod, at).memory = value
	})
	pods := map[string][]sample{}
	for name, of := range out {
		for _, at := range slices.Sorted(maps.Keys(of)) {
			pods[name] = append(pods[name], *of[at])
		}
	}
	return pods
}

// eachRow calls do for each row of a recording.
func eachRow(t *testing.T, file string, do func(pod string, at, value float64)) {
	t.Helper()
	f := must.Get(os.Open(file))(t)
	defer func() { _ = f.Close() }()
	z := must.Get(gzip.NewReader(f))(t)
	rows := csv.NewReader(z)
	head := must.Get(rows.Read())(t)
	column := func(name string) int { return slices.Index(head, name) }
	at, value, pod := column("timestamp_anon"), column("value"), column("container_ip")
	for {
		row, err := rows.Read()
		if err == io.EOF {
			return
		}
		must.Do(t, err)
		when, err1 := strconv.ParseFloat(row[at], 64)
		v, err2 := strconv.ParseFloat(row[value], 64)
		if err1 != nil || err2 != nil {
			t.Fatal(row, err1, err2)
		}
		do(row[pod], when, v)
	}
}

// replayed is the result of a replay.
type replayed struct {
	idle   time.Duration // the time in which DRAClaimIdle or DRAClaimIdleMemoryHeld fires
	advice *fit.Advice   // of the first half
	killed bool          // the memory used in the second half exceeds that of the advised device
}

// migOf adds the partitions of a GPU with 80 GiB to an inventory, by NVIDIA's table of profiles
// (MIG User Guide).
func migOf(inventory driver.Inventory) {
	for profile, size := range map[string]struct{ slices, mebibytes float64 }{
		"1g.10gb": {1, 9984}, "1g.20gb": {1, 20096}, "2g.20gb": {2, 20096}, "3g.40gb": {3, 40448}, "4g.40gb": {4, 40448},
		"7g.80gb": {7, 81152},
	} {
		inventory[jointest.ID("gpu-1-"+profile)] = driver.Entry{
			Hardware: driver.Hardware{
				Kind: driver.KindPartition, Model: "H100", Profile: profile, Parent: "gpu-1", ParentShare: size.slices / 7,
			},
			Capacity: []driver.Amount{{Resource: "memory", Value: size.mebibytes * (1 << 20)}},
		}
	}
}

// replay passes what a pod did to a ledger and to the rule of the alerts. The samples are 57 s
// apart, so the vetoes of sampling and of history are off. An alert fires if, for five minutes, the
// claim was held for more than 80 % of the last half hour, and was used for less than 1 % of that
// time.
func replay(pod []sample) replayed {
	const window, held, usedShare, hold = 30 * time.Minute, 0.8, 0.01, 5 * time.Minute
	config := exportertest.LedgerConfig()
	config.Fit = fit.Config{After: time.Second, Margin: 0.05, IdleThreshold: 0.01}
	config.WithoutDistributions, config.WithoutPeaks = true, true
	l := ledger.New(config)
	in := join.Input{
		Inventory: driver.Inventory{jointest.ID("gpu-0"): {
			Hardware: driver.Hardware{UUID: "gpu-0", Model: "H100"},
			Capacity: []driver.Amount{{Resource: "memory", Value: 80 * gib}},
		}},
		View: podresources.View{Allocations: []podresources.Allocation{jointest.Allocation("gpu-0", "a", "p0")}},
	}
	migOf(in.Inventory)
	type total struct {
		at              time.Time
		used, allocated float64
	}
	var out replayed
	var past []total
	var since time.Time
	middle := pod[0].at + (pod[len(pod)-1].at-pod[0].at)/2
	for _, s := range pod {
		now := jointest.Start().Add(time.Duration(s.at-pod[0].at) * time.Second)
		readings := []driver.Reading{}
		if s.busy >= 0 {
			readings = append(readings, driver.Reading{Quantity: driver.Utilization, Value: min(1, s.busy), At: now})
		}
		if s.memory >= 0 {
			readings = append(readings, driver.Reading{Quantity: driver.MemoryUsed, Value: s.memory, At: now})
		}
		in.View.At = now
		in.Sources = []join.SourceSamples{{Name: "trace", Samples: []driver.Sample{
			{Hardware: driver.Hardware{UUID: "gpu-0"}, Readings: readings},
		}}}
		c := &l.Advance(join.Join(in), now).Claims[0]
		if s.at < middle {
			out.advice = c.Advice
		} else if a := out.advice; a != nil && a.Reason == fit.Advised && s.memory > a.Alternative.Memory {
			out.killed = true
		}
		past = append(past, total{now, c.Used, c.Allocated})
		for now.Sub(past[0].at) > window {
			past = past[1:]
		}
		used, allocated := c.Used-past[0].used, c.Allocated-past[0].allocated
		switch {
		case allocated <= held*window.Seconds() || used >= usedShare*allocated:
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= hold && len(past) > 1:
			out.idle += now.Sub(past[len(past)-2].at)
		}
	}
	return out
}

// TestRecordedPods replays the 143 pods. The figures are those of README.md.
func TestRecordedPods(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("make test-deep replays them")
	}
	pods := recordedPods(t)
	maps.DeleteFunc(pods, func(_ string, all []sample) bool { // one has no duty cycle
		return !slices.ContainsFunc(all, func(s sample) bool { return s.busy >= 0 })
	})
	names := slices.Sorted(maps.Keys(pods))
	idle, advised, killed := 0, 0, 0
	var hours time.Duration
	for _, name := range names {
		r := replay(pods[name])
		if r.idle > 0 {
			idle++
			hours += r.idle
		}
		if a := r.advice; a != nil && a.Reason == fit.Advised {
			advised++
			if r.killed {
				killed++
				t.Errorf("%s would have run out of memory: %+v", name, a)
			}
		}
	}
	got := fmt.Sprintf("%d pods: %d idle, for %.0f h together; %d advised smaller, %d killed",
		len(pods), idle, hours.Hours(), advised, killed)
	if want := "143 pods: 130 idle, for 432 h together; 17 advised smaller, 0 killed"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
