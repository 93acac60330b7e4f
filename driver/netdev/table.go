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

// counts has the counters of one interface, or why they are no numbers.
type counts struct {
	values [numCounters]uint64
	bad    [numCounters]error
}

// parseTable returns the counters of one interface in a /proc/net/dev. ok is false if the interface
// is missing, or its row is none. The error is about the row, or about its last malformed column.
func parseTable(table []byte, name string) (r counts, ok bool, err error) {
	for line := range bytes.Lines(table) {
		have, rest, isRow := bytes.Cut(line, []byte(":"))
		if !isRow || string(bytes.TrimSpace(have)) != name {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) < numColumns {
			return r, false, fmt.Errorf("%d columns of net/dev, want %d", len(fields), numColumns)
		}
		for n, column := range tableColumns() {
			if r.values[n], r.bad[n] = strconv.ParseUint(string(fields[column]), 10, 64); r.bad[n] != nil {
				err = fmt.Errorf("column %d of net/dev: %w", column+1, r.bad[n])
			}
		}
		return r, true, err
	}
	return r, false, nil
}
