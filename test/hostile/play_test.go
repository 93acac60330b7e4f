package hostile

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// input is the input of a source, which a test can spoil in one place at a time.
type input struct {
	places []place
	// pass lets the hardware work for a second.
	pass func()
	// rates are what counters count a second. Without one, energy is the integral of the power that is
	// read at first, times pass, and others stand still.
	rates map[driver.Quantity]float64
	// joules is the energy that the hardware has used so far; nil: by its rate.
	joules func() float64
	// refresh is how many seconds the source keeps what it has read of some places.
	refresh int
	// varies: the values of gauges change without being spoiled.
	varies bool
	// ownRejections is how often the source itself rejected something; nil: it does not count that.
	ownRejections func() int
	// replaced: what is wrong may be replaced by another value, without a rejection.
	replaced bool
	// text: its numbers are written as text, which may be anything.
	text bool
	// silent are quantities that are not rejected as malformed: they have no number of their own.
	silent []driver.Quantity
}

// place is where an input has a number.
type place struct {
	name string
	// read returns the number.
	read func() float64
	// write writes another one, given how it is written in that encoding. The result restores the
	// input.
	write func(number string) (restore func())
}

// way is a way in which the number of a place is wrong.
type way struct {
	name string
	// readings is for how many readings it is wrong.
	readings int
	// number returns what is written in place of a number, given what it was when it began to be
	// wrong; "" if that would not be wrong.
	number func(was, begin float64) string
}

// ways returns the ways: those of [drivertest.Wrongs] that an input can be wrong in.
func ways() []way {
	text := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	constant := func(name, number string, readings int) way {
		return way{name: name, readings: readings, number: func(float64, float64) string { return number }}
	}
	out := []way{
		constant("-1", "-1", 2), constant("NaN", "NaN", 2), constant("infinite", "+Inf", 2), constant("1e300", "1e300", 2),
		constant("2^63-1", "9223372036854775807", 2),
		constant("dropout for 1", "0", 1), constant("dropout for 3", "0", 3),
		{name: "stuck", readings: 3, number: func(_, begin float64) string { return text(begin) }},
		{name: "restart", readings: 6, number: func(was, begin float64) string { return text(was - begin) }},
		{name: "wrap at 2^32", readings: 3, number: func(was, begin float64) string { return text(1<<32 - 1 + was - begin) }},
		{name: "wrap at 2^53", readings: 3, number: func(was, begin float64) string { return text(1<<53 - 1 + was - begin) }},
		{name: "jump by 10^6", readings: 3, number: func(was, _ float64) string { return text(was + 1e6) }},
		{name: "unit off by 10^3", readings: 3, number: func(was, _ float64) string {
			if was < 1e4 { // a device may have counted so many errors
				return ""
			}
			return text(was * 1e3)
		}},
		{name: "unit off by 10^-3", readings: 3, number: func(was, _ float64) string {
			return text(math.Floor(was / 1e3)) // most encodings are integers
		}},
	}
	for name, code := range drivertest.HostileCodes() {
		out = append(out, constant("code "+name, text(code), 2))
	}
	slices.SortFunc(out, func(a, b way) int { return strings.Compare(a.name, b.name) })
	return out
}

// player plays an input.
type player struct {
	*node
	input

	began  time.Time
	errors float64 // that were counted before anything was wrong
}

// play spoils each place of the input in each way, and checks after each that there is no incident,
// and that no more was charged than the hardware has counted and can count in the slack. At the end
// all values are those of the beginning.
func play(t *testing.T, n *node, in input) {
	t.Helper()
	p := player{node: n, input: in, began: n.now}
	p.calm(3)
	must.That(t, len(in.places) != 0 && countReadings(n) >= 2, "%d places, %d readings", len(in.places), countReadings(n))
	if p.rates == nil {
		p.rates = map[driver.Quantity]float64{driver.Energy: p.gauge(driver.Power)}
	}
	before, all, number := p.gauges(), ways(), 0
	if in.text {
		all = append(all, way{
			name: "no number", readings: max(1, in.refresh), number: func(float64, float64) string { return noNumber },
		})
	}
	p.errors = n.countErrors()
	stride := 1
	if testing.Short() { // make test-deep runs all
		stride += len(in.places) * len(all) / 80
	}
	for _, place := range in.places {
		for _, way := range all {
			if number++; number%stride == 0 || way.number(0, 0) == noNumber {
				p.spoil(way, place)
				p.calm(max(2, in.refresh))
				p.check(place.name + ": " + way.name)
			}
		}
	}
	for _, way := range all {
		p.spoil(way, in.places...)
		p.calm(max(4, in.refresh))
		p.check("everything: " + way.name)
	}
	p.calm(40) // what was left in doubt is decided
	p.check("at the end")
	p.wantNumbers()
	if after := p.gauges(); !in.varies {
		for key, v := range before {
			expect.That(t, after[key] == v, "%v is %v at the end, was %v", key, after[key], v)
		}
	}
	rejected := 0
	if in.ownRejections != nil {
		rejected = in.ownRejections()
	}
	for _, count := range n.rejected {
		rejected += count
	}
	t.Logf("%d places, %d rejections", len(in.places), rejected)
	if in.text {
		p.wantMalformed()
	}
	if joules := p.truth(driver.Energy); rejected == 0 && !in.replaced || n.total(driver.Energy) < 0.5*joules {
		t.Errorf("%d rejections; %v J of %v J are charged", rejected, n.total(driver.Energy), joules)
	}
}

