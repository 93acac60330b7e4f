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

// PluginDevice is what the ID under which a device plugin gives out a device tells.
type PluginDevice struct {
	Name     string // the ID, less the share
	Share    string // which of several shares that the plugin makes of one device; empty: it makes none
	Hardware driver.Hardware
}

// NewPluginDevice returns what a device plugin's ID says of a device of that resource. What is
// particular to one plugin:
//
//   - NVIDIA k8s-device-plugin: the UUID of a GPU or a MIG instance, and behind it, with time
//     slicing or MPS, ::REPLICA (internal/rm/devices.go, AnnotatedID).
//   - GKE's: nvidiaMINOR, with time sharing nvidiaMINOR/vgpuREPLICA.
//   - Intel's GPU plugin: the DRM card with a number from 0 to its shared-dev-num, card0-0.
//   - AMD's, the SR-IOV network device plugin, QAT and others: a PCI address.
//
// With the root of a sysfs, an ID that is the name of a network interface is known for one, and PCI
// addresses behind DRM cards and interfaces are found.
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

// PluginIndex finds the DRA device that is the same hardware as a device plugin's. On a node in
// migration both give out one GPU, and it is to count once.
type PluginIndex map[string]driver.ID

// NewPluginIndex returns the index of an inventory. Of several identities of one hardware a whole
// device comes before its parts and before one for guests, and then the first by ID.
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
	// A node that several devices of a driver have tells none of them.
	maps.DeleteFunc(index, func(key string, _ driver.ID) bool { return shared[key] && strings.HasPrefix(key, nodeKey) })
	return index
}

// Find returns the DRA device of that hardware, by UUID, PCI address, network interface or device
// node.
func (x PluginIndex) Find(h *driver.Hardware) (driver.ID, bool) {
	for _, key := range pluginKeys(driver.ID{}, h) {
		if id, ok := x[key]; ok {
			return id, true
		}
	}
	return driver.ID{}, false
}

const nodeKey = "node "

// pluginKeys returns what identifies the hardware, the best first.
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
	// The name of a whole GPU has its minor number (cmd/gpu-kubelet-plugin of dra-driver-nvidia-gpu,
	// CanonicalName).
	if minor, ok := strings.CutPrefix(id.Device,
		"gpu-"); ok && id.Driver == "gpu.nvidia.com" && h.Kind == driver.KindDevice {
		keys = append(keys, nodeKey+"/dev/nvidia"+minor)
	}
	return keys
}

// WithGuest reports whether the kernel's driver that hands devices to guests as they are, vfio-pci,
// has a device, given where sysfs is mounted.
func WithGuest(root string, h driver.Hardware) bool {
	return h.PCI != "" && sysfs.Driver(sysfs.PCIDevice(root, h.PCI)) == "vfio-pci"
}
