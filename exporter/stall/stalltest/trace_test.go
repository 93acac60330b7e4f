package stalltest_test

import (
	"fmt"
	"math"
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

// TestKinds checks that the kinds have names, reasons and sources, that there are as many as the
// rule must be tried with, and that they tell the truth: a healthy one never hangs, a hung one does
// from some second to the end of the day.
func TestKinds(t *testing.T) {
	if n := len(stalltest.Healthy()); n < 60 {
		t.Errorf("%d healthy kinds, want at least 60", n)
	}
	if n := len(stalltest.Hung()); n < 20 {
		t.Errorf("%d kinds that hang, want at least 20", n)
	}
	names := map[string]bool{}
	for _, k := range all() {
		expect.That(t, k.Name != "" && k.Why != "" && k.Source != "" && !names[k.Name],
			"%+v: no name of its own, no reason or no source", k.Name)
		expect.That(t, k.Pod.WorkloadKind != "" && k.Pod.Members >= 1 && k.Devices >= 1,
			"%s: pod %+v with %d devices", k.Name, k.Pod, k.Devices)
		names[k.Name] = true
	}
	length := day
	if testmain.RaceEnabled {
		length = 6 * time.Hour
	}
	for _, k := range stalltest.Healthy() {
		for s := range k.Trace(1, length).Samples {
			if s.Truth == stalltest.Hangs {
				t.Errorf("%s hangs at %v in phase %s", k.Name, s.At, s.Phase)
				break
			}
		}
	}
	for _, k := range stalltest.Hung() {
		hung := 0
		for s := range k.Trace(1, length).Samples {
			if s.Truth == stalltest.Hangs {
				hung++
			} else if hung > 0 {
				t.Errorf("%s goes on at %v after a hang", k.Name, s.At)
				break
			}
		}
		expect.That(t, hung >= int(length.Seconds())/8, "%s hangs for %d s of %v", k.Name, hung, length)
	}
}

// TestValues checks what holds for every device and cgroup: shares are from 0 to 1, counters do not
// fall, power is from the idle level to the limit, energy is its integral, and exactly what the
// telemetry does not measure is absent.
func TestValues(t *testing.T) {
	for _, k := range all() {
		t.Run(k.Name, func(t *testing.T) {
			var last stalltest.Values
			joules := 0.0
			for s := range k.Trace(7, 3*time.Hour).Samples {
				for f, v := range s.Values {
					if err := valid(stalltest.Field(f), v, last[f], &k); err != nil {
						t.Fatalf("%v %v: %v", s.At, stalltest.Field(f), err)
					}
				}
				joules += s.Values[stalltest.Power]
				last = s.Values
			}
			if energy := last[stalltest.Energy]; k.Sees.Measures(stalltest.Energy) && math.Abs(energy/joules-1) > 1e-9 {
				t.Errorf("%v J, want the integral of power, %v", energy, joules)
			}
		})
	}
}

func valid(f stalltest.Field, v, last float64, k *stalltest.Kind) error {
	switch measured := k.Sees.Measures(f); {
	case math.IsNaN(v) == measured:
		return fmt.Errorf("%v, measured %v", v, measured)
	case math.IsNaN(v):
		return nil
	case f < stalltest.MemoryUsed && (v < 0 || v > 1):
		return fmt.Errorf("a share of %v", v)
	case f.IsCounter() && v < last:
		return fmt.Errorf("the counter fell from %v to %v", last, v)
	case f == stalltest.Power && (v < k.Model.IdleWatts*0.9 || v > k.Model.LimitWatts*1.05):
		return fmt.Errorf("%v W on %s", v, k.Model.Name)
	case f == stalltest.MemoryUsed && (v < 0 || v > k.Model.Memory):
		return fmt.Errorf("%v bytes in use of %v", v, k.Model.Memory)
	case f == stalltest.Clock && (v < k.Model.ClockIdle || v > k.Model.ClockMax):
		return fmt.Errorf("%v Hz", v)
	}
	return nil
}

// TestDeterministic checks that a seed gives the same values twice, and another seed others.
func TestDeterministic(t *testing.T) {
	for _, k := range all() {
		sum := func(seed uint64) (sum float64) {
			for s := range k.Trace(seed, 30*time.Minute).Samples {
				sum = sum/2 + s.Values[stalltest.Busy] + s.Values[stalltest.MemoryUsed]/1e9 + s.Values[stalltest.HostCPU]
			}
			return sum
		}
		if a, b := sum(1), sum(1); a != b {
			t.Errorf("%s: %v and %v with the same seed", k.Name, a, b)
		}
		if a, b := sum(1), sum(2); a == b {
			t.Errorf("%s: the same values with two seeds", k.Name)
		}
	}
}

// TestFrom checks that a trace without its beginning goes on as the whole one.
func TestFrom(t *testing.T) {
	k := stalltest.Healthy()[0]
	var whole []stalltest.Sample
	for s := range k.Trace(3, time.Hour).Samples {
		whole = append(whole, *s)
	}
	n := 600
	for s := range k.Trace(3, time.Hour).From(10 * time.Minute).Samples {
		if *s != whole[n] && !math.IsNaN(s.Values[stalltest.Copy]) || s.At != whole[n].At || s.Phase != whole[n].Phase {
			t.Fatalf("%v, want %v", s, whole[n])
		}
		n++
	}
	expect.That(t, n == len(whole), "%d samples, want %d", n, len(whole))
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

// TestTemperature checks that a device which has just worked draws more than one that has long been
// waiting.
func TestTemperature(t *testing.T) {
	var early, late float64
	n := 0
	for _, k := range stalltest.Hung() {
		if k.Name != "hang-spin-quiet-host" {
			continue
		}
		for s := range k.Trace(1, 2*time.Hour).Samples {
			if s.Truth != stalltest.Hangs {
				continue
			}
			switch n++; {
			case n <= 10:
				early += s.Values[stalltest.Power] / 10
			case n > 1200 && n <= 1210:
				late += s.Values[stalltest.Power] / 10
			}
		}
	}
	expect.That(t, early-late >= 3 && early-late <= 12, "%.1f W after the work, %.1f W twenty minutes later", early, late)
}

// TestCadence checks that a loop of phases keeps its share of time: 1.2 s of the CPU and 50 ms of
// the device, as seconds see it.
func TestCadence(t *testing.T) {
	got := phaseMeansOfAll(t, "dataloader-starved")
	want := 0.05 / 1.25 * 0.985
	expect.That(t, math.Abs(got[stalltest.Busy]-want) <= 0.005, "busy %v, want %v", got[stalltest.Busy], want)
}

// TestLoops checks that loops end after their time, and that a job which has ended leaves its claim
// without a context.
func TestLoops(t *testing.T) {
	for name, want := range map[string]map[time.Duration]string{
		"torch-autotunes":  {10 * time.Minute: "compile measure", 20 * time.Minute: "steps", 20 * time.Hour: "steps"},
		"hang-retry-spins": {20 * time.Minute: "steps", 5 * time.Hour: "collective abort"},
		"train-bf16": {
			20 * time.Second: "start", 20 * time.Minute: "steps", 30*time.Minute + 55*time.Second: "checkpoint steps",
		},
	} {
		for _, k := range all() {
			if k.Name != name {
				continue
			}
			for s := range k.Trace(2, day).Samples {
				if phases, ok := want[s.At.Sub(stalltest.Start())]; ok && !strings.Contains(phases, s.Phase) {
					t.Errorf("%s at %v: phase %s, want %s", name, s.At, s.Phase, phases)
				}
			}
		}
	}
	short := stalltest.Healthy()[0]
	short.Phases = short.Phases[:1]
	ended := 0
	for s := range short.Trace(1, time.Hour).Samples {
		if s.Phase != "ended" {
			continue
		}
		ended++
		must.That(t, s.Truth == stalltest.Idle && (s.Values[stalltest.Clock] == short.Model.ClockIdle || ended <= 1),
			"%+v after the end", s)
	}
	expect.That(t, ended >= 3500, "ended for %d s of an hour", ended)
}

func phaseMeansOfAll(t *testing.T, kind string) stalltest.Values {
	t.Helper()
	for _, k := range all() {
		if k.Name == kind {
			return means(k.Trace(5, 2*time.Hour), func(*stalltest.Sample) bool { return true })
		}
	}
	t.Fatalf("no kind %s", kind)
	return stalltest.Values{}
}

// BenchmarkDay generates a day of each kind.
func BenchmarkDay(b *testing.B) {
	b.ReportAllocs()
	samples := 0
	for b.Loop() {
		for _, k := range all() {
			for range k.Trace(1, day).Samples {
				samples++
			}
		}
	}
	b.ReportMetric(float64(samples)/float64(b.N), "samples/op")
}
