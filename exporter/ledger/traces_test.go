package ledger_test

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
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
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
