package cpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// maxCPUs is the highest number of CPUs that Linux can be built for (NR_CPUS).
	maxCPUs = 8192

	// maxLine bounds the line of a CPU: a name and ten numbers.
	maxLine = 512

	// maxTicks is far above what any CPU has counted, and low enough for sums.
	maxTicks = 1 << 53
)

// ticks is what a CPU has spent since the machine started, in USER_HZ.
type ticks struct {
	cpu        int
	busy, idle uint64
}

var (
	errColumns = errors.New("too few columns")
	errNumber  = errors.New("not the number of a CPU")
	errTwice   = errors.New("CPU is there twice")
	errLong    = errors.New("line is too long")
	errTooMany = fmt.Errorf("more than %d lines of CPUs", maxCPUs)
	errNone    = errors.New("no CPU in it")
)

// parseStat returns the times of the CPUs that are online, which are the lines cpuN at the top of /proc/stat
// (proc(5), Documentation/filesystems/proc.rst). It reads no further. A bad line costs its own CPU: the error tells
// of the first, and the number of all.
func parseStat(r io.Reader) ([]ticks, error) {
	lines := bufio.NewReaderSize(r, maxLine)
	var all []ticks
	var bad rejects
	seen := map[int]bool{}
	for n := 0; ; n++ {
		line, err := readLine(lines)
		if !bytes.HasPrefix(line, []byte("cpu")) {
			if err != nil && err != io.EOF && err != errLong {
				return nil, err
			}
			break
		}
		if n > maxCPUs { // one line is the sum of all
			bad.add(errTooMany)
			break
		}
		t, isSum, err := parseLine(line, err)
		switch {
		case isSum:
		case err != nil:
			bad.add(err)
		case seen[t.cpu]:
			bad.add(fmt.Errorf("cpu%d: %w", t.cpu, errTwice))
		default:
			seen[t.cpu] = true
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		bad.add(errNone)
	}
	return all, bad.err()
}

// rejects are the lines that could not be used: the first one's error, and their number.
type rejects struct {
	first error
	count int
}

func (r *rejects) add(err error) {
	if r.count++; r.first == nil {
		r.first = err
	}
}

func (r *rejects) err() error {
	if r.count < 2 {
		return r.first
	}
	return fmt.Errorf("%w (and %d more errors)", r.first, r.count-1)
}

// readLine returns the next line, valid until the next call, or the beginning of one that is too long, which it skips.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, err
	}
	if !bytes.HasPrefix(line, []byte("cpu")) {
		return line, errLong // the end of what matters
	}
	for err == bufio.ErrBufferFull {
		_, err = r.ReadSlice('\n')
	}
	if err != nil && err != io.EOF {
		return []byte("cpu"), err
	}
	return []byte("cpu"), errLong
}

// parseLine returns the times of a CPU's line. Its columns are user, nice, system, idle, iowait, irq, softirq, steal,
// guest and guest_nice; what guests used is in user and nice already. The error is that of reading the line, if any.
func parseLine(line []byte, err error) (t ticks, isSum bool, _ error) {
	const user, idle, iowait, steal = 1, 4, 5, 8
	if err != nil && err != io.EOF {
		return t, false, err
	}
	columns := bytes.Fields(line)
	name := string(columns[0])
	if name == "cpu" {
		return t, true, nil
	}
	number, err := strconv.ParseUint(name[len("cpu"):], 10, 16)
	if err != nil || number >= maxCPUs {
		return t, false, fmt.Errorf("%.32q: %w", name, errNumber)
	}
	if len(columns) <= steal {
		return t, false, fmt.Errorf("%s: %w", name, errColumns)
	}
	t.cpu = int(number)
	for i, column := range columns[user : steal+1] {
		v, err := strconv.ParseUint(string(column), 10, 64)
		if err == nil && v > maxTicks {
			err = strconv.ErrRange
		}
		if err != nil {
			return ticks{}, false, fmt.Errorf("%s, column %d: %w", name, i+user, err)
		}
		if i+user == idle || i+user == iowait {
			t.idle += v
		} else {
			t.busy += v
		}
	}
	return t, false, nil
}
