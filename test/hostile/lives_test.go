package hostile

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const wrongFrom = 8 // seconds after the start

// playing plays each way with the counters that are charged, and with errors.
func playing(t *testing.T, play func(t *testing.T, n *node, h *drivertest.Hostile)) {
	standard := driver.Standard()
	for _, q := range []driver.Quantity{driver.Energy, driver.IOBytes, driver.ActiveSeconds, driver.Errors} {
		t.Run(standard[q].Name, func(t *testing.T) {
			for _, wrong := range drivertest.Wrongs() {
				t.Run(wrong.Name, func(t *testing.T) {
					n := newNode(t, driver.Hardware{UUID: drivertest.HostileUUID})
					h := &drivertest.Hostile{
						Quantity: q, Wrong: wrong, From: wrongFrom, Rate: 1e-3, Now: func() time.Time { return n.now },
					}
					n.source = h
					play(t, n, h)
				})
			}
		})
	}
}

// restart continues with a ledger of what the present one has saved.
func (n *node) restart() {
	kept := ledger.Kept{
		State: n.ledger.AppendState([]byte{}, time.Time.UnixNano), Time: n.now, Continues: true,
		Clock: func(at int64) time.Time { return time.Unix(0, at) },
	}
	n.ledger = ledger.New(exportertest.LedgerConfig())
	must.Do(n.t, n.ledger.Restore(kept, n.now))
}

// A program that starts again while a source is wrong doubts what the earlier one doubted.
func TestHostileOverARestart(t *testing.T) {
	playing(t, func(t *testing.T, n *node, h *drivertest.Hostile) {
		const ticks = 50
		for tick := range ticks {
			if tick == wrongFrom+1 || tick == wrongFrom+2 {
				n.restart()
			}
			n.tick()
		}
		checkTruth(t, h, n.wantCalm(), ticks-1)
	})
}

// repeating gives each answer of a source three times, as one does that reads each third second.
type repeating struct {
	*drivertest.Hostile

	asked int
	last  []driver.Sample
}

func (r *repeating) Sample(ctx context.Context) ([]driver.Sample, error) {
	var err error
	if r.asked%3 == 0 {
		r.last, err = r.Hostile.Sample(ctx)
	}
	r.asked++
	return r.last, err
}

// A reading that is repeated does not explain itself.
func TestHostileRepeats(t *testing.T) {
	playing(t, func(t *testing.T, n *node, h *drivertest.Hostile) {
		n.source = &repeating{Hostile: h}
		const ticks = 151
		for range ticks {
			n.tick()
		}
		checkTruthEach(t, h, n.wantCalm(), ticks-1, 3)
	})
}

// What no device can have counted in its life is rejected as that from the first reading on, when
// there is nothing to compare it with.
func TestHostileFromTheBeginning(t *testing.T) {
	for q, spec := range driver.Standard() {
		if spec.Derived || spec.Internal || spec.Type == driver.Gauge && driver.Quantity(q) != driver.LifetimeErrors {
			continue
		}
		t.Run(spec.Name, func(t *testing.T) {
			n := newNode(t, driver.Hardware{UUID: drivertest.HostileUUID})
			h := &drivertest.Hostile{
				Quantity: driver.Quantity(q), Rate: 1e-3, Now: func() time.Time { return n.now },
				Wrong: drivertest.Wrong{
					Name: "more than any device has", For: 3,
					Value: func(*driver.Spec, func(float64) float64, float64, float64) float64 { return 7e22 },
				},
			}
			n.source = h
			for range 20 {
				n.tick()
			}
			reasons := n.reasons(h.Quantity)
			expect.That(t, len(reasons) == 1 && reasons[0] == string(driver.ReasonOutOfRange), "rejected as %q", reasons)
			if h.Quantity != driver.Errors { // the first errors with a code may be new
				n.wantCalm()
			}
		})
	}
}

// The receipt of a claim that ends while a source is wrong has the truth within its bound.
func TestHostileReceipts(t *testing.T) {
	playing(t, func(t *testing.T, n *node, h *drivertest.Hostile) {
		t.Helper()
		spec := h.Quantity.Spec()
		if spec.Failure || h.Wrong.Fast || h.Wrong.Name == "wrap at 2^32" || h.Wrong.Name == "wrap at 2^53" {
			return
		}
		const ends = wrongFrom + 4
		for tick := range 90 {
			n.ended = tick >= ends
			n.tick()
			for _, c := range n.closed {
				for _, a := range c.Amounts {
					truth := h.Truth(&spec, ends) - h.Truth(&spec, 0)
					if a.Quantity == h.Quantity && math.Abs(a.Value-truth) > a.Bound+truth*1e-9 {
						t.Errorf("%v, with a bound of %v; the truth is %v", a.Value, a.Bound, truth)
					}
				}
				return
			}
		}
		t.Error("no receipt")
	})
}
