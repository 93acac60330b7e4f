package ledger

import (
	"cmp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Series is what a number means. It is immutable, belongs to one device or one holder, and is the
// same pointer in all snapshots as long as its meaning stays, so that the pointer identifies it.
type Series struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Source   string    // of a device's own values
	Born     time.Time // of counters: since when it counts
	Shown    time.Time // of counters: when it was first in a snapshot
}

// Value is a number and what it means.
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
	return cmp.Or(
		cmp.Compare(k.quantity, other.quantity),
		strings.Compare(k.labels[0], other.labels[0]),
		strings.Compare(k.labels[1], other.labels[1]),
	)
}

// from returns the series with another source.
func (s *Series) from(source string) *Series {
	other := *s
	other.Source = source
	return &other
}

// integralSuffix is added to the name of a source whose gauge is integrated in place of a hardware
// counter.
const integralSuffix = " (integral of its gauge)"

// Estimated reports whether the source of a series says that the values are not measured
// themselves: they are integrals, parts of a parent's, or estimates.
func Estimated(source string) bool { return strings.HasSuffix(source, ")") }

// Suffixes of the sources of quantities that the holders of a partition have parts of.
const (
	dividedSuffix        = " (divided)"
	dividedByShareSuffix = " (divided by share)" // the activity of the partition is unknown
)

// dividedFrom returns the series as one of values that are parts of the parent's, which come from
// that source.
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