// noNumber is a text that is no number.
const noNumber = "none"

// wantMalformed fails the test unless every quantity of the source was rejected as malformed, or is
// silent.
func (p *player) wantMalformed() {
	for i := range p.last.Devices {
		for _, v := range p.last.Devices[i].Values {
			spec := v.Quantity.Spec()
			source := v.Origin.Source
			if spec.Derived || source != p.source.Name() || v.Origin.Computed&join.Integral != 0 {
				continue
			}
			malformed := p.rejected[driver.InputOf(source, &spec)+" "+string(driver.ReasonMalformed)] > 0
			expect.That(p.t, malformed != slices.Contains(p.silent, v.Quantity),
				"%s: rejected as malformed: %v, which is not as expected", spec.Name, malformed)
		}
	}
}

// spoil lets places be wrong in a way.
func (p *player) spoil(by way, at ...place) {
	begin := make([]float64, len(at))
	for i := range at {
		begin[i] = at[i].read()
	}
	for range by.readings {
		p.pass()
		restore := make([]func(), 0, len(at))
		for i, place := range slices.Backward(at) { // what is written may be none of the numbers of a file any more
			if number := by.number(place.read(), begin[i]); number != "" {
				restore = append(restore, place.write(number))
			}
		}
		p.tick()
		for _, undo := range slices.Backward(restore) {
			undo()
		}
	}
}

// calm lets seconds pass in which nothing is wrong.
func (p *player) calm(seconds int) {
	for range seconds {
		p.pass()
		p.tick()
	}
}

// truth is what the hardware has counted of a quantity so far.
func (p *player) truth(q driver.Quantity) float64 {
	seconds := p.now.Sub(p.began).Seconds()
	switch {
	case q == driver.Energy && p.joules != nil:
		return p.joules()
	case q.Spec().Unit == "seconds":
		return seconds
	default:
		return p.rates[q] * seconds
	}
}

// check fails the test if more is charged than the truth and the bound, or if something is said to
// have happened.
func (p *player) check(after string) {
	p.t.Helper()
	for i := range p.last.Claims {
		for _, v := range p.last.Claims[i].Values {
			spec := v.Quantity.Spec()
			if spec.Type == driver.Gauge || spec.Failure {
				continue
			}
			most := p.truth(v.Quantity) + spec.MaxRate*meter.Slack.Seconds()
			must.That(p.t, v.Value <= most, "%s: %v of %s are charged, at most %v are true", after, v.Value, spec.Name, most)
		}
	}
	if errors := p.countErrors(); errors > p.errors {
		p.t.Fatalf("%s: %v errors are counted: %v", after, errors-p.errors,
			exportertest.Scrape(p.t, p.last)["dra_device_errors_total"])
	}
	for _, i := range p.flight.Incidents() {
		if i.Kind != recorder.SourceDown { // as it is if all that it reads is wrong
			p.t.Fatalf("%s: an incident: %s %s", after, i.Kind, i.Code)
		}
	}
}

// gauges returns the gauges of the device that are read.
func (n *node) gauges() map[string]float64 {
	out := map[string]float64{}
	for i := range n.last.Devices {
		for _, v := range n.last.Devices[i].Values {
			if spec := v.Quantity.Spec(); spec.Type == driver.Gauge && !spec.Derived {
				out[spec.Name+" "+strings.Join(v.Labels[:], " ")] = v.Value
			}
		}
	}
	return out
}

func (n *node) gauge(q driver.Quantity) float64 {
	return n.gauges()[q.String()+" "+strings.Repeat(" ", driver.MaxLabels-1)]
}

func countReadings(n *node) (count int) {
	for i := range n.last.Devices {
		count += len(n.last.Devices[i].Values)
	}
	return count
}

// total returns what the claim is charged of a counter.
func (n *node) total(q driver.Quantity) (sum float64) {
	for i := range n.last.Claims {
		for _, v := range n.last.Claims[i].Values {
			if v.Quantity == q {
				sum += v.Value
			}
		}
	}
	return sum
}

// countErrors returns how many errors the device has counted.
func (n *node) countErrors() (sum float64) {
	for i := range n.last.Devices {
		for _, v := range n.last.Devices[i].Values {
			if v.Quantity == driver.Errors {
				sum += v.Value
			}
		}
	}
	return sum
}
