package recorder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Chart is a recording in the form of documents: a list of times, and series with a value for each.
type Chart struct {
	Times  []time.Time   `json:"times"`
	Series []ChartSeries `json:"series"`
}

// valid reports whether each series has a value for each time.
func (c *Chart) valid() bool {
	return len(c.Series) <= maxEvidence &&
		!slices.ContainsFunc(c.Series, func(s ChartSeries) bool { return s.Values.ticks != len(c.Times) })
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

// Values are the values of a series, NaN if absent, which is null in JSON. In memory they are
// encoded like those of the ring.
type Values struct {
	data  []byte
	ticks int
}

// NewValues encodes values.
func NewValues(values []float64) Values {
	e := encoder{absent: true}
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			e.skip(1)
		} else {
			e.put(codeOf(v))
		}
	}
	e.flush()
	return Values{bytes.Clone(e.out), len(values)}
}

// Floats returns the values.
func (v Values) Floats() []float64 { return decode(make([]float64, 0, v.ticks), v.data, v.ticks) }

// MarshalJSON writes a list of numbers and nulls.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 8*v.ticks+2) // an element such as 0.1234, has 7 bytes
	out = append(out, '[')
	for i, f := range v.Floats() {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(f) {
			out = append(out, "null"...)
			continue
		}
		out = strconv.AppendFloat(out, f, 'g', 4, 64)
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Values) UnmarshalJSON(text []byte) error {
	var numbers []*float64
	if err := json.Unmarshal(text, &numbers); err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	values := make([]float64, len(numbers))
	for i, n := range numbers {
		values[i] = math.NaN()
		if n != nil {
			values[i] = *n
		}
	}
	*v = NewValues(values)
	return nil
}

// labelled is a quantity with label values.
type labelled struct {
	quantity driver.Quantity
	labels   driver.Labels
}

// chart returns a chart of the first lines of a cut that have values, at most so many. It decodes
// one line after the other. Series with equal values, such as those of a claim and its only pod,
// share them.
func chart(c cut, lines []line, most int, catalogue driver.Catalogue) *Chart {
	out := &Chart{Times: make([]time.Time, 0, len(c.times)), Series: make([]ChartSeries, 0, min(most, len(lines)))}
	for _, t := range c.times {
		out.Times = append(out.Times, t.UTC().Truncate(time.Millisecond))
	}
	var d decoder
	known := map[string]Values{} // by encoded data
	labels := map[labelled]map[string]string{}
	for i := range lines {
		l := &lines[i]
		floats, some := d.decode(l, len(c.times))
		if !some {
			continue
		}
		if len(out.Series) == most {
			break
		}
		values := NewValues(floats)
		if same, found := known[string(values.data)]; found {
			values = same
		} else {
			known[string(values.data)] = values
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
