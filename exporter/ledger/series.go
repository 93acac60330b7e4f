package ledger

import (
	"cmp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Series is the identity of a value. It is immutable and belongs to one device or holder. The same
// identity has the same pointer in all snapshots.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Source   string    // for values of a device
	Born     time.Time // for counters: since when it counts
	Shown    time.Time // for counters: when it was first in a snapshot
}

// Value is a number and its identity.
type Value struct {
	*Series
	Value float64
}

// seriesKey identifies a series of a device.
type seriesKey struct {
	quantity driver.Quantity
	labels   driver.Labels
}

func newSeries(key seriesKey) *Series {
	return &Series{Quantity: key.quantity, Labels: key.labels}
}

func (k seriesKey) compare(other seriesKey) int {
	if c := cmp.Compare(k.quantity, other.quantity); c != 0 {
		return c
	}
	return k.labels.Compare(&other.labels)
}

// from returns the series with another source.
func (s *Series) from(source string) *Series {
	other := *s
	other.Source = source
	return &other
}

// integralSuffix is appended to the source's name if a gauge is integrated because there is no
// hardware counter.
const integralSuffix = " (integral of its gauge)"

// Estimated reports whether the values of a source are not measured: they are integrals, parts of a
// parent's values, or estimates.
func Estimated(source string) bool { return strings.HasSuffix(source, ")") }

// Suffixes of the names of sources, for quantities of a parent that are divided among the holders
// of a partition.
const (
	dividedSuffix        = " (divided)"
	dividedByShareSuffix = " (divided by share)" // the activity of the partition is unknown
)

// dividedFrom returns the series for parts of the parent's values, which source measures.
func (s *Series) dividedFrom(source string, activity float64) *Series {
	suffix := dividedSuffix
	if activity < 0 {
		suffix = dividedByShareSuffix
	}
	if len(s.Source) == len(source)+len(suffix) && s.Source[:len(source)] == source && s.Source[len(source):] == suffix {
		return s
	}
	return s.from(source + suffix)
}
