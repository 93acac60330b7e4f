package netdev

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
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
	read       bool      // at the last measurement
	known      bool      // was read at all
	fromZero   bool      // the first value seen counts as zero
	raw, value uint64    // the kernel's value, and ours
	since      time.Time // when value was zero; the zero time: unknown
	rebase     bool      // the kernel's next value does not continue the last one: the increase is unknown
}

// advance stores the kernel's value at a time. A value that fell was reset to zero.
func (c *counter) advance(raw uint64, at time.Time) {
	switch {
	case c.known && c.rebase:
	case c.known && raw >= c.raw:
		c.value += raw - c.raw
	case c.known:
		c.value += raw
	case c.fromZero:
		c.since = at
	default:
		c.value = raw
	}
	c.known, c.raw, c.rebase = true, raw, false
}
