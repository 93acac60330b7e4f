// Package cpu reads the utilization of each logical CPU of the node.
//
// A DRA device can be any set of CPUs. This package reports each CPU separately; the join sums
// them.
//
// Bounds (max…) are for what the kernel sends.
package cpu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// userHZ is the number of ticks per second in /proc/stat, on every architecture that Go supports
	// (sysconf(_SC_CLK_TCK), proc(5)).
	userHZ = 100

	// minWindow is the minimum time over which utilization is computed. A tick is 10 ms.
	minWindow = 50 * time.Millisecond
)

// Source reads the online CPUs from <procfs>/stat, which has those of the machine in every
// namespace. It is a [driver.Source].
//
// A CPU is busy while it runs anything (user, nice, system, irq, softirq) and while the hypervisor
// runs something else (steal), but not while it is idle or waits for I/O. Utilization is the mean
// since the Sample before, over at least 50 ms. Active seconds are the kernel's counter.
type Source struct {
	path string
	now  func() time.Time
	cpus map[int]*state
	call uint64 // counts the samples that could be read
}

var _ driver.Source = (*Source)(nil)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h.Procfs), nil }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity { return []driver.Quantity{driver.Utilization, driver.ActiveSeconds} }

// New returns a source that reads the procfs at a mount point.
func New(procfs string) *Source {
	return &Source{path: filepath.Join(procfs, "stat"), now: time.Now, cpus: map[int]*state{}}
}

// Name returns cpu.
func (*Source) Name() string { return "cpu" }

// Sample returns a sample of each CPU that is online, in the kernel's order.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read CPU times: %w", err)
	}
	file, err := sysfs.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CPU times: %w", err)
	}
	defer func() { _ = file.Close() }()
	at := s.now()
	all, err := parseStat(file)
	if err != nil {
		err = driver.WithReason(driver.ReasonMalformed, fmt.Errorf("read CPU times of %s: %w", s.path, err))
	}
	return s.samples(all, at), err
}

func (s *Source) samples(all []ticks, at time.Time) []driver.Sample {
	s.call++
	samples := make([]driver.Sample, len(all))
	numbers := make([]int, len(all)) // of all samples, each of which gets one
	readings := make([]driver.Reading, 0, 2*len(all))
	for i, t := range all {
		numbers[i] = t.cpu
		hardware, begin := driver.Hardware{CPUs: numbers[i : i+1 : i+1]}, len(readings)
		if t.garbled {
			for _, q := range Fills() {
				readings = append(readings, driver.Reading{Quantity: q, Value: driver.Malformed(), At: at})
			}
			samples[i] = driver.Sample{Hardware: hardware, Readings: readings[begin:len(readings):len(readings)]}
			continue
		}
		c := s.cpus[t.cpu]
		if c == nil || c.call+1 != s.call { // its activity while it was offline says nothing about the present
			c = &state{at: at, busy: t.busy, idle: t.idle}
			s.cpus[t.cpu] = c
		}
		c.call = s.call
		c.measure(t, at)
		readings = append(readings, driver.Reading{Quantity: driver.ActiveSeconds, Value: float64(t.busy) / userHZ, At: at})
		if !c.utilizationAt.IsZero() {
			readings = append(readings,
				driver.Reading{Quantity: driver.Utilization, Value: c.utilization, At: c.utilizationAt})
		}
		samples[i] = driver.Sample{Hardware: hardware, Readings: readings[begin:len(readings):len(readings)]}
	}
	return samples
}

// state is the state of a CPU between samples.
type state struct {
	call uint64 // the last call that had it

	at         time.Time // start of the window of the next utilization,
	busy, idle uint64    // and the ticks at that time

	utilization   float64
	utilizationAt time.Time // zero: there is none yet
}

// measure computes the utilization over the window that ends now, if it is long enough. If one of
// the kernel's times fell (iowait may: Documentation/filesystems/proc.rst), a new window starts.
func (c *state) measure(t ticks, at time.Time) {
	if t.idle >= c.idle && t.busy >= c.busy {
		busy, idle := t.busy-c.busy, t.idle-c.idle
		if at.Sub(c.at) < minWindow || busy+idle == 0 {
			return
		}
		c.utilization, c.utilizationAt = float64(busy)/float64(busy+idle), at
	}
	c.at, c.busy, c.idle = at, t.busy, t.idle
}

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
