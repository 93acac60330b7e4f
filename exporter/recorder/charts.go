package recorder

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// drawNext makes the chart of one incident that needs one: soon after the detection, so that it is
// stored, and again when all of the recorded time is over. Of a suspected incident, it is made
// once. One chart takes a small part of a tick, and there are enough ticks.
func (r *Recorder) drawNext(now time.Time) {
	for n, i := range r.incidents {
		end := i.Detected.Add(evidence)
		due := i.drawn.IsZero() || i.drawn.Before(end) && !now.Before(end)
		if due && r.ring.isGrowing(i, now) {
			r.replace(n, r.draw(i, now))
			return
		}
	}
	for n, i := range r.suspected {
		if i.drawn.IsZero() {
			r.suspected[n] = r.draw(i, now)
			return
		}
	}
}

// draw returns an incident with its chart so far.
func (r *Recorder) draw(i *Incident, now time.Time) *Incident {
	of := *i
	of.drawn, of.Chart = now, r.ring.chartOf(i)
	return &of
}

// isGrowing reports whether the tape may have more of an incident than its chart, and all that the
// chart has.
func (r *tape) isGrowing(i *Incident, now time.Time) bool {
	begins := r.begins()
	has := i.Chart == nil || len(i.Chart.Times) == 0 || !begins.After(i.Chart.Times[0].Add(time.Millisecond))
	return has && !begins.IsZero() && now.Sub(i.Detected) < 2*evidence
}

// chartOf returns what the tape has of an incident.
func (r *tape) chartOf(i *Incident) *Chart {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if i.parent != "" {
		devices[driver.ID{Driver: i.Device.Driver, Pool: i.Device.Pool, Device: i.parent}] = true
	}
	c := r.cut(i.Onset.Add(-evidence), i.Detected.Add(evidence), func(o *Owner) bool { return devices[o.Device] }, nil)
	return c.chart(orderForIncident(c.lines, i), maxEvidence, r.catalogue)
}

// orderForIncident moves the series of the device and of hit holders to the front.
func orderForIncident(all []line, i *Incident) []line {
	type name struct{ namespace, name string }
	hit := map[name]bool{}
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit {
			hit[name{h.Namespace, h.Pod}], hit[name{h.Namespace, h.Claim}] = true, true
		}
	}
	rank := func(o *Owner) int {
		switch {
		case o.Kind == OfDevice && o.Device == i.Device:
			return 0
		case o.Kind != OfDevice && hit[name{o.Namespace, o.Name}]:
			return 1
		default:
			return 2
		}
	}
	var ranked [3][]line
	for _, l := range all {
		ranked[rank(l.owner)] = append(ranked[rank(l.owner)], l)
	}
	return slices.Concat(ranked[:]...)
}

// Chart is a recording in the form of documents: a list of times, and series with a value for each.
type Chart struct {
	Times  []time.Time   `json:"times"`
	Series []ChartSeries `json:"series"`
}

// valid reports whether each series has a value for each time.
func (c *Chart) valid() bool {
	return len(c.Series) <= maxEvidence &&
		!slices.ContainsFunc(c.Series, func(s ChartSeries) bool { return len(s.Values) != len(c.Times) })
}

// ChartSeries is a series of a device, or of a claim's or pod's part of it.
type ChartSeries struct {
	Of        OwnerKind `json:"of"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	driver.ID
	Quantity string            `json:"quantity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Unit     string            `json:"unit,omitempty"`
	// Rate reports that the quantity is a counter: the values are rates per second between the last
	// two readings.
	Rate bool `json:"rate,omitempty"`
	// Values are null where the quantity was not read, and rounded to a thousandth.
	Values Values `json:"values"`
}

// Values are the values of a series, rounded as in the ring; null in JSON where absent.
type Values []code

// Floats returns the values, NaN where they are absent.
func (v Values) Floats() []float64 { return v.appendTo(make([]float64, 0, len(v))) }

func (v Values) appendTo(out []float64) []float64 {
	for _, c := range v {
		out = append(out, c.value())
	}
	return out
}

// MarshalJSON writes a list of numbers and nulls.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 8*len(v)+2) // an element such as 0.1234, has 7 bytes
	out = append(out, '[')
	for i, c := range v {
		if i > 0 {
			out = append(out, ',')
		}
		if c == absent {
			out = append(out, "null"...)
			continue
		}
		out = strconv.AppendFloat(out, c.value(), 'g', 4, 64)
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Values) UnmarshalJSON(text []byte) error {
	var numbers []*float64
	if err := json.Unmarshal(text, &numbers); err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	*v = make(Values, len(numbers))
	for i, n := range numbers {
		(*v)[i] = absent
		if n != nil {
			(*v)[i] = codeOf(*n)
		}
	}
	return nil
}

