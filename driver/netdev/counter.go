package netdev

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const numCounters = 8

// counterFile is a file below an interface's folder, with the quantity that it counts.
type counterFile struct {
	path     string
	quantity driver.Quantity
	labels   driver.Labels
}

// missedErrors is the file of the packets that the hardware dropped for lack of buffers. They count
// as received drops, as in /proc/net/dev, so that the counter of an interface continues in a pod.
const missedErrors = "statistics/rx_missed_errors"

// counterFiles returns the counters that are read.
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

// readCounters adds the kernel's counters.
func readCounters(a *sysfs.Attributes) {
	for _, f := range counterFiles() {
		n, ok := a.Value(f.path)
		if ok && f.path == "statistics/rx_dropped" && !driver.IsMalformed(n) {
			missed, _ := a.Value(missedErrors)
			n += missed
		}
		if ok {
			a.Add(f.quantity, n, f.labels[:]...)
		}
	}
}
