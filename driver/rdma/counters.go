package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
)

// errNoValue is the error of a file that says that the device has no such value.
var errNoValue = fmt.Errorf("the device has no value: %w", unix.EOPNOTSUPP)

// parseState parses the file state of a port, such as "4: ACTIVE" (enum ib_port_state in
// include/rdma/ib_verbs.h), and returns 1 if the port is up, else 0.
func parseState(value []byte) (up float64, err error) {
	const down, active, deferred = 1, 4, 5
	number, _, _ := bytes.Cut(value, []byte(":"))
	state, err := strconv.ParseUint(string(number), 10, 8)
	switch {
	case err != nil:
		return 0, err
	case state < down || state > deferred:
		return 0, errNoValue
	case state >= active:
		return 1, nil
	}
	return 0, nil
}

// parseRate parses the file rate of a port, such as "100 Gb/sec (4X EDR)", in bytes per second.
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

var errRate = driver.WithReason(driver.ReasonMalformed, errors.New("not a rate in Gb/sec"))
