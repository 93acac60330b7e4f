package drmcard

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	maxNodes      = 4096     // of KFD's topology
	maxProperties = 64 << 10 // bytes of a node's file
)

// AMDGPUs finds the AMD GPUs of a machine, and their partitions, by what AMD's tools call them. The
// zero value knows none.
type AMDGPUs struct {
	addresses map[string]string // by serial number or unique ID; "": several have it
	renders   map[partition]int
}

// partition is a part of a GPU, of which there are several in the modes DPX, QPX and CPX.
type partition struct {
	pci    string
	number int
}

// ListAMD reads what identifies the AMD GPUs among the cards: serial_number and unique_id
// (Documentation/gpu/amdgpu/driver-misc.rst), and, of partitions, the topology of KFD. What can't
// be read is left out, with an error.
func ListAMD(root string, cards []Card) (AMDGPUs, error) {
	found := AMDGPUs{addresses: map[string]string{}, renders: map[partition]int{}}
	var reader sysfs.Reader
	var failed []error
	for i := range cards {
		card := &cards[i]
		if card.Driver != "amdgpu" || card.PCI == "" {
			continue
		}
		for _, file := range []string{"serial_number", "unique_id"} {
			value, err := reader.Value(sysfs.WorkingDir, filepath.Join(card.Device, file))
			switch {
			case err == nil:
				found.add(string(value), card.PCI)
			case !sysfs.IsAbsent(err) && !errors.Is(err, sysfs.ErrEmpty):
				failed = append(failed, fmt.Errorf("read %s of %s: %w", file, card.PCI, err))
			}
		}
	}
	return found, errors.Join(append(failed, found.addPartitions(root))...)
}

// add notes what a GPU is called. Texts of zeros stand for none.
func (a *AMDGPUs) add(name, pci string) {
	name = canonicalName(name)
	if strings.Trim(name, "0") == "" {
		return
	}
	if other, known := a.addresses[name]; known && other != pci {
		pci = "" // the two GPUs of one board of the MI200 series
	}
	a.addresses[name] = pci
}

func canonicalName(name string) string { return strings.TrimPrefix(strings.ToLower(name), "0x") }

// PCI returns the address of the GPU with that serial number or unique ID, "" for none, or several.
func (a *AMDGPUs) PCI(name string) string { return a.addresses[canonicalName(name)] }

// Render returns N of /dev/dri/renderDN of a partition, given its GPU's address.
func (a *AMDGPUs) Render(pci string, number int) (int, bool) {
	render, ok := a.renders[partition{pci, number}]
	return render, ok
}

// addPartitions reads the topology of KFD, which has a node for each partition.
func (a *AMDGPUs) addPartitions(root string) error {
	nodes := filepath.Join(root, "class", "kfd", "kfd", "topology", "nodes")
	names, err := sysfs.Names(sysfs.WorkingDir, nodes, maxNodes)
	if sysfs.IsGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the nodes of KFD: %w", err)
	}
	var failed []error
	parts := map[string][]node{} // by GPU
	for _, name := range names {
		number, err := strconv.ParseUint(name, 10, 16)
		if err != nil {
			continue
		}
		content, err := sysfs.ReadFile(filepath.Join(nodes, name, "properties"), maxProperties)
		if err != nil { // without the right to use the GPU, its properties can't be read
			if !sysfs.IsAbsent(err) && !errors.Is(err, fs.ErrPermission) {
				failed = append(failed, fmt.Errorf("read the properties of KFD's node %s: %w", name, err))
			}
			continue
		}
		if pci, n, ok := parseNode(content); ok {
			n.order = n.order<<16 | number
			parts[pci] = append(parts[pci], n)
		}
	}
	for pci, nodes := range parts {
		slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.order, b.order) })
		for i, n := range nodes {
			a.renders[partition{pci, i}] = n.render
		}
	}
	return errors.Join(failed...)
}

// node is a GPU, or a partition of one, in KFD's topology.
type node struct {
	order  uint64 // among those of the GPU
	render int
}

// parseNode returns a node and the address of its GPU, false for a CPU. The file has a name and a
// number on each line. location_id has the bus in bits 8 to 15, device and function below;
// partitions are marked by bits 28 to 31, by the function, or not at all, as
// kfd_topology_add_device of the kernel does (drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
func parseNode(content []byte) (pci string, n node, ok bool) {
	const firstRender = 128 // drivers/gpu/drm/drm_drv.c
	number := map[string]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			number[name] = n
		}
	}
	location, minor := number["location_id"], number["drm_render_minor"]
	if minor < firstRender || minor > 1<<20 || number["domain"] > 0xffffffff {
		return "", node{}, false
	}
	pci = fmt.Sprintf("%04x:%02x:%02x.0", number["domain"], location>>8&0xff, location>>3&0x1f)
	return pci, node{order: location>>28&0xf<<3 | location&7, render: int(minor)}, true
}
