package web

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// chartGroup are the charts of one owner, on one axis of time.
type chartGroup struct {
	Title  string
	Charts []sparkline
}

// sparkline is a small chart of a series.
type sparkline struct {
	Name, Least, Most, Last string   // the quantity, and its values in the unit of the page
	Lines                   []string // points of polylines: one for each time without a gap
	Mark                    string   // where an incident happened: x; "": nowhere
}

// The size of a chart, in its own units. A line keeps a distance from the edges.
const (
	chartWidth  = 240.0
	chartHeight = 36.0
	chartMargin = 2.0
	// maxCharts bounds the charts of one owner.
	maxCharts = 16
)

// charts returns small charts of those series of a recording that choose selects, a group an owner.
func charts(
	c *recorder.Chart, catalogue driver.Catalogue, mark time.Time, choose func(*recorder.ChartSeries) bool,
) []chartGroup {
	if c == nil || len(c.Times) < 2 {
		return nil
	}
	type gauge struct{ title, quantity string }
	gauges := map[gauge]bool{}
	for i := range c.Series {
		gauges[gauge{chartTitle(&c.Series[i]), c.Series[i].Quantity}] = true
	}
	var out []chartGroup
	for i := range c.Series {
		s := &c.Series[i]
		q, known := catalogue.Named(s.Quantity)
		if !known || !choose(s) || !worthAChart(catalogue.Spec(q)) {
			continue
		}
		title := chartTitle(s)
		if gauges[gauge{title, gaugeOf(q)}] {
			continue
		}
		n := slices.IndexFunc(out, func(g chartGroup) bool { return g.Title == title })
		if n < 0 {
			n = len(out)
			out = append(out, chartGroup{Title: title})
		}
		if line, ok := newSparkline(c.Times, s, catalogue.Spec(q), mark); ok && len(out[n].Charts) < maxCharts {
			out[n].Charts = append(out[n].Charts, line)
		}
	}
	return slices.DeleteFunc(out, func(g chartGroup) bool { return len(g.Charts) == 0 })
}

func chartTitle(s *recorder.ChartSeries) string {
	if s.Of == recorder.OfDevice {
		return s.Device
	}
	return fmt.Sprintf("%s %s/%s on %s", s.Of, s.Namespace, s.Name, s.Device)
}

// worthAChart reports whether a quantity changes by what the device does.
func worthAChart(spec *driver.Spec) bool {
	return !spec.Fact && !spec.Internal && spec.Name != driver.MemoryCapacity.String()
}

// gaugeOf returns the quantity of which a counter is the integral, "" of others. A chart of both
// shows the same twice.
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

// smoothing is the time over which the charts of counters are means. What a source has counted
// comes in the steps in which it is read: over a few ticks a rate is 0, or a multiple of the true
// one.
const smoothing = 10 * time.Second

// smooth returns the rates since the times before as means of the time before, NaN where they are
// NaN, and where they are of less than a second.
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

func newSparkline(times []time.Time, s *recorder.ChartSeries, spec *driver.Spec, mark time.Time) (sparkline, bool) {
	values := s.Values.Floats()
	if s.Rate && len(values) == len(times) {
		values = smooth(times, values)
	}
	least, most, last := math.Inf(1), math.Inf(-1), math.NaN()
	for _, v := range values {
		if !math.IsNaN(v) {
			least, most, last = min(least, v), max(most, v), v
		}
	}
	if math.IsNaN(last) || len(values) != len(times) {
		return sparkline{}, false
	}
	labels := make([]string, 0, len(s.Labels))
	for _, l := range spec.Labels {
		if text := s.Labels[l.Name]; text != "" {
			labels = append(labels, text)
		}
	}
	out := sparkline{Name: strings.ReplaceAll(s.Quantity, "_", " ")}
	if len(labels) > 0 {
		out.Name += " (" + strings.Join(labels, " ") + ")"
	}
	out.Least, out.Most, out.Last = ofSeries(least, s, spec), ofSeries(most, s, spec), ofSeries(last, s, spec)
	begin, span := times[0], times[len(times)-1].Sub(times[0]).Seconds()
	x := func(t time.Time) float64 { return chartWidth * t.Sub(begin).Seconds() / span }
	// The axis begins at 0, unless values are negative, so that a small change looks small.
	low, high := min(0, least), max(most, 0)
	if high == low {
		high = low + 1
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
		if math.IsNaN(v) {
			end()
			continue
		}
		line = append(line, fmt.Sprintf("%.1f,%.1f", x(times[i]), y(v)))
	}
	end()
	if !mark.IsZero() {
		out.Mark = fmt.Sprintf("%.1f", x(mark))
	}
	return out, true
}

