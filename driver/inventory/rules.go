package inventory

import (
	"cmp"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// rule adds to the hardware, which describe has filled from the attributes that every driver may
// have, what is particular to one driver.
type rule func(d device, h *driver.Hardware)

// ruleOf is the table of drivers. To add one: write its rule below and its line here. A driver
// whose attributes have the usual names (those in describe) needs none.
func ruleOf(driverName string) rule {
	switch driverName {
	case "gpu.nvidia.com", "hami-core-gpu.project-hami.io":
		return nvidiaGPU
	case "compute-domain.nvidia.com":
		return nvidiaComputeDomain
	case "gpu.amd.com":
		return amdGPU
	case "gpu.intel.com", "gaudi.intel.com":
		return intelGPU
	case "qat.intel.com":
		return intelQAT
	case "gpu.deckhouse.io":
		return deckhouseGPU
	case "dra.net":
		return dranet
	case "dra.networking.k8s.aws":
		return awsNetwork
	case "sriovnetwork.k8snetworkplumbingwg.io":
		return sriov
	case "dra.cpu":
		return cpu
	case "dra.nvme":
		return nvme
	case "tpu.google.com", "neuron.aws.com", "tenstorrent.com", "npu.rebellions.ai", "spyre.ibm.com", "dra.hygon.com",
		"ascend.project-hami.io":
		return acceleratorOf(driverName)
	case "gpu.example.com":
		return example
	default:
		return generic
	}
}

// describe returns the hardware of a device: standard attributes first, then the names that drivers
// commonly use, then the driver's own rule.
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
		h.PCI = pciInName(d.name)
	}
	ruleOf(d.driver)(d, &h)
	if h.Kind == driver.KindPartition {
		h.Profile = a.text("profile", "partitionProfile") // NVIDIA's and AMD's names
	}
	return h
}

// withoutPatch returns the version of CUDA in a semantic version: 12.8 in 12.8.0.
func withoutPatch(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, found := strings.Cut(rest, ".")
	if !found {
		return version
	}
	return major + "." + minor
}

// nvidiaGPU: whole GPUs, MIG instances (gpu-0-mig-1g10gb-19-0), and GPUs for guests (gpu-vfio-0).
// A MIG instance carries its parent's PCI address; a UUID of its own it has only where instances
// are static. HAMi's devices are shares of whole GPUs.
func nvidiaGPU(d device, h *driver.Hardware) {
	h.Vendor = "nvidia"
	switch d.attributes.text("type") {
	case "mig":
		partOf(h, d.attributes.text("parentUUID"))
		h.Placement = nvidia.PlacementInName(d.name)
	case "vfio":
		h.Kind = driver.KindPassthrough
	}
}

// Named completes the hardware of a device that no slice lists by what its name alone says, and
// reports whether that is something: which group of CPUs it is, or where a MIG instance of NVIDIA's
// driver lies. The CDI spec of an instance names the GPU's nodes too, which are not its own.
func Named(id driver.ID, h driver.Hardware) (driver.Hardware, bool) {
	if group, ok := CPUGroupOf(id); ok {
		h.NUMANode = group.NUMANode()
		return h, true
	}
	placement := nvidia.PlacementInName(id.Device)
	if id.Driver != "gpu.nvidia.com" || placement == "" {
		return h, false
	}
	h.Kind, h.Vendor, h.Placement = driver.KindPartition, "nvidia", placement
	var own []string
	for _, node := range h.DeviceNodes {
		if strings.HasPrefix(node, migNodes) {
			own = append(own, node)
		}
	}
	h.DeviceNodes = own
	return h, true
}

// nvidiaComputeDomain: IMEX channels and daemons, no hardware.
func nvidiaComputeDomain(_ device, h *driver.Hardware) {
	h.Vendor, h.Kind = "nvidia", driver.KindChannel
}

// amdGPU: the name (gpu-1-129) has the numbers of the DRM nodes, which attributes named in
// earlier versions. A partition has DRM nodes of its own, and its parent's PCI address. A GPU for
// guests is gpu-vfio-0.
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
	numbers, _ := strings.CutPrefix(d.name, "gpu-")
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

// intelGPU: the name has the PCI address and the PCI device ID. A virtual function's address is its
// own.
func intelGPU(d device, h *driver.Hardware) {
	h.Vendor = "intel"
	if d.attributes.text("type") == "vf" {
		h.Kind = driver.KindPartition
	}
}

// intelQAT: every device is a virtual function, named by its PCI address.
func intelQAT(_ device, h *driver.Hardware) {
	h.Vendor, h.Kind = "intel", driver.KindPartition
}

// dranet: network interfaces, RDMA devices, virtual functions among them.
func dranet(d device, h *driver.Hardware) {
	if d.attributes.flag("isSriovVf") {
		h.Kind = driver.KindPartition
	}
	if h.Model == "" {
		h.Model = d.attributes.text("pciDevice")
	}
}

// sriov: virtual functions, each with a PCI address of its own.
func sriov(d device, h *driver.Hardware) {
	if d.attributes.index("vfID") != "" {
		h.Kind = driver.KindPartition
		h.Parent = d.attributes.pci("pfPciAddress", "parentPciAddress")
	}
}

// cpu: one CPU, or a group where the driver lists its members. Of a group that is only counted
// (numCPUs), as by default, the name says which it is: see [CPUGroupOf].
func cpu(d device, h *driver.Hardware) {
	h.CPUs = d.attributes.cpus("cpuID", "cpuIDs", "cpus", "cpuset")
}

// example: the example driver's partitions carry the UUID of the GPU that they are made of.
func example(d device, h *driver.Hardware) {
	if d.attributes.index("partition") != "" || strings.Contains(d.name, "-partition-") {
		partOf(h, h.UUID)
	}
}

// generic serves drivers without a rule, as far as they use
// the usual terms.
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

// partOf makes h a partition of the device with that UUID, or else of the one at h's PCI address,
// which is the parent's. What identifies the parent does not stay: nothing of the parent's may be
// taken for the partition's.
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

// vendorName returns one name for the ways in which drivers tell a vendor: a PCI vendor ID, or the
// name in pci.ids.
func vendorName(told string) string {
	told = strings.TrimSpace(told)
	lower := strings.TrimPrefix(strings.ToLower(told), "0x")
	for _, vendor := range []struct{ name, id, prefix string }{
		{"nvidia", "10de", "nvidia"},
		{"amd", "1002", "advanced micro devices"},
		{"amd", "1022", "amd"},
		{"intel", "8086", "intel"},
		{"intel", "1da3", "habana"},
		{"mellanox", "15b3", "mellanox"},
		{"broadcom", "14e4", "broadcom"},
	} {
		if lower == vendor.id || strings.HasPrefix(lower, vendor.prefix) {
			return vendor.name
		}
	}
	return told
}
