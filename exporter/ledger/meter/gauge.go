package meter

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// MaxIntegration is the longest time between two readings of a gauge over which it is integrated.
// Over longer times nothing is known, and nothing is counted.
const MaxIntegration = 90 * time.Second

// Level estimates a gauge in a piece of the time between two readings. It changes evenly or, if the
// holder changed in between, at that moment.
func Level(last, next driver.Reading, from, to time.Time) float64 {
	first, final := !from.After(last.At), !to.Before(next.At)
	switch {
	case first && !final:
		return last.Value
	case final && !first:
		return next.Value
	default:
		return (last.Value + next.Value) / 2
	}
}
