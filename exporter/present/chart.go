package present

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// chartGroup is the charts of one owner, with the same time axis.
type chartGroup struct {
	Title  string
	Charts []sparkline
}

// sparkline is a small chart of a series.
type sparkline struct {
	Name, Least, Most, Last string   // the quantity; its values in the unit of the page
	Lines                   []string // points of polylines, one for each period without a gap
	Marks                   []chartMark
	Bars                    string // for a terminal
	quantity                string
}

// bars returns values of an axis from low to high as a line of bars, a character for each part of
// the time.
func bars(values []float64, low, high float64) string {
	levels, out := []rune("▁▂▃▄▅▆▇█"), []rune(strings.Repeat(" ", min(60, len(values))))
	for i, v := range values {
		if !math.IsNaN(v) {
			out[i*len(out)/len(values)] = levels[int((v-low)/(high-low)*float64(len(levels)-1))]
		}
	}
	return string(out)
}

// chartMark is a moment in a chart.
type chartMark struct{ X, Name string }

// instant is a time with a name.
type instant struct {
	name string
	at   time.Time
}

// The size of a chart in its own units. Lines keep a margin to the edges.
const (
	chartWidth  = 240.0
	chartHeight = 36.0
	chartMargin = 2.0
	// maxCharts bounds the charts of one owner.
	maxCharts = 16
)

// charts returns small charts of a recording, one group per owner: the series that change with a
// device's work. If a gauge and a counter show the same, only the gauge is shown.
func charts(c *recorder.Chart, catalogue driver.Catalogue, moments []instant) []chartGroup {
	if c == nil || len(c.Times) < 2 {
		return nil
	}
	along := newAxis(c.Times)
	type gauge struct{ title, quantity string }
	gauges := map[gauge]bool{}
	for i := range c.Series {
		gauges[gauge{chartTitle(&c.Series[i]), c.Series[i].Quantity}] = true
	}
	var out []chartGroup
	for i := range c.Series {
		s := &c.Series[i]
		q, known := catalogue.Named(s.Quantity)
		if !known || !followsWork(catalogue.Spec(q)) || gauges[gauge{chartTitle(s), gaugeOf(q)}] {
			continue
		}
		n := slices.IndexFunc(out, func(g chartGroup) bool { return g.Title == chartTitle(s) })
		if n >= 0 && len(out[n].Charts) == maxCharts {
			continue
		}
		line, ok := newSparkline(along, s, catalogue.Spec(q), moments)
		switch {
		case ok && n < 0:
			out = append(out, chartGroup{chartTitle(s), []sparkline{line}})
		case ok:
			out[n].Charts = append(out[n].Charts, line)
		}
	}
	return out
}

func chartTitle(s *recorder.ChartSeries) string {
	if s.Of == recorder.OfDevice {
		return s.Device
	}
	return fmt.Sprintf("%s %s/%s on %s", s.Of, s.Namespace, s.Name, s.Device)
}

// followsWork reports whether a quantity changes with the device's work.
func followsWork(spec *driver.Spec) bool {
	return !spec.Fact && !spec.Internal && spec.Name != driver.MemoryCapacity.String()
}

// gaugeOf returns the quantity whose integral a counter is, "" if there is none.
func gaugeOf(q driver.Quantity) string {
	switch q {
	case driver.Energy:
		return driver.Power.String()
	case driver.ActiveSeconds:
		return driver.Utilization.String()
	default:
		return ""
	}
}

// smoothing is the time over which rates of counters are averaged, since some hardware counts in
// steps.
const smoothing = 10 * time.Second

// smooth averages rates over the time before each of them. rates[i] is the rate since times[i-1].
// The result is NaN where the rate is NaN, and where less than a second is known.
func smooth(times []time.Time, rates []float64) []float64 {
	out := make([]float64, len(rates))
	for i := range rates {
		increase, elapsed := 0., 0.
		for j := i; j > 0 && !math.IsNaN(rates[j]) && (j == i || times[i].Sub(times[j-1]) <= smoothing); j-- {
			seconds := times[j].Sub(times[j-1]).Seconds()
			increase, elapsed = increase+rates[j]*seconds, elapsed+seconds
		}
		out[i] = math.NaN()
		if elapsed >= 1 {
			out[i] = increase / elapsed
		}
	}
	return out
}

// axis is the time axis of a chart.
type axis struct {
	times  []time.Time
	x      []float64 // of the times
	breaks []bool    // nothing was recorded just before the time
}

func newAxis(times []time.Time) axis {
	out := axis{times, make([]float64, len(times)), make([]bool, len(times))}
	whole := max(times[len(times)-1].Sub(times[0]).Seconds(), 1e-3)
	for n := 1; n < len(times); n++ {
		out.x[n] = chartWidth * times[n].Sub(times[0]).Seconds() / whole
		out.breaks[n] = times[n].Sub(times[n-1]).Seconds() > max(10, 10*whole/float64(len(times)))
	}
	return out
}

