package amdgpu

import (
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// sdmaAtOnce limits the files that one sample reads.
const sdmaAtOnce = 16

// copier is a process on a node.
type copier struct {
	pid  int
	node uint64
}

// copies measures how long the copy engines (SDMA) work for processes, by the files sdma_<gpu_id>
// of class/kfd/kfd/proc/PID, in microseconds. The kernel sums the times of the process's queues on
// the node, which it reads from the process's own memory (kfd_sdma_activity_worker). That may take
// long while the process is swapped out, so nothing else is read in the same call.
type copies struct {
	root   string // class/kfd/kfd/proc
	now    func() time.Time
	reader sysfs.Reader
	known  map[copier]*copying
}

// copying is the state of a copier.
type copying struct {
	asked time.Time
	meter sysfs.Meter
}

// read reads the files of the copiers whose last read is the oldest. It returns the seconds per
// second in which engines copy, by node. Nodes without a known value are omitted.
func (c *copies) read(copiers []copier) map[uint64]float64 {
	known := make(map[copier]*copying, len(copiers))
	for _, id := range copiers {
		known[id] = c.known[id]
		if known[id] == nil {
			known[id] = &copying{}
		}
	}
	c.known = known
	inTurn := slices.Clone(copiers)
	slices.SortStableFunc(inTurn, func(a, b copier) int { return known[a].asked.Compare(known[b].asked) })
	for _, id := range inTurn[:min(len(inTurn), sdmaAtOnce)] {
		one := known[id]
		one.asked = c.now()
		path := filepath.Join(c.root, strconv.Itoa(id.pid), "sdma_"+strconv.FormatUint(id.node, 10))
		microseconds, err := c.reader.Number(sysfs.WorkingDir, path)
		if err != nil { // an old kernel, or the process has ended
			one.meter.Stop()
			continue
		}
		one.meter.Advance(microseconds, one.asked)
	}
	const micro = 1e-6
	busy := map[uint64]float64{}
	for _, id := range copiers {
		if perSecond, _, ok := known[id].meter.Rate(); ok {
			busy[id.node] += perSecond * micro
		}
	}
	return busy
}
