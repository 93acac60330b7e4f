package drmcard

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
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

// addPartitions reads the topology of KFD, which has a node for each partition. Those that this
// process may not read are left out.
func (a *AMDGPUs) addPartitions(root string) error {
	nodes, _, err := Nodes(KFD(root))
	number := map[string]int{} // of the next partition, by GPU
	for i := range nodes {
		pci := nodes[i].Slot + ".0"
		a.renders[partition{pci, number[pci]}] = nodes[i].Render
		number[pci]++
	}
	return err
}
