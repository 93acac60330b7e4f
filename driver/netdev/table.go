package netdev

import (
	"bytes"
	"fmt"
	"strconv"
)

// The columns of /proc/net/dev (dev_seq_printf_stats in net/core/net-procfs.c), in the order of
// counterFiles. Received drops are the sum of rx_dropped and rx_missed_errors.
func tableColumns() [numCounters]int { return [numCounters]int{0, 8, 1, 9, 2, 10, 3, 11} }

const numColumns = 16

// parseTable returns the counters of one interface in a /proc/net/dev. ok is false if the interface
// is missing.
func parseTable(table []byte, name string) (counters [numCounters]uint64, ok bool, err error) {
	for line := range bytes.Lines(table) {
		have, rest, isRow := bytes.Cut(line, []byte(":"))
		if !isRow || string(bytes.TrimSpace(have)) != name {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) < numColumns {
			return counters, false, fmt.Errorf("%d columns of net/dev, want %d", len(fields), numColumns)
		}
		for n, column := range tableColumns() {
			if counters[n], err = strconv.ParseUint(string(fields[column]), 10, 64); err != nil {
				return counters, false, fmt.Errorf("column %d of net/dev: %w", column+1, err)
			}
		}
		return counters, true, nil
	}
	return counters, false, nil
}
