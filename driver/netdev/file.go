package netdev

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// parseSpeed returns the speed in bytes per second of what the kernel tells in Mbit/s; 0 where it
// says -1, unknown (Documentation/ABI/testing/sysfs-class-net).
func parseSpeed(line []byte) (float64, error) {
	const bytesPerMegabit = 1e6 / 8
	megabits, err := strconv.ParseInt(string(line), 10, 64)
	// Above what ethtool's 31 bits hold it is an unknown that a driver took for unsigned.
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

// addUnlessAbsent adds the error of a file, unless it says that there is no such value.
func addUnlessAbsent(bad *sysfs.Problems, err error, name, path string) {
	if !sysfs.IsAbsent(err) {
		bad.Add(fmt.Errorf("read %s of network interface %s: %w", path, name, err))
	}
}
