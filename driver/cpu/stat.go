package cpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxCPUs is the maximum number of CPUs of Linux (NR_CPUS).
	maxCPUs = 8192
	// maxBytes is above the size of the lines of so many CPUs, each of a name and ten numbers.
	maxBytes = 4 << 20
	// maxTicks is the maximum of a counter: far above that of any CPU, and low enough for sums.
	maxTicks = 1 << 53
)

// ticks has the times of a CPU since the machine started, in USER_HZ.
type ticks struct {
	cpu        int
	busy, idle uint64
	garbled    bool // its line has something else than its times
}

var (
	errColumns = errors.New("too few columns")
	errNumber  = errors.New("not the number of a CPU")
	errTwice   = errors.New("CPU is there twice")
	errNone    = errors.New("no CPU in it")
)

// parseStat returns the times of the online CPUs: the lines cpuN at the top of /proc/stat (proc(5),
// Documentation/filesystems/proc.rst). It reads no further. Malformed lines have no times, and are
// omitted if they have no number of a CPU; the error has the first one and their number.
func parseStat(r io.Reader) ([]ticks, error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxBytes))
	var all []ticks
	var bad sysfs.Problems
	seen := map[int]bool{}
	for lines.Scan() && bytes.HasPrefix(lines.Bytes(), []byte("cpu")) {
		t, isSum, err := parseLine(lines.Bytes())
		bad.Add(err)
		switch {
		case isSum, err != nil && !t.garbled:
		case seen[t.cpu]:
			bad.Add(fmt.Errorf("cpu%d: %w", t.cpu, errTwice))
		default:
			seen[t.cpu] = true
			all = append(all, t)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) { // lines of interrupts are long
		return nil, err
	}
	if len(all) == 0 {
		bad.Add(errNone)
	}
	return all, bad.Err()
}

// parseLine returns the times in the line of a CPU. Its columns are user, nice, system, idle,
// iowait, irq, softirq, steal, guest and guest_nice; user and nice include the last two.
func parseLine(line []byte) (t ticks, isSum bool, err error) {
	const idle, iowait, steal = 4, 5, 8
	column := 0
	for field := range bytes.FieldsSeq(line) {
		switch {
		case column == 0 && string(field) == "cpu":
			return t, true, nil
		case column == 0:
			t.cpu, err = parseNumber(field)
		case column == idle, column == iowait:
			err = addTicks(&t.idle, field)
		case column <= steal:
			err = addTicks(&t.busy, field)
		}
		if err != nil {
			return ticks{cpu: t.cpu, garbled: column > 0}, false, fmt.Errorf("%.32q, column %d: %w", line, column, err)
		}
		column++
	}
	if column <= steal {
		return ticks{cpu: t.cpu, garbled: true}, false, fmt.Errorf("%.32q: %w", line, errColumns)
	}
	return t, false, nil
}

// parseNumber returns the number in the name of a CPU.
func parseNumber(name []byte) (int, error) {
	n, err := strconv.ParseUint(string(name[len("cpu"):]), 10, 16)
	if err != nil || n >= maxCPUs {
		return 0, errNumber
	}
	return int(n), nil
}

func addTicks(sum *uint64, column []byte) error {
	v, err := strconv.ParseUint(string(column), 10, 64)
	if err == nil && v > maxTicks {
		err = strconv.ErrRange
	}
	*sum += v
	return err
}
