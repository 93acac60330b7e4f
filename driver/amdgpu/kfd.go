package amdgpu

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

const (
	// fewNodes is the number of GPUs and partitions up to which all nodes of each process are read in
	// each sample. With more nodes, a sample reads the nodes that a process is known to use. It reads
	// all nodes of at most newAtOnce new processes, and of at most againAtOnce processes whose last
	// such read is scanEvery ago: the kernel has files of every process for every GPU of the machine.
	fewNodes    = 8
	scanEvery   = 10 * time.Second
	newAtOnce   = 16
	againAtOnce = 2
)

// use is a process's use of a node.
type use struct {
	pid      int
	vram     uint64
	hasUnits bool    // the number of compute units with its waves is known
	weight   float64 // mean of that number, weighted towards recent reads
	copies   bool    // the time for which copy engines work for it is known
	copying  float64 // that time, in seconds per second
	at       time.Time
}

// processes reads which processes use which nodes, from class/kfd/kfd/proc/PID. The PIDs are those
// of the host.
type processes struct {
	root   string // class/kfd/kfd/proc
	now    func() time.Time
	reader sysfs.Reader
	known  map[int]*process
}

type process struct {
	nodes   []uint64 // nodes that it uses, as of the last read of all nodes
	scanned time.Time
	weights map[uint64]float64 // by node
	// copying measures how long the copy engines (SDMA) of each node work, by the files sdma_<gpu_id>,
	// in microseconds. The kernel sums the times of the process's queues on the node, which it reads
	// from the process's own memory (kfd_sdma_activity_worker).
	copying map[uint64]*sysfs.Meter
}

// read returns the processes of each node, by node ID, in the order of their PIDs. A process that
// ends meanwhile is not an error.
func (p *processes) read(nodes []drmcard.Node) (map[uint64][]use, error) {
	names, err := sysfs.Names(sysfs.WorkingDir, p.root)
	if sysfs.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the processes of KFD: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.ParseUint(name, 10, 31); err == nil && pid > 0 {
			pids = append(pids, int(pid))
		}
	}
	slices.Sort(pids)
	p.keep(pids)
	due := p.due(pids, len(nodes))
	uses := map[uint64][]use{}
	var bad sysfs.Problems
	for _, pid := range pids {
		known := p.known[pid]
		if due[pid] {
			known.scanned, known.nodes = p.now(), known.nodes[:0]
			for _, n := range nodes {
				known.nodes = append(known.nodes, n.ID)
			}
		}
		dir, err := sysfs.OpenDir(sysfs.WorkingDir, filepath.Join(p.root, strconv.Itoa(pid)))
		if err != nil {
			continue // it has ended
		}
		known.nodes = slices.DeleteFunc(known.nodes, func(id uint64) bool {
			u, ok := p.use(dir, pid, id, &bad)
			if ok {
				uses[id] = append(uses[id], u)
			}
			return !ok
		})
		dir.Close()
	}
	return uses, bad.Err()
}

// keep forgets processes that have ended.
func (p *processes) keep(pids []int) {
	known := make(map[int]*process, len(pids))
	for _, pid := range pids {
		known[pid] = p.known[pid]
		if known[pid] == nil {
			known[pid] = &process{weights: map[uint64]float64{}, copying: map[uint64]*sysfs.Meter{}}
		}
	}
	p.known = known
}

// due returns the processes of which all nodes must be read: all processes if that is cheap,
// otherwise those whose last such read is the oldest.
func (p *processes) due(pids []int, nodes int) map[int]bool {
	now, at := p.now(), func(pid int) time.Time { return p.known[pid].scanned }
	if nodes <= fewNodes {
		return sysfs.Due(pids, at, now, 0, len(pids))
	}
	due := sysfs.Due(pids, at, now, scanEvery, againAtOnce)
	fresh := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return !at(pid).IsZero() })
	maps.Copy(due, sysfs.Due(fresh, at, now, scanEvery, newAtOnce))
	return due
}

// use reads a process's use of a node, false if it does not use it. The kernel does not know the
// occupancy of all chips.
func (p *processes) use(dir sysfs.Dir, pid int, id uint64, bad *sysfs.Problems) (use, bool) {
	read := func(file string) (uint64, bool) {
		n, err := p.reader.Number(dir, file)
		if err != nil && !sysfs.IsAbsent(err) {
			bad.Add(fmt.Errorf("read %s of process %d: %w", file, pid, err))
		}
		return n, err == nil
	}
	u := use{pid: pid, at: p.now()}
	number := strconv.FormatUint(id, 10)
	vram, ok := read("vram_" + number)
	if !ok || vram == 0 {
		return u, false
	}
	u.vram = vram
	if units, ok := read("stats_" + number + "/cu_occupancy"); ok {
		weights := p.known[pid].weights
		weights[id] = (weights[id] + float64(units)) / 2
		u.hasUnits, u.weight = true, weights[id]
	}
	meter := p.known[pid].copying[id]
	if meter == nil {
		meter = &sysfs.Meter{}
		p.known[pid].copying[id] = meter
	}
	if microseconds, ok := read("sdma_" + number); ok {
		meter.Advance(microseconds, u.at)
	} else {
		meter.Stop()
	}
	perSecond, _, ok := meter.Rate()
	u.copying, u.copies = perSecond*1e-6, ok
	return u, true
}
