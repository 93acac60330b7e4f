package present

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Figure is a value of a row: as text in the unit of the page, "" if it is unknown, and as the
// number by which rows are sorted.
type Figure struct {
	Text   string
	Number float64
}

// newFigure returns a figure with four significant digits.
func newFigure(text string, v float64) Figure {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil || math.IsNaN(rounded) { // JSON has neither
		return Figure{Text: text}
	}
	return Figure{text, rounded}
}

// lasting returns a span of time in seconds.
func lasting(seconds float64) Figure { return newFigure(Duration(seconds), seconds) }

// timeFigure returns a time.
func timeFigure(at time.Time) Figure { return Figure{Clock(at), float64(at.Unix())} }

// String returns the text.
func (f Figure) String() string { return f.Text }

// MarshalJSON writes the figure as an array, which is empty if it is unknown.
func (f Figure) MarshalJSON() ([]byte, error) {
	if f.Text == "" {
		return []byte("[]"), nil
	}
	return json.Marshal([]any{f.Text, f.Number})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Figure) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&f.Text, &f.Number})
}

// figures are the values of a device, or of a claim's or pod's part of it.
type figures struct {
	Utilization Figure `json:"utilization"`
	Memory      Figure `json:"memory"` // used; the text has the capacity, too
	Power       Figure `json:"power"`
	Temperature Figure `json:"temperature"` // the highest one
	Traffic     Figure `json:"traffic"`     // a rate
	Trend       trend  `json:"trend,omitempty"`
}

// figuresOf returns the figures of a row, except traffic.
func figuresOf(values []book.Value) figures {
	numbers := map[driver.Quantity]float64{}
	for i := range values {
		v := &values[i]
		if before, known := numbers[v.Quantity]; !known || v.Quantity == driver.Temperature && v.Value > before {
			numbers[v.Quantity] = v.Value
		}
	}
	of := func(q driver.Quantity) Figure {
		v, known := numbers[q]
		if !known {
			return Figure{}
		}
		spec := q.Spec()
		return newFigure(inUnit(v, &spec), v)
	}
	out := figures{
		Utilization: of(driver.Utilization), Memory: of(driver.MemoryUsed), Power: of(driver.Power),
		Temperature: of(driver.Temperature),
	}
	if capacity := of(driver.MemoryCapacity).Text; capacity != "" && out.Memory.Text != "" {
		out.Memory.Text += " of " + capacity
	}
	return out
}

// Sum returns the number of devices of some nodes, of those in states that need attention, and of
// open incidents.
func Sum(nodes []*Page) string {
	devices, held, open, counts := 0, 0, 0, map[book.State]int{}
	for _, of := range nodes {
		devices += len(of.Devices)
		for i := range of.Devices {
			counts[of.Devices[i].State]++
			if len(of.Devices[i].Holders) > 0 {
				held++
			}
		}
		for i := range of.Incidents {
			if of.Incidents[i].IsOpen() {
				open++
			}
		}
	}
	out := []string{Count(devices, "device") + fmt.Sprintf(", %d held", held)}
	for _, s := range alarming() {
		if n := counts[s]; n > 0 {
			out = append(out, countOf(n, s))
		}
	}
	if open > 0 {
		out = append(out, Count(open, "incident")+" open")
	}
	return strings.Join(out, ", ")
}

// alarming returns the states that need attention, the worst first.
func alarming() []book.State {
	return []book.State{book.StateUnhealthy, book.StateStalled, book.StateQuiet, book.StateUnmeasured}
}

// countOf formats a number of devices in a state.
func countOf(n int, state book.State) string { return fmt.Sprintf("%d %s", n, state) }
