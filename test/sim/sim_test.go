package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start() time.Time { return time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC) }

// devices are one of each kind.
func devices() []Device {
	list := []Device{GPU("gpu.example.com", "gpu-0", 1), NIC("dra.net", "eth0", "0000:41:00.0")}
	list = append(list, Partitioned(GPU("gpu.example.com", "gpu-1", 2), 4)...)
	sick := GPU("gpu.example.com", "gpu-2", 3)
	sick.Healthy, sick.Unhealthy, sick.UncorrectedErrorEvery = false, true, 2*time.Second
	return append(list, sick)
}

func machine() *Machine { return New(start(), 1, devices()...) }

// TestConservation plays random holders on all devices, and compares the truth with the readings of
// each time.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, holds := machine(), map[string]bool{}
		held := []string{"gpu-0", "eth0", "gpu-1-partition-0", "gpu-1-partition-3"}
		workloads := []string{"a", "b", "c"}
		now := start()
		loads := map[string]float64{} // device → midpoints of its load
		spins := map[string]float64{} // and of whether it spins
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			step := time.Duration(rapid.IntRange(0, 50).Draw(t, "step")) * grid
			for _, d := range m.Devices() {
				loads[d.Name] += midpoints(0, step, func(at time.Duration) float64 { return m.byName[d.Name].load(now.Add(at)) })
				spins[d.Name] += midpoints(0, step, func(at time.Duration) float64 { return m.byName[d.Name].spin(now.Add(at)) })
			}
			now = now.Add(step)
			device, workload := rapid.SampledFrom(held).Draw(t, "device"), rapid.SampledFrom(workloads).Draw(t, "workload")
			w := Workload{
				Name: workload, Group: rapid.SampledFrom([]string{"", "shared"}).Draw(t, "group"),
				Weight: rapid.SampledFrom([]float64{0, 1, 10, 20}).Draw(t, "weight"), Load: anyProfile(t),
			}
			if holds[device+workload] {
				must.Do(t, m.End(device, workload, now))
			} else {
				must.Do(t, m.Begin(device, w, now))
			}
			holds[device+workload] = !holds[device+workload]
		}
		for _, d := range m.Devices() {
			checkDevice(t, m, d, workloads, now, loads[d.Name], spins[d.Name])
		}
	})
}

func checkDevice(t *rapid.T, m *Machine, d Device, workloads []string, now time.Time, busy, spun float64) {
	total := m.Total(d.Name, now)
	var sum Truth
	for _, w := range workloads {
		sum = sum.Plus(m.TruthOn(d.Name, w, now))
	}
	if d.Compute && !near(total.ActiveSeconds, busy+spun) {
		t.Errorf("%s: active for %v s, its load comes to %v s", d.Name, total.ActiveSeconds, busy+spun)
	}
	elapsed := now.Sub(start()).Seconds()
	if want := d.joules(elapsed, busy, spun); d.MaxWatts > 0 && !near(total.Joules, want) {
		t.Errorf("%s: %v J, its power comes to %v J", d.Name, total.Joules, want)
	}
	partitioned := !d.Compute && d.MaxWatts > 0 // the work of its parts is not charged to a holder here
	if !partitioned && (!near(sum.ShareSeconds, total.HeldSeconds) || !near(sum.ReceiveBytes, total.ReceiveBytes) ||
		!near(sum.ActiveSeconds, total.ActiveSeconds)) {
		t.Errorf("%s: the workloads' parts are %+v of %+v", d.Name, sum, total)
	}
	if idle := total.Joules - sum.Joules; d.Compute && d.MaxWatts > 0 &&
		!near(idle, d.IdleWatts*(elapsed-total.HeldSeconds)) {
		t.Errorf("%s: %v J while nobody held it for %v s", d.Name, idle, elapsed-total.HeldSeconds)
	}
}

// TestTruth checks numbers that are easy to compute by hand.
func TestTruth(t *testing.T) {
	m := machine()
	at := func(seconds int) time.Time { return start().Add(time.Duration(seconds) * time.Second) }
	must.Do(t, m.Begin("gpu-0", Workload{Name: "a", Weight: 20, Load: Constant(0.5)}, at(10)))
	must.Do(t, m.Begin("gpu-0", Workload{Name: "b", Weight: 60, Load: Constant(1)}, at(20)))
	must.Do(t, m.Begin("gpu-0", Workload{Name: "admin", Load: Constant(1)}, at(20)))
	must.Do(t, m.End("gpu-0", "a", at(30)))
	must.Do(t, m.SetLoad("gpu-0", "b", Idle(), at(30)))

	// From 20 to 30 s the load is 1/4·0.5 + 3/4·1 = 0.875; of it a has 1/4 and b 3/4.
	gpu := Truth{HeldSeconds: 20, ShareSeconds: 12.5, ActiveSeconds: 5 + 10*0.875/4}
	gpu.Joules = 70*12.5 + 630*gpu.ActiveSeconds
	gpu.ReceiveBytes, gpu.TransmitBytes = 12e9*gpu.ActiveSeconds, 5e9*gpu.ActiveSeconds
	expect.Equal(t, "a", gpu, m.TruthOn("gpu-0", "a", at(40)))
	b := m.TruthOn("gpu-0", "b", at(40))
	expect.That(t, b.HeldSeconds == 20 && b.ShareSeconds == 17.5 && b.ActiveSeconds == 10*0.875*3/4, "b: %+v", b)
	expect.Equal(t, "admin access", Truth{HeldSeconds: 20}, m.TruthOn("gpu-0", "admin", at(40)))
	m.Forget("a")
	expect.Is(t, m.TruthOn("gpu-0", "a", at(40)), Truth{}, "forgotten")
}

