package rdma

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// counterFile is a file below a port's folder and what it counts.
type counterFile struct {
	path     string
	quantity driver.Quantity
	labels   driver.Labels
	scale    float64
}

// The first counterFiles are those of traffic, which are read at every sample: where a port has no
// file of the first two, the next two stand in for them.
const (
	numTraffic = 2
	numFast    = 2 * numTraffic
)

// counterFiles returns the files that are read. What counters/port_*_data count is octets divided
// by four (Documentation/ABI/stable/sysfs-class-infiniband); hw_counters of EFA count octets
// (drivers/infiniband/hw/efa/efa_verbs.c).
func counterFiles() []counterFile {
	const receive, transmit = "receive", "transmit"
	files := []counterFile{
		{"counters/port_rcv_data", driver.IOBytes, driver.Labels{"rdma", receive}, 4},
		{"counters/port_xmit_data", driver.IOBytes, driver.Labels{"rdma", transmit}, 4},
		{"hw_counters/rx_bytes", driver.IOBytes, driver.Labels{"rdma", receive}, 1},
		{"hw_counters/tx_bytes", driver.IOBytes, driver.Labels{"rdma", transmit}, 1},
		{"counters/link_downed", driver.Errors, driver.Labels{"link_down", ""}, 1},
	}
	for _, name := range [...]string{
		"symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
		"port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
		"local_link_integrity_errors", "excessive_buffer_overrun_errors",
	} {
		files = append(files, counterFile{"counters/" + name, driver.Errors, driver.Labels{"port", name}, 1})
	}
	for _, name := range driver.RDMAEventNames() {
		folder := "hw_counters/"
		switch name {
		case "port_xmit_discards", "port_xmit_wait", "VL15_dropped":
			folder = "counters/"
		}
		files = append(files, counterFile{folder + name, driver.RDMAEvents, driver.Labels{name}, 1})
	}
	return files
}

// counter goes on where the device's starts again: tools set the counters of ports back to zero.
type counter struct {
	known      bool
	missing    bool // the last attempt found no value
	raw, value uint64
}

func (c *counter) advance(raw uint64) {
	switch {
	case c.known && raw >= c.raw:
		c.value += raw - c.raw
	default: // of the first value, or one that fell, all counts
		c.value += raw
	}
	c.known, c.missing, c.raw = true, false, raw
}

// errNoValue says that the device does not have a value.
var errNoValue = errors.New("the device has no value")

// parseCounter returns the number of a counter's file. Where hardware does not count, older kernels
// write "N/A (no PMA)".
func parseCounter(value []byte) (uint64, error) {
	if bytes.HasPrefix(value, []byte("N/A")) {
		return 0, errNoValue
	}
	return strconv.ParseUint(string(value), 10, 64)
}

// parseState returns whether a port is up, by its file state: "4: ACTIVE", of the states of enum
// ib_port_state in include/rdma/ib_verbs.h.
func parseState(value []byte) (up bool, err error) {
	const down, active, deferred = 1, 4, 5
	number, _, _ := bytes.Cut(value, []byte(":"))
	state, err := strconv.ParseUint(string(number), 10, 8)
	switch {
	case err != nil:
		return false, err
	case state < down || state > deferred:
		return false, errNoValue
	}
	return state >= active, nil
}

// parseRate returns the rate of a port in bytes a second, by its file rate: "100 Gb/sec (4X EDR)".
func parseRate(value []byte) (float64, error) {
	const bytesPerGigabit, most = 1e9 / 8, 1e6
	number, _, ok := bytes.Cut(value, []byte(" Gb/sec"))
	if !ok {
		return 0, errRate
	}
	gigabits, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		return 0, err
	}
	if !(gigabits >= 0 && gigabits <= most) { // NaN neither
		return 0, errRate
	}
	return gigabits * bytesPerGigabit, nil
}

var errRate = errors.New("not a rate in Gb/sec")

// isAbsent reports whether an error says that there is no such value.
func isAbsent(err error) bool { return sysfs.IsAbsent(err) || errors.Is(err, errNoValue) }
