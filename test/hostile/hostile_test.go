package hostile

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { exportertest.Main(m) }

// node is a node with one device, which a claim holds, and one source.
type node struct {
	t        *testing.T
	source   driver.Source
	now      time.Time
	start    time.Time // of the hold: the first tick
	hardware driver.Hardware
	joiner   join.Joiner
	ledger   *ledger.Ledger
	flight   *recorder.Recorder
	last     *exposition.Snapshot
	rejected map[string]int // by input and reason
	samples  []driver.Sample
	ended    bool // the claim has
	closed   []book.Closed
}

func newNode(t *testing.T, hardware driver.Hardware) *node {
	return &node{
		t: t, now: jointest.Start(), hardware: hardware, ledger: ledger.New(exportertest.LedgerConfig()),
		flight: recorder.New(recorder.Config{Interval: time.Second}), rejected: map[string]int{},
	}
}

// tick advances the node by a second.
func (n *node) tick() {
	var err error
	n.samples, err = n.source.Sample(context.Background())
	in := join.Input{
		View: podresources.View{
			At: n.now, Allocations: []podresources.Allocation{jointest.Allocation("gpu-0", "claim", "pod")},
		},
		Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: n.hardware, Local: true}},
		Sources:   []join.SourceSamples{{Name: n.source.Name(), Samples: n.samples, Failed: driver.ReasonOf(err)}},
	}
	if n.last == nil {
		n.start = n.now
	}
	in.View.Allocations[0].Holders[0].Hold = &podresources.Hold{From: n.start}
	if n.ended {
		in.View.Allocations = nil
	}
	joined := n.joiner.Join(in)
	s := n.ledger.Advance(joined, n.now)
	for _, of := range [][]driver.Rejection{joined.Rejected, s.Rejected} {
		for _, r := range of {
			n.rejected[r.Input+" "+string(r.Reason)] += r.Count
		}
	}
	n.flight.Record(s)
	n.closed = s.Closed
	n.last = exportertest.Whole(s)
	n.now = n.now.Add(time.Second)
}

// reasons returns the reasons for which readings of a quantity were rejected.
func (n *node) reasons(q driver.Quantity) (out []string) {
	spec := q.Spec()
	for of := range n.rejected {
		if input, reason, _ := strings.Cut(of, " "); input == driver.InputOf(n.source.Name(), &spec) {
			out = append(out, reason)
		}
	}
	return out
}

// wantCalm fails the test if there is an incident, or if a served value is none.
func (n *node) wantCalm() exportertest.Scraped {
	n.t.Helper()
	for _, i := range n.flight.Incidents() {
		n.t.Errorf("an incident: %s %s", i.Kind, i.Code)
	}
	return n.wantNumbers()
}

// wantNumbers fails the test if a served value is none.
func (n *node) wantNumbers() exportertest.Scraped {
	x := exportertest.Scrape(n.t, n.last)
	for family, rows := range x {
		for labels, v := range rows {
			expect.That(n.t, !math.IsNaN(v) && !math.IsInf(v, 0), "%s{%s} is %v", family, labels, v)
		}
	}
	return x
}

// Whatever a source is wrong about, nothing is charged beyond what is true and what a device can do
// in a few seconds; gauges and peaks have the true values again; there is no incident; and what can
// be seen to be wrong has a reason.
func TestHostile(t *testing.T) {
	const from, ticks, rate = 8, 50, 1e-3
	for q, spec := range driver.Standard() {
		if spec.Derived || spec.Internal {
			continue
		}
		t.Run(spec.Name, func(t *testing.T) {
			for i, wrong := range drivertest.Wrongs() {
				if testing.Short() && (i+q)%4 != 0 && !charged(driver.Quantity(q)) { // make test-deep runs all
					continue
				}
				t.Run(wrong.Name, func(t *testing.T) {
					n := newNode(t, driver.Hardware{UUID: drivertest.HostileUUID})
					h := &drivertest.Hostile{
						Quantity: driver.Quantity(q), Wrong: wrong, From: from, Rate: rate, Now: func() time.Time { return n.now },
					}
					n.source = h
					for range ticks {
						n.tick()
					}
					switch reasons := n.reasons(h.Quantity); {
					case len(reasons) == 0 && (wrong.Quiet == nil || !wrong.Quiet(&spec)):
						t.Error("nothing was rejected")
					case strings.HasPrefix(wrong.Name, "code ") && !slices.Contains(reasons, string(driver.ReasonNoValue)):
						t.Errorf("a code is rejected as %q", reasons)
					}
					for of := range n.rejected {
						if !wrong.Twice && !strings.HasPrefix(of, "hostile/"+spec.Name+" ") {
							t.Errorf("rejected beside it: %s", of)
						}
					}
					checkTruth(t, h, n.wantCalm(), ticks-1)
				})
			}
		})
	}
}

