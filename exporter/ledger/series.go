package ledger

import (
	"cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// seriesKey identifies a series of a device.
type seriesKey struct {
	quantity driver.Quantity
	labels   driver.Labels
}

func newSeries(key seriesKey) *book.Series {
	return &book.Series{Quantity: key.quantity, Labels: key.labels}
}

func (k seriesKey) compare(other seriesKey) int {
	if c := cmp.Compare(k.quantity, other.quantity); c != 0 {
		return c
	}
	return k.labels.Compare(&other.labels)
}
