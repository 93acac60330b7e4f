package drmcard

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	maxEngines    = 4096     // of a kind, of a GPU
	maxProperties = 64 << 10 // bytes of a file of properties
)

// Node is a GPU of AMD, or a partition of one, in the compute driver: a folder of
// class/kfd/kfd/topology/nodes.
type Node struct {
	ID       uint64 // gpu_id: the name of the node in the files of processes
	Render   int    // N of renderDN
	Slot     string // domain, bus and device of its PCI address: 0000:0c:00
	Capacity uint64 // bytes of its memory; 0: unknown
	Engines  uint64 // number of copy engines (SDMA), including those for XGMI
	part     uint64 // position among the partitions of the GPU
}

// KFD returns the folder of the compute driver, given the mount point of sysfs.
func KFD(root string) string { return filepath.Join(root, "class", "kfd", "kfd") }

// Nodes returns the GPUs and partitions in the compute driver's topology, given its folder, ordered
// by GPU and partition. Nodes of CPUs have no gpu_id. The node of a GPU can be read only with
// permission to use the GPU's device file (kfd_devcgroup_check_permission). denied: this process
// lacks that permission for some node.
func Nodes(kfd string) (found []Node, denied bool, err error) {
	folder := filepath.Join(kfd, "topology", "nodes")
	names, err := sysfs.Names(sysfs.WorkingDir, folder)
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
		n, ok := nodeOf(id, number, parseProperties(content))
		if !ok {
			continue
		}
		n.Capacity = bankBytes(at)
		found = append(found, n)
	}
	slices.SortFunc(found, func(a, b Node) int {
		return cmp.Or(strings.Compare(a.Slot, b.Slot), cmp.Compare(a.part, b.part))
	})
	return found, denied, bad.Err()
}

// nodeOf returns the node with these properties, false for one without a render node. location_id
// is bus << 8 | device << 3 | function. Kernels mark the partitions of one GPU in it by bits 28 to
// 31, or by the function, or not at all; then the order of the nodes is that of the partitions
// (kfd_topology_add_device in drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
func nodeOf(id, number uint64, properties map[string]uint64) (n Node, ok bool) {
	const firstRender, mostRenders = 128, 1 << 20 // drivers/gpu/drm/drm_drv.c
	location, render, domain := properties["location_id"], properties["drm_render_minor"], properties["domain"]
	if render < firstRender || render > mostRenders || domain > math.MaxUint32 {
		return Node{}, false
	}
	return Node{
		ID: id, Render: int(render),
		Slot:    fmt.Sprintf("%04x:%02x:%02x", domain, location>>8&0xff, location>>3&0x1f),
		Engines: min(properties["num_sdma_engines"], maxEngines) + min(properties["num_sdma_xgmi_engines"], maxEngines),
		part:    (location>>28&0xf<<3|location&7)<<16 | number,
	}, true
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

// bankBytes returns the size of a node's own memory: the sum of its banks whose heap is a frame
// buffer (1, 2); 0: unknown.
func bankBytes(folder string) (size uint64) {
	const public, private = 1, 2
	folder = filepath.Join(folder, "mem_banks")
	banks, _ := sysfs.Names(sysfs.WorkingDir, folder)
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
