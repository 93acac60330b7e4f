package stalltest_test

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

const day = 24 * time.Hour

func all() []stalltest.Kind { return append(stalltest.Healthy(), stalltest.Hung()...) }

// Kinds tell the truth: a healthy one never hangs, a hung one does from some second to the end of
// the day.
func TestKinds(t *testing.T) {
	names := map[string]bool{}
	for _, k := range all() {
		hung, ends := 0, false
		for s := range k.Trace(1, day).Samples {
			if s.Truth == stalltest.Hangs {
				hung++
			} else if hung > 0 {
				ends = true
			}
		}
		hangs := strings.HasPrefix(k.Name, "hang-")
		expect.That(t, !names[k.Name] && k.Why != "" && k.Source != "" && !ends && (hung > 0) == hangs &&
			(!hangs || hung >= int(day.Seconds())/8), "%s hangs for %d s, and ends: %v", k.Name, hung, ends)
		names[k.Name] = true
	}
}

func phaseMeans(t *testing.T, kind, phase string) stalltest.Values {
	t.Helper()
	for _, k := range all() {
		if k.Name == kind {
			return means(k.Trace(5, 2*time.Hour), func(s *stalltest.Sample) bool { return s.Phase == phase })
		}
	}
	t.Fatalf("no kind %s", kind)
	return stalltest.Values{}
}

// means returns the means of the chosen samples: of counters, what a second adds. The first and the
// last of a row of chosen samples are left out: they may be of two phases.
func means(trace stalltest.Trace, choose func(*stalltest.Sample) bool) stalltest.Values {
	var sum, pending, last stalltest.Values
	n, chosen := 0.0, 0
	for s := range trace.Samples {
		switch {
		case !choose(s):
			chosen = 0
		case chosen < 2:
			chosen++
		default:
			n++
			for f := range sum {
				sum[f] += pending[f]
			}
		}
		pending = s.Values
		for f := range pending {
			if stalltest.Field(f).IsCounter() {
				pending[f] -= last[f]
			}
		}
		last = s.Values
	}
	for f := range sum {
		sum[f] /= n
	}
	return sum
}

// TestEfficiencies integrates the traces and compares with the figures by hand. The product of
// means must be wrong for some, or they test nothing.
func TestEfficiencies(t *testing.T) {
	wrong := 0
	for _, e := range stalltest.Efficiencies() {
		n, tensor, clock, flops := 0.0, 0.0, 0.0, 0.0
		for s := range e.Trace(1, 4*time.Hour).Samples {
			share := s.Values[stalltest.Clock] / s.Values[stalltest.ClockMax]
			n++
			tensor += s.Values[stalltest.Tensor]
			clock += share
			flops += s.Values[stalltest.Tensor] * share
		}
		expect.That(t, math.Abs(flops/n-e.FLOPs) <= 0.005, "%s: %.4f, want %.4f", e.Name, flops/n, e.FLOPs)
		if means := tensor / n * clock / n; math.Abs(means-e.Means) > 0.002 {
			t.Errorf("%s: the product of means is %.4f, want %.4f", e.Name, means, e.Means)
		}
		if math.Abs(e.Means-e.FLOPs) > 0.05 {
			wrong++
		}
	}
	expect.That(t, wrong >= 2, "the product of means is wrong for %d jobs, want at least 2", wrong)
}

