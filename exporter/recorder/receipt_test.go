package recorder_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// meterOf says how a device of these tests is read.
type meterOf struct {
	name    string
	gauge   bool          // power alone, no counter of energy
	refresh time.Duration // 0: at each tick
	missing func(time.Duration) bool
	exact   bool // the bound of ten minutes is below 5 %
}

// A claim's true energy is within the bound of its receipt, whatever reads the device and however
// long it held it; the truth is the load's own integral. The bound of ten minutes on a counter is
// below 5 %.
func TestReceiptBounds(t *testing.T) {
	gaps := func(at time.Duration) bool { return at%(97*time.Second) > 80*time.Second }
	meters := []meterOf{
		{name: "counter", exact: true},
		{name: "gauge", gauge: true},
		{name: "slow counter", refresh: 30 * time.Second},
		{name: "counter with gaps", missing: gaps},
		{name: "gauge with gaps", gauge: true, missing: gaps},
	}
	for _, m := range meters {
		t.Run(m.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 7))
			outside, pods := 0, 0
			for n := range 40 {
				length := time.Duration(2+random.Float64()*30) * time.Second
				if n%8 == 0 {
					length = 10 * time.Minute
				}
				load := sim.Constant(random.Float64())
				switch n % 3 {
				case 1:
					load = sim.Ramp(random.Float64(), random.Float64(), 10*time.Second)
				case 2:
					load = sim.Bursts(uint64(n), 8*time.Second, 0.5, 0.05, 0.9)
				}
				begin := 100*time.Second + time.Duration(random.Float64()*float64(3*time.Second))
				r := m.play(t, load, begin, begin+length)
				pods++
				truth := 70*length.Seconds() + 630*(load.Integral(begin+length)-load.Integral(begin))
				energy := r.Figure(driver.Energy)
				if energy == nil {
					t.Fatalf("no energy: %+v", r)
				}
				if math.Abs(energy.ConsumedQuantity-truth) > *energy.ErrorBound {
					outside++
					t.Logf("%v: %v J ± %v, the truth is %v", length, energy.ConsumedQuantity, *energy.ErrorBound, truth)
				}
				if relative := *energy.ErrorBound / truth; m.exact && length >= 10*time.Minute && relative >= 0.05 {
					t.Errorf("the bound of %v is %.1f %%", length, 100*relative)
				}
			}
			if outside > 0 {
				t.Errorf("the truth of %d of %d claims is outside the bound", outside, pods)
			}
		})
	}
}

// play lets a claim hold a device from begin to end, and returns its receipt. The device draws 70
// W, and 630 W more under full load.
func (m meterOf) play(t *testing.T, load sim.Profile, begin, end time.Duration) *recorder.Receipt {
	t.Helper()
	books, r := ledger.New(exportertest.LedgerConfig()), recorder.New(recorder.Config{Interval: time.Second})
	inventory := driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}}
	held := []podresources.Allocation{jointest.Allocation("gpu-0", "claim", "pod")}
	var dates holders.Dates
	var changes []podresources.Change
	var last driver.Reading
	for at := time.Duration(0); at < end+2*time.Minute; at += time.Second {
		now := jointest.Start().Add(at)
		var answer []podresources.Allocation
		if begin <= at && at < end {
			answer = held
		}
		for _, c := range []struct {
			at    time.Duration
			start bool
		}{{begin, true}, {end, false}} {
			if at-time.Second < c.at && c.at <= at {
				changes = append(changes, podresources.Change{At: jointest.Start().Add(c.at), PodUID: "uid-pod", Gone: !c.start})
			}
		}
		in := join.Input{
			Inventory: inventory,
			View:      dates.Date(answer, holders.Signs{At: now, Changes: changes, Watched: true}, now),
		}
		if m.refresh == 0 || at%m.refresh == 0 || last.At.IsZero() {
			last = driver.Reading{Quantity: driver.Energy, Value: 70*at.Seconds() + 630*load.Integral(at), At: now}
			if m.gauge {
				last = driver.Reading{Quantity: driver.Power, Value: 70 + 630*load.Level(at), At: now}
			}
		}
		sample := driver.Sample{Hardware: driver.Hardware{UUID: "gpu-0"}}
		if m.missing == nil || !m.missing(at) {
			sample.Readings = []driver.Reading{last}
		}
		in.Sources = []join.SourceSamples{{Name: "a", Samples: []driver.Sample{sample}}}
		for _, receipt := range r.Record(books.Advance(join.Join(in), now)).Receipts {
			return receipt
		}
	}
	t.Fatalf("no receipt of a claim from %v to %v", begin, end)
	return nil
}

