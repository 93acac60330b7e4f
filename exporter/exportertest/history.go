// Package exportertest drives join, ledger and exposition together for tests: by hand ([History]),
// or by random histories of a node ([World], [Replay], [Twins]). [Scrape] parses what is exposed.
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
)

// History advances a ledger by hand through the life of one device, gpu-0, and of what a test adds.
type History struct {
	t       *testing.T
	Ledger  *ledger.Ledger
	Limiter *exposition.Limiter
	Now     time.Time // of the next tick
	// In is the input, of which the view is an answer that is not dated yet: who holds what, and At.
	In      join.Input
	Changes []podresources.Change // the signs of what came and went
	Watched bool                  // the ends of all pods are among them
	Dates   *Dates                // of the answers
	Last    *exposition.Snapshot  // of the last tick
	Joined  join.Result           // likewise
}

// Dates dates answers as a node does, and gives [holders.Dates] the same slice as long as it is the
// same answer.
type Dates struct {
	dates holders.Dates
	last  []podresources.Allocation
}

// Date returns the view of an answer of the time At of the signs, at the time now. Neither is
// changed.
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

// Restart replaces the ledger by one that goes on from what it has kept, as a new process does,
// with the holds that it had.
func (h *History) Restart(k ledger.Kept, now time.Time) {
	h.t.Helper()
	h.Now, h.Ledger, h.Dates, h.Changes = now, ledger.New(LedgerConfig()), &Dates{}, nil
	if err := h.Ledger.Restore(k, now); err != nil {
		h.t.Fatal(err)
	}
	periods, goesOn := h.Ledger.Resumed()
	if !goesOn {
		return
	}
	var holds []holders.Resumed
	for _, p := range periods {
		holds = append(holds, holders.Resumed{
			Device: p.Device, Claim: p.Claim, Share: p.ShareID, Pod: p.Pod, UID: p.PodUID, From: p.From, ClaimUID: p.ClaimUID,
		})
	}
	h.Dates.dates.Resume(holds, k.Time)
}

// NewHistory returns a history without readings and holders.
func NewHistory(t *testing.T) *History {
	t.Helper()
	return &History{
		t: t, Ledger: ledger.New(LedgerConfig()), Limiter: exposition.NewLimiter(0, nil), Now: jointest.Start(),
		Dates: &Dates{},
		In: join.Input{
			Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
			Sources:   []join.SourceSamples{{Name: "a"}},
		},
	}
}

// Tick advances the ledger by the input, with an answer of the kubelet of now, and lets time pass
// afterwards.
func (h *History) Tick(pause time.Duration) Scraped {
	h.t.Helper()
	h.In.View.At = h.Now
	return h.TickWithoutAnswer(pause)
}

// Pass is Tick without a scrape, which takes most of a tick's time.
func (h *History) Pass(pause time.Duration) {
	h.In.View.At = h.Now
	h.Advance()
	h.Now = h.Now.Add(pause)
}

// TickWithoutAnswer is Tick without a new answer of the kubelet.
func (h *History) TickWithoutAnswer(pause time.Duration) Scraped {
	h.t.Helper()
	h.Advance()
	h.Now = h.Now.Add(pause)
	return Scrape(h.t, h.Last)
}

// Advance advances the ledger by the input, without a scrape.
func (h *History) Advance() {
	in := h.In
	signs := holders.Signs{At: in.View.At, Changes: h.Changes, Watched: h.Watched}
	in.View = h.Dates.Date(in.View.Allocations, signs, h.Now)
	h.Joined = join.Join(in)
	h.Last = h.Limiter.Apply(h.Ledger, h.Ledger.Advance(h.Joined, h.Now))
}

// Read replaces gpu-0's readings of the first source. Those without a time are of now.
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

// Energy reads gpu-0's energy counter.
func (h *History) Energy(joules float64) {
	h.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
}

// Hold gives gpu-0 to a claim with the given pods.
func (h *History) Hold(claim string, pods ...string) *podresources.Allocation {
	h.Free(claim)
	h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation("gpu-0", claim, pods...))
	return &h.In.View.Allocations[len(h.In.View.Allocations)-1]
}

// Free takes all devices from a claim.
func (h *History) Free(claim string) {
	h.In.View.Allocations = slices.DeleteFunc(
		slices.Clone(h.In.View.Allocations), func(a podresources.Allocation) bool { return a.Claim.Name == claim },
	)
}

// Expect checks values of series, by family and one label as name=value.
func (h *History) Expect(x Scraped, want map[[2]string]float64) {
	h.t.Helper()
	for key, v := range want {
		if got := x.One(h.t, key[0], key[1]); !Close(got, v, 0) {
			h.t.Errorf("%s{%s} is %v, want %v", key[0], key[1], got, v)
		}
	}
}

// Run sets the processes that use gpu-0 from now on. [PodOf] has their pods.
func (h *History) Run(processes ...driver.Process) {
	h.In.PodOf = PodOf()
	for i := range processes {
		for j := range processes[i].Readings {
			processes[i].Readings[j].At = h.Now
		}
	}
	h.In.Sources[0].Samples[0].Processes = processes
}

// Process returns a process with what it uses.
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