// TestLevels compares kinds with the recordings that they name: another source of truth than the
// generator's own tables.
func TestLevels(t *testing.T) {
	recordings := must.Get(stalltest.Recordings(os.DirFS("testdata")))(t)
	for _, test := range []struct{ kind, phase, workload, device string }{
		{"train-bf16", "steps", "train_bf16", "NVIDIA H200"},
		{"fp32-monte-carlo", "simulate", "mc_fp32", "NVIDIA H100 80GB HBM3"},
		{"integer-hash", "search", "int_hash", "NVIDIA H100 80GB HBM3"},
		{"one-block-integers", "work", "one_block_int", "NVIDIA H100 80GB HBM3"},
		{"dependent-loads", "walk", "pointer_chase", "NVIDIA H100 80GB HBM3"},
		{"hang-spin-quiet-host", "hang", "hang_spin_device", "NVIDIA H100 80GB HBM3"},
		{"hang-spin-quiet-host", "hang", "hang_after_training", "NVIDIA H200"},
		{"hang-host-flag", "hang", "hang_spin_hostflag", "NVIDIA H100 80GB HBM3"},
		{"hang-stopped", "hang", "hang_stopped", "NVIDIA H200"},
		{"hang-dataloader-futex", "hang", "hang_idle", "NVIDIA H200"},
		{"hang-retry-loop", "hang", "hang_retry_loop", "NVIDIA H100 80GB HBM3"},
	} {
		t.Run(test.kind+" "+test.device, func(t *testing.T) {
			want := recordedMeans(t, recordings, test.workload, test.device)
			got := phaseMeans(t, test.kind, test.phase)
			for _, f := range []stalltest.Field{
				stalltest.Busy, stalltest.SM, stalltest.Tensor, stalltest.FP64, stalltest.FP32, stalltest.FP16, stalltest.Int,
				stalltest.DRAM, stalltest.Power, stalltest.Clock,
				stalltest.PCIeReceived, stalltest.PCIeTransmitted, stalltest.HostCPU,
			} {
				expect.That(t, math.Abs(got[f]-want[f]) <= tolerance(f, want[f]), "%v: %.4g, recorded %.4g", f, got[f], want[f])
			}
		})
	}
}

// tolerance allows for different sizes of models in traffic and host work, and for the difference
// between H100 and H200 in power.
func tolerance(f stalltest.Field, want float64) float64 {
	switch f {
	case stalltest.Power:
		return 0.08 * want
	case stalltest.Clock:
		return 0.05 * want
	case stalltest.PCIeReceived, stalltest.PCIeTransmitted:
		return 0.35*want + 0.6e6
	case stalltest.HostCPU:
		return 1.1
	default:
		return 0.12*want + 2e-4
	}
}

func recordedMeans(t *testing.T, all []stalltest.Recording, workload, device string) stalltest.Values {
	t.Helper()
	for _, r := range all {
		if r.Workload == workload && r.Model.Name == device {
			return means(r.Trace(time.Minute, 10*time.Minute), func(s *stalltest.Sample) bool {
				return s.At.Sub(stalltest.Start()) > 5*time.Minute
			})
		}
	}
	t.Fatalf("no recording %s on %s", workload, device)
	return stalltest.Values{}
}

// TestOwnTraffic checks what reading the counters adds on PCIe: nothing before the first context,
// and as much as was recorded beside a kernel that has none of its own.
func TestOwnTraffic(t *testing.T) {
	recordings := must.Get(stalltest.Recordings(os.DirFS("testdata")))(t)
	want := recordedMeans(t, recordings, "one_block_int", "NVIDIA H100 80GB HBM3")
	got := phaseMeans(t, "one-block-integers", "work")
	for _, f := range []stalltest.Field{stalltest.PCIeReceived, stalltest.PCIeTransmitted} {
		expect.That(t, math.Abs(got[f]-want[f]) <= 0.15*want[f], "%v: %.4g, recorded %.4g", f, got[f], want[f])
		if v := phaseMeans(t, "dev-pod-sleeps", "sleep")[f]; v != 0 {
			t.Errorf("%v: %v without a context", f, v)
		}
	}
}

// TestFallingCounter checks that a counter that was reset adds nothing, and that the counters of a
// new process do not go on from those of the last one.
func TestFallingCounter(t *testing.T) {
	recordings, err := stalltest.ParseRecordings(strings.NewReader(`{"device": "NVIDIA H200", "segments": [
		{"workload": "idle_no_context", "seconds": [{"energy_joules_total": 100}]},
		{"workload": "w", "seconds": [
			{"energy_joules_total": 170, "host_state": "R", "host_cpu_seconds": 5},
			{"energy_joules_total": 20, "host_state": "R", "host_cpu_seconds": 5.5}]}]}`))
	must.Do(t, err)
	seconds := recordings[0].Seconds
	for i, want := range []struct{ joules, cpu float64 }{{70, 0}, {0, 0.5}} {
		if got := seconds[i]; got[stalltest.Energy] != want.joules || got[stalltest.HostCPU] != want.cpu {
			t.Errorf("second %d: %v J, %v s, want %v", i, got[stalltest.Energy], got[stalltest.HostCPU], want)
		}
	}
	if v := seconds[1][stalltest.HostAnon]; !math.IsNaN(v) {
		t.Errorf("memory that was not recorded: %v", v)
	}
}

func TestMain(m *testing.M) { testmain.Main(m) }
