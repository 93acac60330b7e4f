package ledger

import (
	"github.com/dra-exporter/dra-exporter/driver"
)

// For the tests of the package ledger_test.
const (
	MaxSegments    = maxSegments
	RememberFor    = rememberFor
	MaxIntegration = maxIntegration
	IntegralSuffix = integralSuffix
)

// Sizes returns how much the ledger keeps of a device.
func (l *Ledger) Sizes(id driver.ID) (meters, counters, segments int) {
	d := l.devices[id]
	return len(d.meters), len(d.counters), len(d.timeline)
}

// Parts returns how many partitions of a device the ledger knows.
func (l *Ledger) Parts(id driver.ID) int { return len(l.devices[id].parts) }
