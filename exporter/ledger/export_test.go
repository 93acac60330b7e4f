package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
)

// For the tests of the package ledger_test.
const (
	RememberFor    = rememberFor
	MaxCodes       = maxCodes
	MaxIntegration = readings.MaxIntegration
)

// Sizes returns the number of meters, counters and segments that the ledger keeps for a device.
func (l *Ledger) Sizes(id driver.ID) (meters, counters, segments int) {
	return len(l.devices[id].meters), len(l.devices[id].counters), len(l.devices[id].timeline)
}

// History returns what who held what takes, in bytes, as the ledger counts it.
func (l *Ledger) History() (bytes int) {
	for _, d := range l.devices {
		bytes += d.historyBytes()
	}
	return bytes
}

// Knows reports whether the ledger has a record of a device.
func (l *Ledger) Knows(id driver.ID) bool { return l.devices[id] != nil }

// Parts returns how many partitions of a device the ledger knows.
func (l *Ledger) Parts(id driver.ID) int { return len(l.devices[id].parts) }

// Distributed returns the time up to which the values of a claim's quantity are in its
// distribution.
func (l *Ledger) Distributed(h *book.HolderKey, q driver.Quantity) time.Time {
	for _, d := range l.claims.distributions[claimKey{h.Namespace, h.Name, h.Device.Driver}].quantities {
		if d.series.Quantity == q {
			return d.summed
		}
	}
	return time.Time{}
}

// Distributions returns the number of claims whose distributions are kept.
func (l *Ledger) Distributions() int { return len(l.claims.distributions) }

// AppendUnmarked appends the records that have changed since the last call of AppendChanges, also
// those that are not marked as changed.
func (l *Ledger) AppendUnmarked(b []byte, clock func(time.Time) int64) []byte {
	for _, book := range [2]*accountBook{&l.claims, &l.pods} {
		for a := range book.all() {
			a.written.current = false
		}
	}
	for _, d := range l.devices {
		d.periodsSaved = false
	}
	l.saver.turn-- // some records are written in certain turns only: this is the same turn
	return l.AppendChanges(b, clock)
}

// Timeline returns who held which device when.
func (l *Ledger) Timeline() timeline.Timeline { return l.timeline }