// A claim whose CPUs were never known is charged nothing, and may have used all that the group did.
func TestReceiptOfUnknownCPUs(t *testing.T) {
	s := newStory(t)
	s.pass(2)
	s.Hold("a", "p").OwnCPUs = true
	var joules float64
	for range 30 {
		joules += 100
		s.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
		s.pass(1)
	}
	s.Free("a")
	s.pass(45)
	all := s.Receipts()
	if len(all) != 1 {
		t.Fatalf("%d receipts, want 1", len(all))
	}
	of := all[0].Devices[0]
	if f := energyOf(of); f.ConsumedQuantity != 0 || *f.ErrorBound < 2900 || of.Attribution != "cpus" {
		t.Errorf("%v J of 3000 J, with a bound of %v, by %s", f.ConsumedQuantity, *f.ErrorBound, of.Attribution)
	}
}

// A claim of two pods and two devices has one receipt, with who, what and for how long; a claim
// that shares a device by guess may have used all of it or nothing.
func TestReceipt(t *testing.T) {
	s := newStory(t)
	s.In.Inventory[jointest.ID("gpu-1")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-1", Model: "Example 9000"}}
	s.pass(2)
	s.In.View.Allocations = append(
		s.In.View.Allocations, jointest.Allocation("gpu-0", "a", "p", "q"), jointest.Allocation("gpu-1", "a", "p", "q"),
	)
	other := s.Hold("b", "other")
	other.ShareID = "1"
	var joules float64
	for range 30 {
		joules += 100
		s.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
		s.ReadOf("gpu-1", driver.Reading{Quantity: driver.Energy, Value: 2 * joules})
		s.pass(1)
	}
	s.Free("a")
	s.pass(39)
	if got := s.Receipts(); len(got) > 0 {
		t.Errorf("a receipt before slow sources have told what they counted: %+v", got[0])
	}
	s.pass(5)
	all := s.Receipts()
	if len(all) != 1 {
		t.Fatalf("%d receipts, want 1", len(all))
	}
	r := all[0]
	if r.ResourceName != "a" || r.SubAccountName != "team" || r.Partial || fmt.Sprint(r.Pods) != "[{p uid-p} {q uid-q}]" ||
		len(r.Devices) != 2 || !r.Valid() {
		t.Errorf("the receipt is %+v", r)
	}
	if d := r.ChargePeriodEnd.Sub(r.ChargePeriodStart); d < 28*time.Second || d > 32*time.Second {
		t.Errorf("the claim held its devices for %v", d)
	}
	of := r.Devices
	if of[0].Attribution != "equal" || of[1].Attribution != "exclusive" || of[1].Model != "Example 9000" {
		t.Errorf("devices were divided by %s and %s", of[0].Attribution, of[1].Attribution)
	}
	shared, own := energyOf(of[0]), energyOf(of[1])
	if b := *shared.ErrorBound; b < 0.95*shared.ConsumedQuantity {
		t.Errorf("of a guess of %v J the bound is %v", shared.ConsumedQuantity, b)
	}
	if b := *own.ErrorBound; own.ConsumedQuantity < 5000 || b > 500 {
		t.Errorf("of %v J on a device of its own the bound is %v", own.ConsumedQuantity, b)
	}
	if total := r.Figure(driver.Energy).ConsumedQuantity; total != shared.ConsumedQuantity+own.ConsumedQuantity {
		t.Errorf("the total is %v J", total)
	}
}

func energyOf(d recorder.ReceiptDevice) recorder.Figure {
	for _, f := range d.Figures {
		if f.Quantity == "energy" {
			return f
		}
	}
	return recorder.Figure{ErrorBound: new(float64)}
}
