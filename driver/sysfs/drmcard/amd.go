package drmcard

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// AMDGPUs finds the AMD GPUs of a machine, and their partitions, by the identifiers that AMD's
// tools use. The zero value has none.
type AMDGPUs struct {
	addresses map[string]string // by serial number or unique ID; "": several GPUs have it
	renders   map[partition]int
}

// partition is a part of a GPU in one of the modes DPX, QPX and CPX.
type partition struct {
	pci    string
	number int
}

// ListAMD reads the identifiers of the AMD GPUs among the cards: serial_number and unique_id
// (Documentation/gpu/amdgpu/driver-misc.rst), and for partitions the topology of KFD. Identifiers
// that can't be read are left out, with an error.
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

// add adds an identifier of a GPU.
func (a *AMDGPUs) add(name, pci string) {
	if driver.IsPlaceholder(name) {
		return
	}
	name = canonicalName(name)
	if other, known := a.addresses[name]; known && other != pci {
		pci = "" // the two GPUs of a board of the MI200 series
	}
	a.addresses[name] = pci
}

func canonicalName(name string) string { return strings.TrimPrefix(strings.ToLower(name), "0x") }

// PCI returns the address of the GPU with a serial number, unique ID or UUID, "" for none or
// several.
func (a *AMDGPUs) PCI(name string) string {
	if address := a.addresses[canonicalName(name)]; address != "" {
		return address
	}
	id, ok := uniqueID(name)
	if !ok {
		return ""
	}
	return a.addresses[id]
}

// uniqueID returns the unique_id from which AMD's tools make a UUID, in the spelling of
// canonicalName. The UUID has the highest byte of the 64 bits, the number of the function (ff: the
// whole GPU) and the PCI device ID; version 1; and the other seven bytes: amdsmi_uuid_gen and
// amdsmi_get_gpu_device_uuid in src/amd_smi/amd_smi_uuid.cc and amd_smi.cc of ROCm/amdsmi. An
// MI300X (device 74a1) with the unique ID cce0c6d49f5b0d86 is ccff74a1-0000-1000-80e0-c6d49f5b0d86.
func uniqueID(uuid string) (string, bool) {
	const form = "ccff74a1-0000-1000-80e0-c6d49f5b0d86"
	uuid = strings.ToLower(uuid)
	if len(uuid) != len(form) || uuid[8:21] != form[8:21] || uuid[23] != '-' {
		return "", false
	}
	id := uuid[:2] + uuid[21:23] + uuid[24:]
	if n, err := strconv.ParseUint(id, 16, 64); err != nil || n == 0 {
		return "", false
	}
	return id, true
}

// Render returns N of /dev/dri/renderDN for a partition, given the address of its GPU.
func (a *AMDGPUs) Render(pci string, number int) (int, bool) {
	render, ok := a.renders[partition{pci, number}]
	return render, ok
}

// addPartitions reads the topology of KFD, which has a node for each partition. Nodes that this
// process may not read are left out.
func (a *AMDGPUs) addPartitions(root string) error {
	nodes, _, err := Nodes(KFD(root))
	number := map[string]int{} // number of the next partition, by GPU
	for i := range nodes {
		pci := nodes[i].Slot + ".0"
		a.renders[partition{pci, number[pci]}] = nodes[i].Render
		number[pci]++
	}
	return err
}