// A quantity of which 0 means that there is no sensor is absent, with that reason, if a device has
// never shown anything else. So is what is computed from it.
func TestNoSensor(t *testing.T) {
	for q, spec := range driver.Standard() {
		if spec.Zero == driver.ZeroIsValue || spec.Derived || spec.Internal {
			continue
		}
		t.Run(spec.Name, func(t *testing.T) {
			n := newNode(t, driver.Hardware{UUID: drivertest.HostileUUID})
			n.source = &drivertest.Hostile{
				Quantity: driver.Quantity(q), Rate: 1e-3, Now: func() time.Time { return n.now },
				Wrong: drivertest.Wrong{
					Name:  "0",
					Value: func(*driver.Spec, func(float64) float64, float64, float64) float64 { return 0 },
				},
			}
			for range 5 {
				n.tick()
			}
			x := n.wantCalm()
			for _, holder := range []string{"device", "claim", "pod"} {
				for _, metric := range []string{spec.Metric, spec.Peak} {
					rows := x["dra_"+holder+"_"+metric]
					expect.That(t, len(rows) == 0 || q == int(driver.Energy), "%s of the %s: %v", metric, holder, rows)
				}
			}
			reasons := n.reasons(driver.Quantity(q))
			expect.That(t, len(reasons) == 1 && reasons[0] == string(driver.ReasonZero), "rejected as %q", reasons)
		})
	}
}

// charged reports whether all ways are played with a quantity, also in a short test: what is
// charged, and what makes incidents.
func charged(q driver.Quantity) bool {
	switch q {
	case driver.Power, driver.Energy, driver.IOBytes, driver.Errors, driver.LifetimeErrors:
		return true
	default:
		return false
	}
}

// checkTruth compares what is served after some seconds with the truth.
func checkTruth(t *testing.T, h *drivertest.Hostile, x exportertest.Scraped, seconds float64) {
	checkTruthEach(t, h, x, seconds, 1)
}

// checkTruthEach is checkTruth for a source that reads each so many seconds.
func checkTruthEach(t *testing.T, h *drivertest.Hostile, x exportertest.Scraped, seconds, each float64) {
	t.Helper()
	for q, spec := range driver.Standard() {
		rows := x["dra_device_"+spec.Metric]
		if spec.Derived || spec.Internal {
			continue
		}
		expect.That(t, len(rows) == 1 || (lasts(h.Wrong) && driver.Quantity(q) == h.Quantity && spec.Type == driver.Gauge),
			"%d series of %s", len(rows), spec.Name)
		for _, got := range rows {
			want := h.Truth(&spec, seconds)
			if spec.Type == driver.Counter {
				want -= h.Truth(&spec, 0)
			}
			switch {
			case driver.Quantity(q) != h.Quantity && !exportertest.Close(got, want, h.Truth(&spec, seconds)*1e-6):
				t.Errorf("%s is %v, want %v", spec.Name, got, want)
			case driver.Quantity(q) != h.Quantity:
			case spec.Type == driver.Gauge && !lasts(h.Wrong) && got != want:
				t.Errorf("%s is %v, want %v", spec.Name, got, want)
			case spec.Type == driver.Counter && got > want+ahead(h, &spec, seconds, each):
				t.Errorf("%s counts %v, and the truth is %v", spec.Name, got, want)
			case spec.Failure && got != 0 && (h.Wrong.Quiet == nil || !h.Wrong.Quiet(&spec)):
				t.Errorf("%s counts %v", spec.Name, got)
			case spec.Type == driver.Counter && (h.Wrong.GoesOn || !lasts(h.Wrong) && h.Wrong.Name != "jump by 10^6") &&
				got < want*0.5:
				t.Errorf("%s counts %v, and the truth is %v", spec.Name, got, want)
			}
			if spec.Sharing == driver.Additive {
				if claim := fmt.Sprint(valuesOf(x["dra_claim_"+spec.Metric])); claim != fmt.Sprint(valuesOf(rows)) {
					t.Errorf("%s of the claim is %v, of the device %v", spec.Name, claim, valuesOf(rows))
				}
			}
		}
	}
}

// ahead is by how much the charge of a counter may exceed the truth.
func ahead(h *drivertest.Hostile, spec *driver.Spec, seconds, each float64) float64 {
	switch slack := h.Most(spec) * (meter.Slack.Seconds() + each - 1) * 1.01; {
	case h.Wrong.Exact && !spec.Failure:
		return h.Truth(spec, seconds) * 1e-9
	case h.Wrong.Fast:
		return h.Most(spec)*seconds + slack
	default:
		return slack
	}
}

func lasts(w drivertest.Wrong) bool { return w.For == 0 }

func valuesOf(rows map[string]float64) (out []float64) {
	for _, v := range rows {
		out = append(out, v)
	}
	return out
}

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
