package inventory

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// PluginDevice is a device of a device plugin, described by its ID.
type PluginDevice struct {
	Name     string // the ID without the share
	Share    string // share of a device that the plugin shares; empty: not shared
	Hardware driver.Hardware
}

// NewPluginDevice returns the device with an ID of a resource. The formats of IDs are:
//
//   - NVIDIA k8s-device-plugin: the UUID of a GPU or a MIG instance; with time slicing or MPS,
//     followed by ::REPLICA (internal/rm/devices.go, AnnotatedID).
//   - GKE's: nvidiaMINOR, with time sharing nvidiaMINOR/vgpuREPLICA.
//   - Intel's GPU plugin: the DRM card with a number from 0 to its shared-dev-num, card0-0.
//   - AMD's, the SR-IOV network device plugin, QAT and others: a PCI address.
//
// root is the mount point of sysfs, which is used to recognize names of network interfaces and to
// find the PCI addresses of DRM cards and interfaces; empty: not used.
func NewPluginDevice(resource, id, root string) PluginDevice {
	d := PluginDevice{Name: id}
	if m := regexp.MustCompile(`^(.+)::(\d+)$`).FindStringSubmatch(id); m != nil {
		d.Name, d.Share = m[1], m[2]
	}
	switch domain, _, _ := strings.Cut(resource, "/"); domain {
	case "nvidia.com":
		d.nvidia()
	case "gpu.intel.com":
		d.intel()
	}
	d.Hardware.PCI = driver.NormalizePCI(d.Name)
	if root == "" {
		return d
	}
	if isInterface(root, d.Name) {
		d.Hardware.NetDev = d.Name
	}
	resolve(&d.Hardware, root)
	return d
}

func (d *PluginDevice) nvidia() {
	d.Hardware.Vendor = "nvidia"
	switch {
	case strings.HasPrefix(d.Name, "GPU-"):
		d.Hardware.UUID = d.Name
	case strings.HasPrefix(d.Name, "MIG-"):
		d.Hardware.UUID, d.Hardware.Kind = d.Name, driver.KindPartition
	}
	if m := regexp.MustCompile(`^(nvidia\d+)(?:/vgpu(\d+))?$`).FindStringSubmatch(d.Name); m != nil {
		d.Name, d.Hardware.DeviceNodes = m[1], []string{"/dev/" + m[1]}
		if m[2] != "" {
			d.Share = m[2]
		}
	}
}

func (d *PluginDevice) intel() {
	d.Hardware.Vendor = "intel"
	if m := regexp.MustCompile(`^(card\d+)-(\d+)$`).FindStringSubmatch(d.Name); m != nil {
		d.Name, d.Share, d.Hardware.DeviceNodes = m[1], m[2], []string{"/dev/dri/" + m[1]}
	}
}

// isInterface reports whether the host has a network interface of that name.
func isInterface(root, name string) bool {
	folder := sysfs.ClassDevice(root, "net", name)
	if folder == "" || len(name) >= maxInterfaceName {
		return false
	}
	_, err := os.Lstat(folder)
	return err == nil
}

// PluginIndex finds the DRA device with the same hardware as a device of a device plugin, so that a
// GPU counts once on a node where both offer it.
type PluginIndex map[string]driver.ID

// NewPluginIndex returns the index of an inventory. Of several devices with the same hardware, it
// has the one with the lowest Kind, and of these the first by ID.
func NewPluginIndex(all driver.Inventory) PluginIndex {
	index, shared := PluginIndex{}, map[string]bool{}
	for _, id := range slices.SortedFunc(maps.Keys(all), driver.ID.Compare) {
		entry := all[id]
		for _, key := range pluginKeys(id, &entry.Hardware) {
			before, known := index[key]
			if !known || entry.Kind < all[before].Kind {
				index[key] = id
			}
			shared[key] = shared[key] || known && before.Driver == id.Driver
		}
	}
	// A device node that several devices of a driver have identifies none of them.
	maps.DeleteFunc(index, func(key string, _ driver.ID) bool { return shared[key] && strings.HasPrefix(key, nodeKey) })
	return index
}

// Find returns the DRA device with the given hardware: the first match by UUID, PCI address,
// network interface and device node.
func (x PluginIndex) Find(h *driver.Hardware) (driver.ID, bool) {
	for _, key := range pluginKeys(driver.ID{}, h) {
		if id, ok := x[key]; ok {
			return id, true
		}
	}
	return driver.ID{}, false
}

const nodeKey = "node "

// pluginKeys returns the keys of the hardware in the index, in order of precedence.
func pluginKeys(id driver.ID, h *driver.Hardware) []string {
	var keys []string
	for _, key := range [][2]string{{"uuid ", strings.ToLower(h.UUID)}, {"pci ", h.PCI}, {"netdev ", h.NetDev}} {
		if key[1] != "" {
			keys = append(keys, key[0]+key[1])
		}
	}
	for _, path := range h.DeviceNodes {
		keys = append(keys, nodeKey+path)
	}
	// The name of a whole GPU contains its minor number (cmd/gpu-kubelet-plugin of
	// dra-driver-nvidia-gpu, CanonicalName).
	minor, ok := strings.CutPrefix(id.Device, "gpu-")
	if ok && id.Driver == "gpu.nvidia.com" && h.Kind == driver.KindDevice {
		keys = append(keys, nodeKey+"/dev/nvidia"+minor)
	}
	return keys
}

// IsPassthrough reports whether the kernel driver of a device is vfio-pci, which passes devices
// through to guests. root is the mount point of sysfs.
func IsPassthrough(root string, h driver.Hardware) bool {
	return h.PCI != "" && sysfs.Driver(sysfs.PCIDevice(root, h.PCI)) == "vfio-pci"
}

// PCIPath returns the position of a PCI device, as [sysfs.PCIPathOf] does. root is the mount point
// of sysfs.
func PCIPath(root, address string) (driver.PCIPath, error) { return sysfs.PCIPathOf(root, address) }