// ofSeries formats a value of a series.
func ofSeries(v float64, s *recorder.ChartSeries, spec *driver.Spec) string {
	switch {
	case !s.Rate:
		return inUnit(v, spec)
	case spec.Unit == "joules":
		return fmt.Sprintf("%.0f W", v)
	case spec.Unit == "seconds":
		return percent(v)
	case spec.Unit == "bytes":
		return scaled(v, "B/s", 1000)
	default:
		return strings.TrimSpace(scaled(v, "", 1000)) + "/s"
	}
}

// recorded returns the charts of a device, or of the parts that a claim or pod has of its devices.
func (p *pages) recorded(
	ctx context.Context, of recorder.Selection, catalogue driver.Catalogue,
) ([]chartGroup, error) {
	if p.Recorder == nil {
		return nil, nil
	}
	of.Own = true
	history, err := p.Recorder.History(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("read the recording: %w", err)
	}
	return charts(history.Chart, catalogue, time.Time{}, func(*recorder.ChartSeries) bool { return true }), nil
}

// incident returns the details of an incident: what happened, who held the device, and the minute
// before and after.
func (p *pages) incident(
	ctx context.Context, id string, now time.Time, catalogue driver.Catalogue,
) (detail, error) {
	out := detail{Title: "Incident " + id, Time: clock(now)}
	if p.Recorder == nil {
		return out, nil
	}
	i, err := p.Recorder.Incident(ctx, id)
	if err != nil {
		return out, fmt.Errorf("read the incident: %w", err)
	}
	if i == nil {
		return out, nil
	}
	out.Title = i.Text
	facts := section{Title: "Incident " + id}
	facts.fact("kind", string(i.Kind))
	facts.fact("time", clock(i.Time))
	if i.Count > 1 {
		facts.fact("happened", fmt.Sprintf("%d times, last %s", i.Count, clock(i.Last)))
	}
	facts.Rows = append(facts.Rows, []item{{Text: "device"}, {Text: i.Device.String(), Device: i.Device.String()}})
	if i.Open {
		facts.fact("recording", "the minute after is not over yet")
	}
	// Whom it hit is first.
	holders := slices.SortedStableFunc(slices.Values(i.Holders), func(a, b recorder.Holder) int {
		return compareFlags(a.Hit, b.Hit)
	})
	held := section{Title: "Held by", Head: []string{"Claim", "Pod", "Device", "Since", "Until", "Hit"}}
	for j := range holders {
		h := &holders[j]
		claim, until, pod, hit := "", "", item{}, item{Text: "no"}
		if h.Claim != "" {
			claim = h.Namespace + "/" + h.Claim
		}
		if h.Pod != "" {
			pod.Text = h.Namespace + "/" + h.Pod
			pod.Pod = pod.Text
		}
		if h.To != nil {
			until = clock(*h.To)
		}
		if h.Hit {
			hit = item{Text: "yes", Class: "bad"}
		}
		held.Rows = append(held.Rows, []item{
			{Text: claim, Claim: claim},
			pod,
			{Text: h.Device, Device: h.String()},
			{Text: clock(h.From)},
			{Text: until},
			hit,
		})
	}
	out.Sections = []section{facts, held}
	out.Charts = charts(i.Chart, catalogue, i.Time, func(*recorder.ChartSeries) bool { return true })
	out.tidy()
	return out, nil
}