// at returns the position of a time, false if it is not on the axis.
func (a *axis) at(t time.Time) (float64, bool) {
	n, exact := slices.BinarySearchFunc(a.times, t, time.Time.Compare)
	switch {
	case exact:
		return a.x[n], true
	case n == 0 || n == len(a.times):
		return 0, false
	default:
		part := t.Sub(a.times[n-1]).Seconds() / a.times[n].Sub(a.times[n-1]).Seconds()
		return a.x[n-1] + part*(a.x[n]-a.x[n-1]), true
	}
}

// marks returns marks for the moments that are on the axis.
func (a *axis) marks(moments []instant) []chartMark {
	var out []chartMark
	for _, m := range moments {
		if x, there := a.at(m.at); there {
			out = append(out, chartMark{fmt.Sprintf("%.1f", x), m.name})
		}
	}
	return out
}

// newSparkline returns the chart of a series, false if the series has no value. Rates are smoothed.
func newSparkline(along axis, s *recorder.ChartSeries, spec *driver.Spec, moments []instant) (sparkline, bool) {
	values := s.Values.Floats()
	if s.Rate && len(values) == len(along.times) {
		values = smooth(along.times, values)
	}
	least, most, last := math.Inf(1), math.Inf(-1), math.NaN()
	for _, v := range values {
		if !math.IsNaN(v) {
			least, most, last = min(least, v), max(most, v), v
		}
	}
	if math.IsNaN(last) || len(values) != len(along.times) {
		return sparkline{}, false
	}
	// The axis begins at 0, unless values are negative, so that a small change looks small.
	low, high := min(0, least), max(most, 0)
	if high == low {
		high = low + 1
	}
	out := sparkline{
		Name: seriesName(spec, s.Labels), Least: ofSeries(least, s, spec), Most: ofSeries(most, s, spec),
		Last: ofSeries(last, s, spec), Marks: along.marks(moments), quantity: s.Quantity, Bars: bars(values, low, high),
	}
	y := func(v float64) float64 {
		return chartHeight - chartMargin - (chartHeight-2*chartMargin)*(v-low)/(high-low)
	}
	var line []string
	end := func() {
		if len(line) > 0 {
			out.Lines = append(out.Lines, strings.Join(line, " "))
		}
		line = nil
	}
	for i, v := range values {
		if math.IsNaN(v) || along.breaks[i] {
			end()
		}
		if !math.IsNaN(v) {
			line = append(line, fmt.Sprintf("%.1f,%.1f", along.x[i], y(v)))
		}
	}
	end()
	return out, true
}

// ofSeries formats a value of a series.
func ofSeries(v float64, s *recorder.ChartSeries, spec *driver.Spec) string {
	switch {
	case !s.Rate:
		return inUnit(v, spec)
	case spec.Unit == "joules":
		return watts(v)
	case spec.Unit == "seconds":
		return percent(v)
	case spec.Unit == "bytes":
		return scaled(v, "B/s", 1000)
	default:
		return strings.TrimSpace(scaled(v, "", 1000)) + "/s"
	}
}

// recordedFor is the time of which details have a recording, and maxRecorded limits its holders.
const (
	recordedFor = 10 * time.Minute
	maxRecorded = 32
)

// recorded adds the charts of a device, or of a claim's or pod's parts of devices, with the onsets
// of incidents, and who held the device.
func (v *view) recorded(d *Detail, of Subject, incidents []*recorder.Incident) {
	namespace, name, _ := strings.Cut(cmp.Or(of.Claim, of.Pod), "/")
	chosen := recorder.Selection{Device: of.Device, Namespace: namespace, Own: true, Last: recordedFor}
	if of.Claim != "" {
		chosen.Claim = name
	} else {
		chosen.Pod = name
	}
	var onsets []instant
	for _, i := range incidents {
		if of.Hit(i) {
			onsets = append(onsets, instant{"onset", i.Onset})
		}
	}
	history := v.config.Recorder.History(chosen)
	d.Charts = charts(history.Chart, v.catalogue, onsets)
	if of.Device != "" && len(d.Charts) == 1 {
		d.Overview = newOverview(history, d.Charts[0].Charts, incidents, of)
	}
	if of.Device != "" && len(d.Sections) > 1 {
		holders := slices.DeleteFunc(slices.Clone(history.Holders), func(h recorder.Holder) bool { return h.Admin })
		slices.SortStableFunc(holders, func(a, b recorder.Holder) int { return b.From.Compare(a.From) })
		held := holdersOf("Held in the last ten minutes", holders[:min(len(holders), maxRecorded)], false)
		d.Sections = slices.Insert(d.Sections, 2, held) // after the incidents and the facts
	}
}
