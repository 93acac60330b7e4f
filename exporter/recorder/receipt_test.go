package recorder_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// claimOnce lets a claim of a UID hold a device that uses 100 W for some seconds.
func (s *story) claimOnce(uid string, seconds int) {
	s.Hold("a", "p").ClaimUID = uid
	s.burn(seconds)
	s.Free("a")
}

// burn lets the device use 100 W for some seconds.
func (s *story) burn(seconds int) {
	for range seconds {
		s.Read(driver.Reading{Quantity: driver.Energy, Value: 1e6 + 100*s.Now.Sub(jointest.Start()).Seconds()})
		s.pass(1)
	}
}

// A claim that is created again under its name is another one, with its own receipt. A claim that
// is used again after its receipt gets another one, for its use since then.
func TestReceiptOfEachUID(t *testing.T) {
	s := newStory(t)
	s.burn(2)
	s.claimOnce("1", 10)
	s.burn(5)
	s.claimOnce("2", 20)
	s.burn(60)
	s.claimOnce("2", 30)
	s.burn(60)
	want := []struct {
		uid     string
		seconds float64
	}{{"2", 30}, {"2", 20}, {"1", 10}} // the newest first
	all := s.Receipts()
	must.That(t, len(all) == len(want), "%d receipts, want %d", len(all), len(want))
	for i, r := range all {
		held, energy := r.Devices[0].Figures[0], energyOf(r.Devices[0])
		if r.ResourceID != want[i].uid || math.Abs(held.ConsumedQuantity-want[i].seconds) > 1 ||
			math.Abs(energy.ConsumedQuantity-100*want[i].seconds) > 100 || len(r.Pods) != 1 || !r.Valid() ||
			math.Abs(r.ChargePeriodEnd.Sub(r.ChargePeriodStart).Seconds()-want[i].seconds) > 1 {
			t.Errorf("receipt %d of %q: %v s from %v, %v J", i, r.ResourceID, held.ConsumedQuantity, r.ChargePeriodStart,
				energy.ConsumedQuantity)
		}
	}
}

// A claim that is forgotten, or made place for others, before its receipt was due has one.
func TestReceiptOfForgottenClaim(t *testing.T) {
	for name, forget := range map[string]func(*story, *ledger.Config){
		"retention": func(_ *story, c *ledger.Config) { c.Retention = 3 * time.Second },
		"evicted": func(s *story, c *ledger.Config) {
			c.Retention = time.Hour
			s.Limiter = exposition.NewLimiter(1, nil)
		},
	} {
		s := newStory(t)
		config := exportertest.LedgerConfig()
		forget(s, &config)
		s.Ledger = ledger.New(config)
		s.burn(2)
		s.claimOnce("1", 10)
		s.burn(20)
		all := s.Receipts()
		expect.That(t, len(all) == 1 && energyOf(all[0].Devices[0]).ConsumedQuantity >= 900,
			"%s: the receipts are %+v", name, all)
	}
}

// The known error of a model's power sensor is in the receipt beside the bound; for an unknown one
// there is none.
func TestSensorError(t *testing.T) {
	energy := driver.Reading{Quantity: driver.Energy, Value: 1e6}
	quarter := recorder.SensorError{SampledRatio: 0.25, Of: "power", Source: "arXiv:2312.02741"}
	counted := quarter
	counted.Counter = true
	for name, tc := range map[string]struct {
		model   string
		reading driver.Reading
		want    *recorder.SensorError
	}{
		"power":         {"NVIDIA A100-SXM4-80GB", jointest.Watts(300), &quarter},
		"counter":       {"NVIDIA H100 80GB HBM3", energy, &counted},
		"another model": {"NVIDIA L40S", energy, nil},
		"unknown":       {"", energy, nil},
	} {
		s := newStory(t)
		s.In.Inventory[jointest.ID("gpu-0")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-0", Model: tc.model}}
		s.pass(2)
		s.Hold("a", "p")
		for range 5 {
			tc.reading.At = s.Now
			s.Read(tc.reading)
			s.pass(1)
		}
		s.Free("a")
		s.pass(45)
		expect.Equal(t, name, tc.want, energyOf(s.Receipts()[0].Devices[0]).SensorError)
	}
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
	must.That(t, len(all) == 1, "%d receipts, want 1", len(all))
	of := all[0].Devices[0]
	if f := energyOf(of); f.ConsumedQuantity != 0 || *f.ErrorBound < 2900 || of.Attribution != "cpus" {
		t.Errorf("%v J of 3000 J, with a bound of %v, by %s", f.ConsumedQuantity, *f.ErrorBound, of.Attribution)
	}
}

// A claim of two pods and two devices has one receipt with pods, use and times. A claim that shares
// a device by guess may have used everything or nothing.
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
	must.That(t, len(all) == 1, "%d receipts, want 1", len(all))
	r := all[0]
	if r.ResourceName != "a" || r.SubAccountName != "team" || r.Partial || fmt.Sprint(r.Pods) != "[{p uid-p} {q uid-q}]" ||
		len(r.Devices) != 2 || !r.Valid() {
		t.Errorf("the receipt is %+v", r)
	}
	d := r.ChargePeriodEnd.Sub(r.ChargePeriodStart)
	expect.That(t, d >= 28*time.Second && d <= 32*time.Second, "the claim held its devices for %v", d)
	of := r.Devices
	expect.That(t, of[0].Attribution == "equal" && of[1].Attribution == "exclusive" && of[1].Model == "Example 9000",
		"devices were divided by %s and %s", of[0].Attribution, of[1].Attribution)
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

// Readings that come now sooner, now later do not make a steady gauge of a device of one's own
// uncertain.
func TestReceiptOfIrregularReadings(t *testing.T) {
	s := newStory(t)
	s.pass(2)
	s.Hold("a", "p")
	for range 90 {
		for _, pause := range []time.Duration{600 * time.Millisecond, 1400 * time.Millisecond} {
			s.Read(driver.Reading{Quantity: driver.Utilization, Value: 1})
			s.Pass(pause)
			s.Record(s.Last.Snapshot)
		}
	}
	s.Free("a")
	s.pass(45)
	active := s.Receipts()[0].Figure(driver.ActiveSeconds)
	if math.Abs(active.ConsumedQuantity-180) > 2 || *active.ErrorBound > 4 || active.MeasuredSeconds < 176 {
		t.Errorf("of 180 s, %v s were active, off by %v s, measured for %v s", active.ConsumedQuantity, *active.ErrorBound,
			active.MeasuredSeconds)
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

// A receipt has the times of the claim's states, without unknown ones: the device's activity is not
// measured, and no CDI spec was seen.
func TestReceiptLifecycle(t *testing.T) {
	s := newStory(t)
	s.burn(2)
	a := s.Hold("a", "p")
	a.ClaimUID, a.AllocatedAt = "1", s.Now.Add(-400*time.Millisecond)
	a.Holders[0].Hold = &podresources.Hold{Wanted: s.Now.Add(-300 * time.Millisecond)}
	prepared := s.Now
	s.burn(10)
	s.Free("a")
	s.burn(60)
	all := s.Receipts()
	must.That(t, len(all) == 1, "%d receipts, want 1", len(all))
	allocated, ended, wait := a.AllocatedAt.UTC(), all[0].ChargePeriodEnd, 0.4
	want := recorder.Lifecycle{
		Allocated: &allocated, Waiting: &allocated, Prepared: &prepared, Ended: &ended, PreparationSeconds: &wait,
	}
	expect.Equal(t, "", want, all[0].Lifecycle)
}
