// Package exportertest runs join, ledger and exposition together for tests: step by step
// ([History]), or with random histories of a node ([World], [Replay], [Twins]). [Scrape] parses the
// exposition.
package exportertest

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// History advances a ledger step by step, with one device, gpu-0, and the devices that a test adds.
type History struct {
	t       *testing.T
	Ledger  *ledger.Ledger
	Limiter *exposition.Limiter
	Now     time.Time // of the next tick
	// In is the input. Its view has holders and At, but not yet the start and end of each hold.
	In      join.Input
	Changes []podresources.Change // pods and CDI specs that appeared or disappeared
	Watched bool                  // Changes has the ends of all pods
	Dates   *Dates                // sets the start and end of each hold
	Last    *exposition.Snapshot  // of the last tick
	Joined  join.Result           // of the last tick
}

// Dates sets the start and end of each hold, as a node does. It passes the same slice to
// [holders.Dates] while the kubelet's answer is the same.
type Dates struct {
	dates holders.Dates
	last  []podresources.Allocation
}

// Date returns a view with the start and end of each hold, at the time now. It changes neither
// argument.
func (d *Dates) Date(allocations []podresources.Allocation, signs holders.Signs, now time.Time) podresources.View {
	answer := slices.Clone(allocations)
	slices.SortStableFunc(answer, podresources.Allocation.Compare)
	if d.last == nil || !reflect.DeepEqual(answer, d.last) {
		for i := range answer {
			answer[i].Holders = slices.Clone(answer[i].Holders)
		}
		d.last = answer
	}
	return d.dates.Date(d.last, signs, now)
}

// Restart replaces the ledger with a new one that continues from the state of the old one and its
// holds, as a new process does.
func (h *History) Restart(k ledger.Kept, now time.Time) {
	h.Now, h.Ledger, h.Dates, h.Changes = now, ledger.New(LedgerConfig()), &Dates{}, nil
	must.Do(h.t, h.Ledger.Restore(k, now))
	h.Resume(k)
}

// Resume continues the holds of the restored ledger.
func (h *History) Resume(k ledger.Kept) {
	if holds, continues := h.Ledger.Resumed(); continues {
		h.Dates.dates.Resume(holds, k.Time)
	}
}

// NewHistory returns a history without readings and without holders.
func NewHistory(t *testing.T) *History {
	return &History{
		t: t, Ledger: ledger.New(LedgerConfig()), Limiter: exposition.NewLimiter(0, Everything()), Now: jointest.Start(),
		Dates: &Dates{},
		In: join.Input{
			Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
			Sources:   []join.SourceSamples{{Name: "a"}},
		},
	}
}

// Tick advances the ledger with the input and a new answer of the kubelet, scrapes, and then adds
// a pause to the time.
func (h *History) Tick(pause time.Duration) Scraped {
	h.In.View.At = h.Now
	return h.TickWithoutAnswer(pause)
}

// Pass is Tick without the scrape, which takes most of a tick's time.
func (h *History) Pass(pause time.Duration) {
	h.In.View.At = h.Now
	h.Advance()
	h.Now = h.Now.Add(pause)
}

// TickWithoutAnswer is Tick without a new answer of the kubelet.
func (h *History) TickWithoutAnswer(pause time.Duration) Scraped {
	h.Advance()
	h.Now = h.Now.Add(pause)
	return Scrape(h.t, h.Last)
}

// Advance advances the ledger with the input, without a scrape.
func (h *History) Advance() {
	in := h.In
	signs := holders.Signs{At: in.View.At, Changes: h.Changes, Watched: h.Watched}
	in.View = h.Dates.Date(in.View.Allocations, signs, h.Now)
	h.Joined = join.Join(in)
	h.Last = h.Limiter.Apply(h.Ledger, h.Ledger.Advance(h.Joined, h.Now))
}

// Read replaces gpu-0's readings of the first source. Readings without a time get the present time.
func (h *History) Read(readings ...driver.Reading) { h.ReadOf("gpu-0", readings...) }

// ReadOf replaces a device's readings of the first source.
func (h *History) ReadOf(uuid string, readings ...driver.Reading) {
	readings = slices.Clone(readings)
	for i := range readings {
		if readings[i].At.IsZero() {
			readings[i].At = h.Now
		}
	}
	samples := slices.DeleteFunc(
		slices.Clone(h.In.Sources[0].Samples), func(s driver.Sample) bool { return s.Hardware.UUID == uuid },
	)
	samples = append(samples, driver.Sample{Hardware: driver.Hardware{UUID: uuid}, Readings: readings})
	h.In.Sources[0].Samples = samples
}

// Energy replaces gpu-0's readings with a value of its energy counter.
func (h *History) Energy(joules float64) {
	h.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
}

// Hold gives gpu-0 to a claim with the given pods.
func (h *History) Hold(claim string, pods ...string) *podresources.Allocation {
	h.Free(claim)
	h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation("gpu-0", claim, pods...))
	return &h.In.View.Allocations[len(h.In.View.Allocations)-1]
}

// Free removes a claim from all devices.
func (h *History) Free(claim string) {
	h.In.View.Allocations = slices.DeleteFunc(
		slices.Clone(h.In.View.Allocations), func(a podresources.Allocation) bool { return a.Claim.Name == claim },
	)
}

// Expect checks values of series, named by family and one label as name=value.
func (h *History) Expect(x Scraped, want map[[2]string]float64) {
	h.t.Helper()
	for key, v := range want {
		if got := x.One(h.t, key[0], key[1]); !Close(got, v, 0) {
			h.t.Errorf("%s{%s} is %v, want %v", key[0], key[1], got, v)
		}
	}
}

