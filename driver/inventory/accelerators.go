package inventory

import (
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// decimal returns the text if it is a decimal number, else "".
func decimal(text string) string {
	if _, err := strconv.ParseUint(text, 10, 32); err != nil {
		return ""
	}
	return text
}

// accelerator returns the rule of a driver whose attributes mostly have the common names: for a
// vendor, with the name of the attribute that has the model, and with the device file (node) of a
// device that is called names and a number.
func accelerator(vendor, model, names, node string) rule {
	return func(d device, h *driver.Hardware) {
		generic(d, h)
		h.Vendor = vendor
		if h.Model == "" && model != "" {
			h.Model = d.attributes.text(model)
		}
		if n, ok := strings.CutPrefix(d.Name, names); ok && node != "" && decimal(n) != "" {
			h.DeviceNodes = append(h.DeviceNodes, node+n)
		}
	}
}

// tenstorrent: a device is a chip on the PCI bus with the chips behind it. uniqueID is the UUID of
// the former.
func tenstorrent(d device, h *driver.Hardware) {
	h.Vendor, h.UUID = "tenstorrent", d.attributes.text("uniqueID")
	if h.Model == "" {
		h.Model = d.attributes.text("boardName")
	}
	tray, location := d.attributes.index("trayID"), d.attributes.index("asicLocation")
	if tray != "" && location != "" {
		h.Index = tray + "/" + location
	}
}

// rebellions: vfio-0000-23-00-0 is an NPU that is passed through to guests.
func rebellions(d device, h *driver.Hardware) {
	h.Vendor = "rebellions"
	if strings.HasPrefix(d.Name, "vfio-") {
		h.Kind = driver.KindPassthrough
	}
}

// spyre: a card, or a virtual function of a card. pfPciAddress of a card is "0" or its own address.
func spyre(d device, h *driver.Hardware) {
	h.Vendor = "ibm"
	if node := decimal(d.attributes.text("numaInfo")); h.NUMANode == "" {
		h.NUMANode = node
	}
	if card := d.attributes.pci("pfPciAddress"); card != "" && card != h.PCI {
		h.Kind, h.Parent = driver.KindPartition, card
	}
}

// nvme: a controller, identified by its serial number.
func nvme(_ device, h *driver.Hardware) {
	h.UUID = h.Serial
}

// deckhouseGPU: NVIDIA GPUs and MIG devices; attributes have one of two spellings.
func deckhouseGPU(d device, h *driver.Hardware) {
	a := d.attributes
	h.UUID = a.text("gpuUUID", "gpu_uuid")
	if mig := a.text("mig_uuid", "migUUID"); mig != "" {
		partOf(h, h.UUID)
		h.UUID = mig
	}
	if a.text("type") == "vfio" {
		h.Kind = driver.KindPassthrough
	}
}

// awsNetwork: the attributes have another domain than the driver. The device's name is that of the
// RDMA device.
func awsNetwork(d device, h *driver.Hardware) {
	const domain = "dra.vpc.amazonaws.com/"
	h.NetDev, h.RDMADev = d.attributes.text(domain+"networkDevName"), d.Name
	if h.PCI == "" {
		h.PCI = d.attributes.pci(domain+"pciAddress", domain+"pciBusID")
	}
}
