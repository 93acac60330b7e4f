package join

import "strings"

// Origin is where a value is from: the source that reads it, and what was computed from its
// readings.
type Origin struct {
	Source   string
	Computed Computed
}

// Computed are the steps from readings to a value, in their order. 0: the value was read.
type Computed uint8

// The steps.
const (
	Estimated Computed = 1 << iota // by the source
	Integral                       // of a gauge: there is no hardware counter
	Divided                        // a part of the value of the device's parent
	// DividedByShare is a part in proportion to the size of the partition, whose activity is unknown.
	DividedByShare
)

// steps are the texts of the steps.
func steps() [4]string {
	return [...]string{" (estimate)", " (integral of its gauge)", " (divided)", " (divided by share)"}
}

// String returns the source, and each step in parentheses.
func (o Origin) String() string {
	var text strings.Builder
	text.WriteString(o.Source)
	for i, step := range steps() {
		if o.Computed&(1<<i) != 0 {
			text.WriteString(step)
		}
	}
	return text.String()
}

// ParseOrigin is the inverse of String.
func ParseOrigin(text string) Origin {
	for i, step := range steps() {
		if before, found := strings.CutSuffix(text, step); found {
			return ParseOrigin(before).With(1 << i)
		}
	}
	return Origin{Source: text}
}

// With returns the origin of what is computed from the value.
func (o Origin) With(step Computed) Origin { return Origin{o.Source, o.Computed | step} }