// Run sets the processes that use gpu-0 from now on. [PodOf] returns their pods.
func (h *History) Run(processes ...driver.Process) {
	h.In.PodOf = PodOf()
	for i := range processes {
		for j := range processes[i].Readings {
			processes[i].Readings[j].At = h.Now
		}
	}
	h.In.Sources[0].Samples[0].Processes = processes
}

// Process returns a process with its use of a device.
func Process(pid int, utilization, memory float64) driver.Process {
	return driver.Process{PID: pid, Readings: []driver.Reading{
		{Quantity: driver.Utilization, Value: utilization}, {Quantity: driver.MemoryUsed, Value: memory},
	}}
}

// Gauges returns readings of a device.
func Gauges(utilization, memory, power float64) []driver.Reading {
	return []driver.Reading{
		{
			Quantity: driver.Utilization, Value: utilization,
		}, {Quantity: driver.MemoryUsed, Value: memory}, {Quantity: driver.Power, Value: power},
	}
}

// NewNode returns the history of a node with a device for each case: gpu-2 and gpu-10 are active,
// gpu-3 is quiet, gpu-4 is unhealthy and free, gpu-5 is tainted, gpu-6 is shared by two claims, and
// nic has traffic.
func NewNode(t *testing.T) *History {
	h := NewHistory(t)
	h.In.Inventory = driver.Inventory{}
	for _, name := range []string{"gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-10", "nic"} {
		entry := driver.Entry{Hardware: driver.Hardware{UUID: name}}
		if name == "gpu-5" {
			entry.Taints = []driver.Taint{{Key: "worn", Effect: "NoSchedule"}}
		}
		h.In.Inventory[jointest.ID(name)] = entry
	}
	for claim, device := range map[string]string{
		"busy": "gpu-2", "lazy": "gpu-3", "half-a": "gpu-6", "half-b": "gpu-6", "ten": "gpu-10", "net": "nic",
	} {
		h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation(device, claim, "pod-of-"+claim))
	}
	watch := jointest.Allocation("gpu-2", "watch", "watcher")
	watch.Admin = true
	h.In.View.Allocations = append(h.In.View.Allocations, watch)
	return h
}

// Play lets two minutes pass, in which the active devices are active and the interface carries
// 100 MB a second.
func Play(h *History) {
	busy := driver.Reading{Quantity: driver.Utilization, Value: 0.97}
	for i := range 13 {
		for _, name := range []string{"gpu-2", "gpu-6", "gpu-10"} {
			h.ReadOf(name, busy, driver.Reading{Quantity: driver.MemoryUsed, Value: 1 << 30},
				driver.Reading{Quantity: driver.MemoryCapacity, Value: 80 << 30},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"gpu"}, Value: 54},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"memory"}, Value: 61})
		}
		h.ReadOf("gpu-3", driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("gpu-4", driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1},
			driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("nic", driver.Reading{
			Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: float64(1+i) * 1e9,
		})
		h.Pass(10 * time.Second)
	}
}

// Retention is the retention of all ledgers of this package.
const Retention = 5 * time.Minute

// FitAfter is the time for which these ledgers measure a claim before they give advice.
const FitAfter = time.Minute

// LedgerConfig returns the configuration of all ledgers of this package.
func LedgerConfig() ledger.Config {
	return ledger.Config{
		Retention: Retention, IdleThreshold: 0.01, NetworkThreshold: 1e4,
		Advise: true, Fit: fit.Config{After: FitAfter, Margin: 0.05, IdleThreshold: 0.01},
	}
}

// Steps is the largest number of steps of a random history.
const Steps = 30

// Replay runs a random history through a ledger and calls check after each tick.
func Replay(t *rapid.T, check func(w *World, r join.Result, s *exposition.Snapshot)) {
	w := NewWorld(t)
	l := ledger.New(LedgerConfig())
	for range rapid.IntRange(3, Steps).Draw(t, "steps") {
		w.Step(Pauses())
		r := join.Join(w.Input())
		check(w, r, Whole(l.Advance(r, w.Now)))
	}
}

// Whole returns a snapshot without a limit on series.
func Whole(s *book.Snapshot) *exposition.Snapshot {
	return exposition.NewLimiter(0, nil).Apply(nil, s)
}

// Close reports whether two sums differ by at most 1e-9 of the larger one, or of the size of their
// terms.
func Close(a, b, size float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), size)
}

// Twins runs a history through two ledgers, the second one with a changed input, and calls check
// with both expositions, which [Scrape] has checked.
func Twins(t *rapid.T, change func(w *World, in *join.Input), check func(plain, changed join.Result, texts [2]string)) {
	w := NewWorld(t)
	ledgers := [2]*ledger.Ledger{ledger.New(LedgerConfig()), ledger.New(LedgerConfig())}
	for range rapid.IntRange(3, Steps).Draw(t, "steps") {
		w.Step(Pauses())
		var results [2]join.Result
		var texts [2]string
		for i, l := range ledgers {
			in := w.Input()
			if i == 1 {
				change(w, &in)
			}
			results[i] = join.Join(in)
			texts[i] = Text(t, Whole(l.Advance(results[i], w.Now)))
			if i == 0 || texts[i] != texts[0] {
				read(t, texts[i])
			}
		}
		check(results[0], results[1], texts)
	}
}

// SameText fails the test if two texts differ, and shows the first such line.
func SameText(t *rapid.T, a, b string) {
	t.Helper()
	if a == b {
		return
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		must.That(t, as[i] == bs[i], "line %d is\n%s\nthen\n%s", i, as[i], bs[i])
	}
	t.Fatalf("%d lines became %d", len(as), len(bs))
}
