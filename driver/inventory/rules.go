package inventory

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// rule completes the hardware, which describe has filled from common attributes, for the devices of
// one driver.
type rule func(d device, h *driver.Hardware)

// ruleOf returns the rule of a driver. A driver whose attributes all have common names, those in
// describe, needs none.
func ruleOf(driverName string) rule {
	own := map[string]rule{
		"gpu.nvidia.com":                       nvidiaGPU,
		"hami-core-gpu.project-hami.io":        nvidiaGPU,
		"compute-domain.nvidia.com":            nvidiaComputeDomain,
		"gpu.amd.com":                          amdGPU,
		"gpu.intel.com":                        intelGPU,
		"gaudi.intel.com":                      intelGPU,
		"qat.intel.com":                        intelQAT,
		"gpu.deckhouse.io":                     deckhouseGPU,
		"dra.net":                              dranet,
		"dra.networking.k8s.aws":               awsNetwork,
		"sriovnetwork.k8snetworkplumbingwg.io": sriov,
		"dra.cpu":                              cpu,
		"dra.nvme":                             nvme,
		"tpu.google.com":                       accelerator("google", "tpuGen", "accel", "/dev/accel"),
		"neuron.aws.com":                       accelerator("amazon", "", "neuron-device-", "/dev/neuron"),
		"tenstorrent.com":                      tenstorrent,
		"npu.rebellions.ai":                    rebellions,
		"spyre.ibm.com":                        spyre,
		"dra.hygon.com":                        accelerator("hygon", "", "", ""),
		"ascend.project-hami.io":               accelerator("huawei", "", "", ""),
		"gpu.example.com":                      example,
	}[driverName]
	if own == nil {
		return generic
	}
	return own
}

// describe returns the hardware of a device: by standard attributes, then by the names that drivers
// commonly use, then by the driver's own rule.
func describe(d device) driver.Hardware {
	a := d.attributes
	h := driver.Hardware{
		UUID:          a.text("uuid"),
		PCI:           a.pci(standardPCIBusID, "pciBusID", "pcieBusID", "pciAddress", "pciAddr"),
		NetDev:        a.text("ifName", "interfaceName"),
		RDMADev:       a.text("rdmaDevice"),
		Index:         a.index("index"),
		Vendor:        vendorName(a.text("vendor", "vendorID", "pciVendor")),
		Model:         a.text("productName", "model"),
		Serial:        a.text("serial", "serialNumber"),
		DriverVersion: a.text("driverVersion"),
		CUDAVersion:   withoutPatch(a.text("cudaDriverVersion")),
		NUMANode:      a.index(standardNUMANode, "numaNode", "numaNodeID", "dra.net/numaNode"),
		PCIeRoot:      a.roots(standardPCIeRoot),
	}
	if h.PCI == "" {
		h.PCI = pciInName(d.Name)
	}
	ruleOf(d.driver)(d, &h)
	if h.Kind == driver.KindPartition {
		h.Profile = a.text("profile", "partitionProfile") // of NVIDIA and of AMD
	}
	return h
}

// withoutPatch returns the first two numbers of a semantic version: 12.8 of 12.8.0.
func withoutPatch(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, found := strings.Cut(rest, ".")
	if !found {
		return version
	}
	return major + "." + minor
}

// nvidiaGPU: whole GPUs, MIG instances (gpu-0-mig-1g10gb-19-0), and GPUs for passthrough to guests
// (gpu-vfio-0). A MIG instance has its parent's PCI address, and its own UUID only if it is static.
// Devices of HAMi are whole GPUs that are shared.
func nvidiaGPU(d device, h *driver.Hardware) {
	h.Vendor = "nvidia"
	switch d.attributes.text("type") {
	case "mig":
		partOf(h, d.attributes.text("parentUUID"))
		h.Placement = nvidia.PlacementInName(d.Name)
	case "vfio":
		h.Kind = driver.KindPassthrough
	}
}

// CompleteByName completes the hardware of a device that no slice lists with what its name alone
// states: a group of CPUs, or the placement of a MIG instance of NVIDIA's driver. It returns false
// if the name states nothing. From a MIG instance it removes the device nodes of its GPU.
func CompleteByName(id driver.ID, h driver.Hardware) (driver.Hardware, bool) {
	if group, ok := CPUGroupOf(id); ok {
		h.NUMANode = group.NUMANode()
		return h, true
	}
	placement := nvidia.PlacementInName(id.Device)
	if id.Driver != "gpu.nvidia.com" || placement == "" {
		return h, false
	}
	h.Kind, h.Vendor, h.Placement = driver.KindPartition, "nvidia", placement
	h.DeviceNodes = ofMIG(h.DeviceNodes)
	return h, true
}

