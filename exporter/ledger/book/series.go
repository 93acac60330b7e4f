package book

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Series is the identity of a value. It is immutable and belongs to one device or holder. The same
// identity has the same pointer in all snapshots.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Origin   join.Origin // for values of a device
	Born     time.Time   // for counters: since when it counts
	Shown    time.Time   // for counters: when it was first in a snapshot
}

// Value is a number and its identity.
type Value struct {
	*Series
	Value float64
}

// From returns the series with another origin; the same series if it has that one.
func (s *Series) From(origin join.Origin) *Series {
	if s.Origin == origin {
		return s
	}
	other := *s
	other.Origin = origin
	return &other
}

// DividedFrom returns the series for parts of a parent's value. activity is that of the partition.
func (s *Series) DividedFrom(parent join.Origin, activity float64) *Series {
	if activity < 0 {
		return s.From(parent.With(join.DividedByShare))
	}
	return s.From(parent.With(join.Divided))
}
