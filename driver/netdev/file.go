package netdev

import (
	"errors"
	"io"
	"strconv"
)

// parseSpeed converts the kernel's speed in Mbit/s to bytes per second; 0 if it is -1, which means
// unknown (Documentation/ABI/testing/sysfs-class-net).
func parseSpeed(line []byte) (float64, error) {
	const bytesPerMegabit = 1e6 / 8
	megabits, err := strconv.ParseInt(string(line), 10, 64)
	// A value above the 31 bits of ethtool is -1 of a driver that treats it as unsigned.
	if err != nil || megabits < 0 || megabits >= 1<<31-1 {
		return 0, err
	}
	return float64(megabits) * bytesPerMegabit, nil
}

func nilAtEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
