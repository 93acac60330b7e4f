package netdev

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	numCounters   = 8
	receivedDrops = 6 // among counterFiles
)

// counterFile is a file below an interface's folder, with the quantity that it counts.
type counterFile struct {
	path     string
	quantity driver.Quantity
	labels   driver.Labels
}

// counterFiles returns the counters that are read. Drops are the kernel's rx_dropped and
// tx_dropped. Unlike the column of /proc/net/dev, they do not include packets that the hardware
// dropped for lack of buffers (rx_missed_errors).
func counterFiles() [numCounters]counterFile {
	const receive, transmit = "receive", "transmit"
	return [numCounters]counterFile{
		{"statistics/rx_bytes", driver.IOBytes, driver.Labels{"network", receive}},
		{"statistics/tx_bytes", driver.IOBytes, driver.Labels{"network", transmit}},
		{"statistics/rx_packets", driver.NetworkPackets, driver.Labels{receive}},
		{"statistics/tx_packets", driver.NetworkPackets, driver.Labels{transmit}},
		{"statistics/rx_errors", driver.NetworkErrors, driver.Labels{receive}},
		{"statistics/tx_errors", driver.NetworkErrors, driver.Labels{transmit}},
		{"statistics/rx_dropped", driver.NetworkDrops, driver.Labels{receive}},
		{"statistics/tx_dropped", driver.NetworkDrops, driver.Labels{transmit}},
	}
}

// counter continues a counter of the kernel across its resets.
type counter struct {
	sysfs.Continued
	read     bool      // at the last measurement
	garbled  bool      // the last measurement found something else than a number
	fromZero bool      // the first value seen counts as zero
	since    time.Time // when the value was zero; the zero time: unknown
	rebase   bool      // the kernel's next value does not continue the last one: the increase is unknown
}

// advance stores the kernel's value at a time.
func (c *counter) advance(raw uint64, at time.Time) {
	switch {
	case driver.IsCode(float64(raw)):
		c.Value = raw // for this reading
		return
	case c.Known() && c.rebase:
		c.Jump(raw)
	case !c.Known() && c.fromZero:
		c.Jump(raw)
		c.since = at
	default:
		c.Advance(raw)
	}
	c.rebase = false
}

// take records what came of reading the counter: the kernel's value, or an error.
func (c *counter) take(raw uint64, err error, at time.Time) {
	c.read, c.garbled = err == nil, driver.ReasonOf(err) == driver.ReasonMalformed
	if c.read {
		c.advance(raw, at)
	}
}

// lose records that the counter could not be read.
func (c *counter) lose() { c.read, c.garbled = false, false }

// report appends the reading of the counter, if there is one.
func (c *counter) report(to []driver.Reading, q driver.Quantity, labels driver.Labels, at time.Time) []driver.Reading {
	switch {
	case c.garbled:
		return append(to, driver.Reading{Quantity: q, Labels: labels, Value: driver.Malformed(), At: at})
	case c.read:
		return append(to, driver.Reading{Quantity: q, Labels: labels, Value: float64(c.Value), At: at, Since: c.since})
	}
	return to
}
