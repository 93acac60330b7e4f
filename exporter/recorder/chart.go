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

// Chart is a recording as documents have it: a list of times, and series of values at these times.
type Chart struct {
	Times  []time.Time   `json:"times"`
	Series []ChartSeries `json:"series"`
}

// valid reports whether each series has a value for each time.
func (c *Chart) valid() bool {
	return len(c.Series) <= maxEvidence &&
		!slices.ContainsFunc(c.Series, func(s ChartSeries) bool { return s.Values.ticks != len(c.Times) })
}

// ChartSeries is a series of a device, or of the part that a claim or pod has of it.
type ChartSeries struct {
	Of        OwnerKind `json:"of"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	driver.ID
	Quantity string            `json:"quantity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Unit     string            `json:"unit,omitempty"`
	// Rate says that the quantity is a counter, and that the values are its rates per second since
	// the time before.
	Rate bool `json:"rate,omitempty"`
	// Values are null where the quantity was not read. They are rounded to a thousandth.
	Values Values `json:"values"`
}

// Values are values of a series, NaN where they are absent, which is null in JSON. In memory they
// are encoded like those of the ring.
type Values struct {
	data  []byte
	ticks int
}

// NewValues encodes values.
func NewValues(values []float64) Values {
	e := newEncoder(nil)
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			e.skip(1)
		} else {
			e.put(v)
		}
	}
	e.flush()
	return Values{bytes.Clone(e.out), len(values)}
}

// Floats returns the values.
func (v Values) Floats() []float64 { return decode(make([]float64, 0, v.ticks), v.data, v.ticks) }

// MarshalJSON writes a list of numbers and nulls.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 6*v.ticks+2)
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

// chart returns a window as a chart.
func chart(w Window, catalogue driver.Catalogue) *Chart {
	out := &Chart{Times: make([]time.Time, 0, len(w.Times)), Series: make([]ChartSeries, 0, len(w.Series))}
	for _, t := range w.Times {
		out.Times = append(out.Times, t.UTC().Truncate(time.Millisecond))
	}
	for i := range w.Series {
		s := &w.Series[i]
		spec := catalogue.Spec(s.Quantity)
		c := ChartSeries{
			Of: s.Owner.Kind, Namespace: s.Owner.Namespace, Name: s.Owner.Name, ID: s.Owner.Device, Quantity: spec.Name,
			Unit: spec.Unit, Rate: s.Counter, Values: NewValues(s.Values),
		}
		for n, l := range spec.Labels {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[l.Name] = s.Labels[n]
		}
		out.Series = append(out.Series, c)
	}
	return out
}
