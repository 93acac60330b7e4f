package amdgpu

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	maxNodes      = 1024     // of the topology
	maxProperties = 16 << 10 // bytes of a file of properties
	maxProcesses  = 4096
	// fewNodes is up to how many GPUs and partitions a process is asked for all at each sample.
	// Beyond, it is asked for those that it was found to use, and for all of them when it is new
	// and every scanEvery, of at most newAtOnce and againAtOnce processes in a sample: the kernel
	// has files of every process for every GPU of the machine.
	fewNodes    = 8
	scanEvery   = 10 * time.Second
	newAtOnce   = 16
	againAtOnce = 2
)

// node is a GPU, or a partition of one, as the compute driver sees it: a folder of
// class/kfd/kfd/topology/nodes.
type node struct {
	id       uint64 // gpu_id: the name of the node in the files of processes
	render   int    // N of renderDN
	slot     string // domain, bus and device of its PCI address: 0000:0c:00
	part     uint32 // which of several partitions of the GPU it is: they are in this order
	capacity uint64 // bytes of its memory
}

// readNodes returns the GPUs and partitions of the topology, in the order of GPUs and partitions.
// Nodes of CPUs have no gpu_id. The kernel lets only those read the node of a GPU who may use the
// GPU's device file (kfd_devcgroup_check_permission): denied says that there is one that this
// process may not.
func readNodes(kfd string) (found []node, denied bool, err error) {
	folder := filepath.Join(kfd, "topology", "nodes")
	names, err := sysfs.Names(sysfs.WorkingDir, folder, maxNodes)
	if sysfs.IsGone(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("list the nodes of KFD: %w", err)
	}
	var reader sysfs.Reader
	var bad sysfs.Problems
	for _, name := range names {
		number, err := strconv.ParseUint(name, 10, 16)
		if err != nil {
			continue
		}
		at := filepath.Join(folder, name)
		id, err := reader.Number(sysfs.WorkingDir, filepath.Join(at, "gpu_id"))
		if err == nil && id == 0 || sysfs.IsAbsent(err) {
			continue
		}
		var content []byte
		if err == nil {
			content, err = sysfs.ReadFile(filepath.Join(at, "properties"), maxProperties)
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			denied = true
			continue
		case sysfs.IsAbsent(err):
			continue
		case err != nil:
			bad.Add(fmt.Errorf("read node %s of KFD: %w", name, err))
			continue
		}
		n := nodeOf(id, uint32(number), parseProperties(content))
		n.capacity = bankBytes(at)
		found = append(found, n)
	}
	slices.SortFunc(found, func(a, b node) int {
		return cmp.Or(strings.Compare(a.slot, b.slot), cmp.Compare(a.part, b.part))
	})
	return found, denied, bad.Err()
}

// nodeOf returns the node with these properties. location_id is bus << 8 | device << 3 | function;
// kernels mark partitions of one GPU there by bits 28 to 31, or by the function's, or not at all:
// then their order is that of the nodes.
func nodeOf(id uint64, number uint32, properties map[string]uint64) node {
	const partShift, functions = 28, 7
	location := uint32(properties["location_id"])
	return node{
		id: id, render: int(properties["drm_render_minor"]),
		slot: fmt.Sprintf("%04x:%02x:%02x", properties["domain"], location>>8&0xff, location>>3&0x1f),
		part: (location>>partShift<<3|location&functions)<<16 | number,
	}
}

// parseProperties returns the numbers of a file of properties: a name and a number in each line.
func parseProperties(content []byte) map[string]uint64 {
	properties := map[string]uint64{}
	for line := range bytes.Lines(content) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil {
			properties[string(name)] = n
		}
	}
	return properties
}

// bankBytes returns the size of a node's own memory: of its banks whose heap is a frame buffer (1,
// 2). 0: unknown.
func bankBytes(folder string) (size uint64) {
	const public, private = 1, 2
	folder = filepath.Join(folder, "mem_banks")
	banks, _ := sysfs.Names(sysfs.WorkingDir, folder, maxNodes)
	for _, bank := range banks {
		content, err := sysfs.ReadFile(filepath.Join(folder, bank, "properties"), maxProperties)
		if err != nil {
			continue
		}
		properties := parseProperties(content)
		if heap := properties["heap_type"]; heap == public || heap == private {
			size += properties["size_in_bytes"]
		}
	}
	return size
}

// use is what a process does on a node.
type use struct {
	pid      int
	vram     uint64
	hasUnits bool    // the kernel knows on how many compute units its waves are
	weight   float64 // the mean of that number, of which older ones count less and less
	at       time.Time
}

// processes reads which processes use which nodes: class/kfd/kfd/proc/PID, whose PIDs are those of
// the host.
type processes struct {
	root   string // class/kfd/kfd/proc
	now    func() time.Time
	reader sysfs.Reader
	known  map[int]*process
}

type process struct {
	nodes   []uint64 // that it was found to use when it was last asked for all of them, and still uses
	scanned time.Time
	weights map[uint64]float64 // by node
}

// read returns the processes of each node, by its ID, in the order of their PIDs. There is no error
// in a process that ends meanwhile.
func (p *processes) read(nodes []node) (map[uint64][]use, error) {
	names, err := sysfs.Names(sysfs.WorkingDir, p.root, maxProcesses)
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
				known.nodes = append(known.nodes, n.id)
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
			known[pid] = &process{weights: map[uint64]float64{}}
		}
	}
	p.known = known
}

// due returns the processes to ask for all nodes: all of them where that is cheap, else those that
// were not asked for the longest time.
func (p *processes) due(pids []int, nodes int) map[int]bool {
	due := map[int]bool{}
	if nodes <= fewNodes {
		for _, pid := range pids {
			due[pid] = true
		}
		return due
	}
	now := p.now()
	var late []int
	for _, pid := range pids {
		if age := now.Sub(p.known[pid].scanned); age >= scanEvery || age < 0 {
			late = append(late, pid)
		}
	}
	slices.SortStableFunc(late, func(a, b int) int { return p.known[a].scanned.Compare(p.known[b].scanned) })
	for i, pid := range late {
		if i < againAtOnce || i < newAtOnce && p.known[pid].scanned.IsZero() {
			due[pid] = true
		}
	}
	return due
}

// use reads what a process does on a node; false: nothing. The kernel does not know the occupancy
// of all chips.
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
	return u, true
}
