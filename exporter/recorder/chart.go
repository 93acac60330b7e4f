package recorder

import (
	"encoding/json"
	"fmt"
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

// NewValues returns values, of which those that are no numbers are absent.
func NewValues(values []float64) Values {
	out := make(Values, 0, len(values))
	for _, v := range values {
		out = append(out, codeOf(v))
	}
	return out
}

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
