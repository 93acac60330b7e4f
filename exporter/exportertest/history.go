// Package exportertest runs join, ledger and exposition together for tests: step by step
// ([History]), or with random histories of a node ([World], [Replay], [Twins]). [Scrape] parses the
// exposition.
package exportertest

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
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