// nvidiaComputeDomain: IMEX channels and daemons, which are not hardware.
func nvidiaComputeDomain(_ device, h *driver.Hardware) {
	h.Vendor, h.Kind = "nvidia", driver.KindChannel
}

// amdGPU: the name (gpu-1-129) has the numbers of the DRM nodes, which are attributes in older
// versions of the driver. A partition has its own DRM nodes and its parent's PCI address.
// gpu-vfio-0 is a GPU for passthrough to guests.
func amdGPU(d device, h *driver.Hardware) {
	h.Vendor = "amd"
	if h.DriverVersion == "" {
		h.DriverVersion = d.attributes.text("driverSrcVersion")
	}
	kind := d.attributes.text("type")
	if kind == "vfio" {
		h.Kind = driver.KindPassthrough
		return
	}
	numbers, _ := strings.CutPrefix(d.Name, "gpu-")
	card, render, _ := strings.Cut(numbers, "-")
	for _, node := range []struct{ prefix, attribute, inName string }{
		{"/dev/dri/card", "cardIndex", card}, {"/dev/dri/renderD", "renderIndex", render},
	} {
		if n := cmp.Or(d.attributes.index(node.attribute), decimal(node.inName)); n != "" {
			h.DeviceNodes = append(h.DeviceNodes, node.prefix+n)
		}
	}
	if kind == "amdgpu-partition" {
		partOf(h, "")
	}
}

// intelGPU: the name has the PCI address and the PCI device ID. A virtual function has its own
// address.
func intelGPU(d device, h *driver.Hardware) {
	h.Vendor = "intel"
	if d.attributes.text("type") == "vf" {
		h.Kind = driver.KindPartition
	}
}

// intelQAT: every device is a virtual function; its name has its PCI address.
func intelQAT(_ device, h *driver.Hardware) {
	h.Vendor, h.Kind = "intel", driver.KindPartition
}

// dranet: network interfaces and RDMA devices, including virtual functions.
func dranet(d device, h *driver.Hardware) {
	if d.attributes.flag("isSriovVf") {
		h.Kind = driver.KindPartition
	}
	if h.Model == "" {
		h.Model = d.attributes.text("pciDevice")
	}
}

// sriov: virtual functions, each with its own PCI address.
func sriov(d device, h *driver.Hardware) {
	if d.attributes.index("vfID") != "" {
		h.Kind = driver.KindPartition
		h.Parent = d.attributes.pci("pfPciAddress", "parentPciAddress")
	}
}

// cpu: one CPU, or a group of CPUs that the driver lists. By default the driver publishes only the
// number of CPUs (numCPUs) of a group, and its name denotes the group: see [CPUGroupOf].
func cpu(d device, h *driver.Hardware) {
	h.CPUs = d.attributes.cpus("cpuID", "cpuIDs", "cpus", "cpuset")
}

// example: partitions of the example driver have the UUID of their GPU.
func example(d device, h *driver.Hardware) {
	if d.attributes.index("partition") != "" || strings.Contains(d.Name, "-partition-") {
		partOf(h, h.UUID)
	}
}

// generic is the rule for drivers without their own. It understands common values of type.
func generic(d device, h *driver.Hardware) {
	a := d.attributes
	switch a.text("type") {
	case "vfio":
		h.Kind = driver.KindPassthrough
	case "vf":
		h.Kind, h.Parent = driver.KindPartition, a.pci("pfPciAddress", "parentPciAddress")
	case "mig", "partition":
		partOf(h, a.text("parentUUID"))
	}
}

// partOf makes h a partition of the device with parentUUID or, if that is empty, of the device at
// the PCI address in h. It clears what identifies the parent, so that h does not match its samples.
func partOf(h *driver.Hardware, parentUUID string) {
	h.Kind, h.Parent = driver.KindPartition, parentUUID
	if parentUUID == "" {
		h.Parent = h.PCI
	}
	h.PCI, h.Index = "", ""
	if strings.EqualFold(h.UUID, parentUUID) {
		h.UUID = ""
	}
}

// vendorName returns the short name of a vendor, given its PCI vendor ID or its name in pci.ids. It
// returns the names of other vendors unchanged.
func vendorName(vendor string) string {
	vendor = strings.TrimSpace(vendor)
	lower := strings.TrimPrefix(strings.ToLower(vendor), "0x")
	for _, known := range []struct{ name, id, prefix string }{
		{"nvidia", "10de", "nvidia"},
		{"amd", "1002", "advanced micro devices"},
		{"amd", "1022", "amd"},
		{"intel", "8086", "intel"},
		{"intel", "1da3", "habana"},
		{"mellanox", "15b3", "mellanox"},
		{"broadcom", "14e4", "broadcom"},
	} {
		if lower == known.id || strings.HasPrefix(lower, known.prefix) {
			return known.name
		}
	}
	return vendor
}

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