// cut is a window of a tape.
type cut struct {
	times []time.Time
	lines []line // ordered by owner, quantity and labels

	room   Values // of codes
	floats []float64
}

// labelled is a quantity with label values.
type labelled struct {
	quantity driver.Quantity
	labels   driver.Labels
}

// chart returns a chart of the first lines that have values, at most so many. Series with equal
// values, such as those of a claim and its only pod, share them.
func (c *cut) chart(lines []line, most int, catalogue driver.Catalogue) *Chart {
	out := &Chart{Times: make([]time.Time, 0, len(c.times)), Series: make([]ChartSeries, 0, min(most, len(lines)))}
	for _, t := range c.times {
		out.Times = append(out.Times, t.UTC().Truncate(time.Millisecond))
	}
	var key []byte
	known := map[string]Values{}
	labels := map[labelled]map[string]string{}
	for i := range lines {
		l := &lines[i]
		codes, some := c.codes(l)
		if !some {
			continue
		}
		if len(out.Series) == most {
			break
		}
		key = key[:0]
		for _, v := range codes {
			key = append(key, byte(v), byte(v>>8))
		}
		values, found := known[string(key)]
		if !found {
			values = slices.Clone(codes)
			known[string(key)] = values
		}
		spec := catalogue.Spec(l.Quantity)
		of := labelled{l.Quantity, l.Labels}
		if _, found := labels[of]; !found {
			labels[of] = LabelsOf(spec, l.Labels)
		}
		out.Series = append(out.Series, ChartSeries{
			Of: l.owner.Kind, Namespace: l.owner.Namespace, Name: l.owner.Name, ID: l.owner.Device, Quantity: spec.Name,
			Labels: labels[of], Unit: spec.Unit, Rate: l.counter, Values: values,
		})
	}
	return out
}

// line is a series in a window.
type line struct {
	*meta
	parts []part // ordered by time
}

// part is a series in one block.
type part struct {
	first  int // index of its first tick in the times of the window, which may be outside
	column []code
}

// cut returns the part of the tape from one time to another, for chosen owners, and some of their
// series; nil: all of them.
func (r *tape) cut(from, to time.Time, chosen func(*Owner) bool, some func(*meta) bool) cut {
	var c cut
	index := map[*book.Series]int{}
	var last *Owner // series of one owner are adjacent
	var wanted bool
	for b := range r.blocks() {
		if b.times[len(b.times)-1].Before(from) || b.times[0].After(to) {
			continue
		}
		for i, m := range b.series {
			if m.owner != last {
				last, wanted = m.owner, chosen(m.owner)
			}
			if !wanted || some != nil && !some(m) {
				continue
			}
			n, known := index[m.Series]
			if !known {
				n = len(c.lines)
				index[m.Series] = n
				c.lines = append(c.lines, line{m, make([]part, 0, len(r.sealed)+1)})
			}
			c.lines[n].parts = append(c.lines[n].parts, part{len(c.times), b.column(i)})
		}
		c.times = append(c.times, b.times...)
	}
	c.trim(from, to)
	c.sort()
	return c
}

// trim limits the times to the window.
func (c *cut) trim(from, to time.Time) {
	first, last := 0, len(c.times)
	for first < last && c.times[first].Before(from) {
		first++
	}
	for last > first && c.times[last-1].After(to) {
		last--
	}
	c.times = c.times[first:last]
	for i := range c.lines {
		for j := range c.lines[i].parts {
			c.lines[i].parts[j].first -= first
		}
	}
}

// sort orders the lines. It joins those of the same name: a later claim or pod has other keys.
func (c *cut) sort() {
	slices.SortStableFunc(c.lines, func(a, b line) int { return a.compare(&b) })
	joined := c.lines[:0]
	for _, l := range c.lines {
		if n := len(joined) - 1; n >= 0 && joined[n].compare(&l) == 0 {
			joined[n].parts = append(joined[n].parts, l.parts...)
			continue
		}
		joined = append(joined, l)
	}
	c.lines = joined
}

func (l *line) compare(other *line) int {
	if l.owner != other.owner {
		if c := l.owner.compare(*other.owner); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(l.Quantity, other.Quantity), slices.Compare(l.Labels[:], other.Labels[:]))
}

// codes returns the codes of a line at the times of the cut, and whether one of them is present.
// They are valid until the next call.
func (c *cut) codes(l *line) (codes Values, some bool) {
	codes = c.room[:0]
	for range c.times {
		codes = append(codes, absent)
	}
	for _, p := range l.parts {
		for i, v := range p.column {
			if at := p.first + i; v != absent && at >= 0 && at < len(codes) {
				codes[at], some = v, true
			}
		}
	}
	c.room = codes
	return codes, some
}

