package intelgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// perfGroup is a group of kernel counters. Reading the first one returns all of them
// (perf_event_open(2), PERF_FORMAT_GROUP).
type perfGroup struct {
	counters []int
	buffer   []byte
	counts   []uint64
}

// openPerf is an [opener]. It counts the activity of all processes, which needs CAP_PERFMON or a
// kernel.perf_event_paranoid below 1.
func openPerf(pmu uint32, cpu int, events []uint64) (group, []bool, error) {
	g := &perfGroup{}
	there := make([]bool, len(events))
	for i, event := range events {
		leader := -1
		if len(g.counters) > 0 {
			leader = g.counters[0]
		}
		fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{
			Type: pmu, Config: event, Read_format: unix.PERF_FORMAT_GROUP,
			Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		}, -1, cpu, leader, unix.PERF_FLAG_FD_CLOEXEC)
		switch {
		case err == nil:
			g.counters, there[i] = append(g.counters, fd), true
		case !isNoEvent(err):
			g.close()
			return nil, nil, fmt.Errorf("perf_event_open: %w", err)
		}
	}
	g.prepare()
	return g, there, nil
}

// word is the size in bytes of a count, and of the number of counts.
const word = 8

// prepare allocates the buffer for read.
func (g *perfGroup) prepare() {
	g.buffer, g.counts = make([]byte, word*(1+len(g.counters))), make([]uint64, len(g.counters))
}

// isNoEvent reports whether the error says that the event does not exist.
func isNoEvent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

var errShortRead = errors.New("the kernel returned other counters than were opened")

func (g *perfGroup) read() ([]uint64, error) {
	if len(g.counters) == 0 {
		return nil, nil
	}
	n, err := unix.Read(g.counters[0], g.buffer)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(g.counters[0], g.buffer)
	}
	if err != nil {
		return nil, err
	}
	order := binary.NativeEndian
	if n != len(g.buffer) || order.Uint64(g.buffer) != uint64(len(g.counters)) {
		return nil, errShortRead
	}
	for i := range g.counts {
		g.counts[i] = order.Uint64(g.buffer[word*(i+1):])
	}
	return g.counts, nil
}

func (g *perfGroup) close() {
	for _, fd := range g.counters {
		_ = unix.Close(fd)
	}
	g.counters = nil
}