// TestHang checks a GPU whose job hangs: it is as busy as before, at a power near that of an idle
// GPU, and without traffic.
func TestHang(t *testing.T) {
	m := machine()
	w := Workload{Name: "a", Weight: 1, Load: Hang(10*time.Second, Constant(1))}
	must.Do(t, m.Begin("gpu-0", w, start()))
	now := start().Add(10 * time.Second)
	source := NewSource(m, Options{Now: func() time.Time { return now }, Window: time.Second, ActiveCounter: true})
	read := func() map[string]float64 {
		samples := must.Get(source.Sample(t.Context()))(t)
		out := map[string]float64{}
		for _, r := range samples[0].Readings {
			out[r.Quantity.Spec().Name+" "+r.Labels[0]] += r.Value
		}
		return out
	}
	before := read()
	now = now.Add(10 * time.Second)
	after := read()
	for name, want := range map[string][2]float64{ // while it works, and in the ten seconds of the hang
		"utilization ": {1, 1}, "power ": {700, 133}, "engine_utilization dram": {0.5, 0}, "engine_utilization sm": {1, 0.1},
	} {
		expect.That(t, near(before[name], want[0]) && near(after[name], want[1]),
			"%s: %v, then %v, want %v", name, before[name], after[name], want)
	}
	for name, want := range map[string]float64{"active_seconds ": 10, "energy ": 1330, "io_bytes pcie": 0} {
		if got := after[name] - before[name]; math.Abs(got-want) > 1e-6 {
			t.Errorf("%s rose by %v, want %v", name, got, want)
		}
	}
	if got := m.TruthOn("gpu-0", "a", now); !near(got.ActiveSeconds, 20) || !near(got.Joules, 7000+1330) {
		t.Errorf("the truth is %+v", got)
	}
}

// TestRefresh: readings are constant between two refreshes, and are those of the time of the
// refresh.
func TestRefresh(t *testing.T) {
	m := machine()
	now := start()
	exact := NewSource(m, Options{Now: func() time.Time { return now }})
	slow := NewSource(m, Options{Now: func() time.Time { return now }, Refresh: 30 * time.Second})
	sample := func(s *Source) []driver.Sample {
		return must.Get(s.Sample(t.Context()))(t)
	}
	must.Do(t, m.Begin("gpu-0", Workload{Name: "a", Weight: 1, Load: Ramp(0, 1, time.Minute)}, start()))
	now = start().Add(30 * time.Second)
	want := sample(exact)
	for _, seconds := range []int{30, 31, 59} {
		now = start().Add(time.Duration(seconds) * time.Second)
		if seconds == 31 {
			must.Do(t, m.End("gpu-0", "a", now))
		}
		expect.Equal(t, fmt.Sprintf("at %d s", seconds), want, sample(slow))
	}
	now = start().Add(time.Minute)
	expect.Equal(t, "renewed", sample(exact), sample(slow))
}

// grid is the length of a cell. The pieces of profiles in tests begin and end at bounds of cells.
const grid = 100 * time.Millisecond

// anyProfile draws a profile whose pieces are whole cells.
func anyProfile(t *rapid.T) Profile {
	level := rapid.Float64Range(0, 1)
	cells := func(label string) time.Duration { return time.Duration(rapid.IntRange(0, 40).Draw(t, label)) * grid }
	pieces := func(label string) course {
		var list []piece
		for range rapid.IntRange(0, 4).Draw(t, label) {
			list = append(list, piece{cells("length"), level.Draw(t, "from"), level.Draw(t, "to")})
		}
		return newCourse(list...)
	}
	p := Profile{once: pieces("once"), loop: pieces("loop")}
	return rapid.SampledFrom([]Profile{
		p, Constant(level.Draw(t, "constant")), Ramp(level.Draw(t, "low"), level.Draw(t, "high"), cells("over")),
		After(cells("delay"), p), Hang(cells("hangs")+grid, p), After(cells("delay"), Hang(cells("hangs")+grid, p)),
	}).Draw(t, "profile")
}

// midpoints integrates a function that is linear within each cell. The result is exact except for
// rounding.
func midpoints(from, to time.Duration, f func(time.Duration) float64) float64 {
	sum := 0.0
	for at := from; at < to; at += grid {
		sum += f(at+grid/2) * grid.Seconds()
	}
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func TestProfileIntegral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyProfile(t)
		until := time.Duration(rapid.IntRange(0, 600).Draw(t, "until")) * grid
		if got, want := p.Integral(until), midpoints(0, until, p.Level); !near(got, want) {
			t.Errorf("integral until %v: %v, want %v", until, got, want)
		}
		spins := func(at time.Duration) float64 {
			if p.Spins(at) {
				return 1
			}
			return 0
		}
		if got, want := p.Spun(until), midpoints(0, until, spins); !near(got, want) {
			t.Errorf("spun until %v: %v s, want %v", until, got, want)
		}
	})
}