// values returns the values of a line at the times of the cut, NaN where they are absent. They are
// valid until the next call.
func (c *cut) values(l *line) []float64 {
	codes, _ := c.codes(l)
	c.floats = codes.appendTo(c.floats[:0])
	return c.floats
}

// Recent describes the last minutes of a device, or of a claim's or pod's part of it.
type Recent struct {
	// Quantity is the one that shows the device's work best: utilization, else power, else bytes per
	// second over networks. Values are its means over equal periods, the oldest first, NaN where
	// nothing is recorded.
	Quantity driver.Quantity
	Values   []float64
	// Traffic is the bytes per second over networks in the last seconds, NaN if unknown.
	Traffic float64
}

// trafficTime is the time over which traffic is averaged, since some hardware counts in steps.
const trafficTime = 10 * time.Second

// overNetworks reports whether a series counts bytes that left or entered the node.
func (m *meta) overNetworks() bool {
	return m.Quantity == driver.IOBytes && (m.Labels[0] == "network" || m.Labels[0] == "rdma")
}

// Traffic returns the [Recent.Traffic] of each device, claim and pod with network devices.
func (r *Recorder) Traffic() map[Owner]float64 {
	out := map[Owner]float64{}
	for owner, of := range r.recentOf(2*trafficTime, 1, (*meta).overNetworks) {
		if !math.IsNaN(of.Traffic) {
			out[owner] = of.Traffic
		}
	}
	return out
}

// Recent returns the recent values of each device, claim and pod: the time last, divided into a
// number of values.
func (r *Recorder) Recent(last time.Duration, values int) map[Owner]Recent {
	return r.recentOf(last, values, func(m *meta) bool {
		return m.Quantity == driver.Utilization || m.Quantity == driver.Power || m.overNetworks()
	})
}

// recentOf is Recent of some series.
func (r *Recorder) recentOf(last time.Duration, values int, some func(*meta) bool) map[Owner]Recent {
	p := r.published.Load()
	begin := p.recorded.Add(-last)
	c := p.cut(begin, p.recorded, func(*Owner) bool { return true }, some)
	slots := make([]int, len(c.times))
	for i, at := range c.times {
		slots[i] = min(values-1, int(float64(at.Sub(begin))/float64(last)*float64(values)))
	}
	out := map[Owner]Recent{}
	for all := c.lines; len(all) > 0; { // series of an owner are adjacent
		n := 1
		for n < len(all) && *all[n].owner == *all[0].owner {
			n++
		}
		of := all[:n]
		all = all[n:]
		var traffic []float64 // sum of all links
		for i := range of {
			if of[i].overNetworks() {
				traffic = plusEach(traffic, c.values(&of[i]))
			}
		}
		recent := Recent{Quantity: driver.IOBytes, Values: means(traffic, slots, values), Traffic: newest(c.times, traffic)}
		for _, q := range []driver.Quantity{driver.Power, driver.Utilization} {
			if i := slices.IndexFunc(of, func(l line) bool { return l.Quantity == q }); i >= 0 {
				recent.Quantity, recent.Values = q, means(c.values(&of[i]), slots, values)
			}
		}
		out[*of[0].owner] = recent
	}
	return out
}

// plusEach adds values at the same times. A value that is absent in one list counts as 0.
func plusEach(sum, more []float64) []float64 {
	if sum == nil {
		return slices.Clone(more)
	}
	for i, v := range more {
		switch {
		case math.IsNaN(sum[i]):
			sum[i] = v
		case !math.IsNaN(v):
			sum[i] += v
		}
	}
	return sum
}

// means returns the mean of the values in each slot.
func means(of []float64, slots []int, n int) []float64 {
	out, counts := make([]float64, n), make([]int, n)
	for i, v := range of {
		if !math.IsNaN(v) {
			counts[slots[i]]++
			out[slots[i]] += (v - out[slots[i]]) / float64(counts[slots[i]])
		}
	}
	for i := range out {
		if counts[i] == 0 {
			out[i] = math.NaN()
		}
	}
	return out
}

// newest returns the mean of the rates in the last seconds, NaN if there is none at the end.
func newest(times []time.Time, rates []float64) float64 {
	n := len(rates) - 1
	if n < 1 || math.IsNaN(rates[n]) {
		return math.NaN()
	}
	amount, elapsed := 0., 0.
	for i := n; i > 0 && !math.IsNaN(rates[i]) && (i == n || times[n].Sub(times[i-1]) <= trafficTime); i-- {
		seconds := times[i].Sub(times[i-1]).Seconds()
		amount, elapsed = amount+rates[i]*seconds, elapsed+seconds
	}
	return amount / max(elapsed, 1e-3)
}
