package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	// maxSpecDevices is the maximum number of devices of a spec, and maxSpecNodes that of device nodes
	// of a device.
	maxSpecDevices = 4096
	maxSpecNodes   = 256
	// maxPath is the kernel's PATH_MAX.
	maxPath = 4096
)

var (
	errSpecKind    = errors.New("kind is not VENDOR/CLASS")
	errSpecDevices = fmt.Errorf("no list of devices, or more than %d", maxSpecDevices)
)

// specDevice is a device of a CDI spec.
type specDevice struct {
	name string // qualified: vendor/class=name
	hw   driver.Hardware
	cpus []int // CPUs of the claim for which it was written, ascending; nil: unknown
}

// parseSpec returns the devices of a CDI spec in YAML or JSON, according to the container edits of
// each device. The common edits of the spec do not identify a device and are ignored, and so is the
// version of the spec. Malformed devices are omitted and counted. The list of devices may be empty:
// dra-driver-cpu writes such a spec while no claim is prepared.
func parseSpec(data []byte) (devices []specDevice, malformed int, err error) {
	raw, err := manifest.ToJSON(data)
	if err != nil {
		return nil, 0, fmt.Errorf("parse CDI spec: %w", err)
	}
	var spec struct {
		Kind    string            `json:"kind"`
		Devices []json.RawMessage `json:"devices"`
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, 0, fmt.Errorf("parse CDI spec: %w", err)
	}
	vendor, class := parser.ParseQualifier(spec.Kind)
	if parser.ValidateVendorName(vendor) != nil || parser.ValidateClassName(class) != nil ||
		len(spec.Kind) > manifest.MaxName {
		return nil, 0, fmt.Errorf("parse CDI spec: %w", errSpecKind)
	}
	if spec.Devices == nil || len(spec.Devices) > maxSpecDevices {
		return nil, 0, fmt.Errorf("parse CDI spec: %w", errSpecDevices)
	}
	for _, raw := range spec.Devices {
		var d specs.Device
		if json.Unmarshal(raw, &d) != nil || parser.ValidateDeviceName(d.Name) != nil || len(d.Name) > manifest.MaxName {
			malformed++
			continue
		}
		device := specDevice{name: parser.QualifiedName(vendor, class, d.Name), hw: hardwareOf(d)}
		if spec.Kind == cpuKind {
			device.cpus = cpusIn(d.ContainerEdits.Env)
		}
		devices = append(devices, device)
	}
	return devices, malformed, nil
}

// cpuKind is the kind of the specs of dra-driver-cpu, independent of the driver's name (pkg/driver,
// cdi.go).
const cpuKind = "dra.k8s.io/cpu"

// cpusIn returns the CPUs in the environment variable DRA_CPUSET_<UID of the claim>=0-3,8. It
// returns nil if there are several such variables, since a device belongs to one claim.
func cpusIn(env []string) []int {
	var cpus []int
	for _, e := range env {
		if variable, ok := strings.CutPrefix(e, "DRA_CPUSET_"); ok {
			_, list, _ := strings.Cut(variable, "=")
			if cpus != nil {
				return nil
			}
			cpus = parseCPUList(list)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus)
}

// hardwareOf returns the hardware that the edits of a device identify, or its name if that is a
// UUID or has a PCI address.
func hardwareOf(d specs.Device) driver.Hardware {
	h := driver.Hardware{PCI: pciInName(d.Name)}
	if strings.HasPrefix(d.Name, "GPU-") || strings.HasPrefix(d.Name, "MIG-") {
		h.UUID = d.Name
	}
	for _, n := range d.ContainerEdits.DeviceNodes {
		if path := hostPath(n); path != "" && len(h.DeviceNodes) < maxSpecNodes {
			h.DeviceNodes = append(h.DeviceNodes, path)
		}
	}
	slices.Sort(h.DeviceNodes)
	h.DeviceNodes = slices.Compact(h.DeviceNodes)
	h.Kind = kindOfNodes(h.DeviceNodes)
	if h.Kind == driver.KindPartition {
		// The edits of a MIG instance also have its parent's nodes, which would identify the parent.
		h.DeviceNodes = ofMIG(h.DeviceNodes)
	}
	for _, n := range d.ContainerEdits.NetDevices {
		if n != nil && len(n.HostInterfaceName) < maxInterfaceName {
			h.NetDev = n.HostInterfaceName
		}
	}
	if len(d.ContainerEdits.NetDevices) > 1 {
		h.NetDev = "" // ambiguous
	}
	return h
}

// ofMIG returns the device nodes of a MIG instance without those of its GPU.
func ofMIG(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !strings.HasPrefix(path, migNodes) })
}

const (
	// maxInterfaceName is the kernel's IFNAMSIZ, which includes the terminating null byte.
	maxInterfaceName = 16

	migNodes     = "/dev/nvidia-caps/"
	channelNodes = "/dev/nvidia-caps-imex-channels/"
	vfioNodes    = "/dev/vfio/"
)

// hostPath returns the path of a device node on the host, or "" for a node that identifies no
// device because all containers with a device of that kind have it.
func hostPath(n *specs.DeviceNode) string {
	if n == nil {
		return ""
	}
	path := n.HostPath
	if path == "" {
		path = n.Path
	}
	path = filepath.Clean(path)
	if !strings.HasPrefix(path, "/dev/") || len(path) > maxPath {
		return ""
	}
	switch path {
	case "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-nvswitchctl",
		"/dev/kfd", "/dev/vfio/vfio", "/dev/infiniband/rdma_cm", "/dev/iommu":
		return ""
	}
	return path
}

// kindOfNodes returns the kind of the device that has these device nodes.
func kindOfNodes(paths []string) driver.Kind {
	has := func(prefix string) bool {
		return slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, prefix) })
	}
	switch {
	case has(vfioNodes):
		return driver.KindPassthrough
	case has(migNodes):
		return driver.KindPartition
	case has(channelNodes):
		return driver.KindChannel
	default:
		return driver.KindDevice
	}
}

// resolve sets, from sysfs, the PCI address by DRM, accelerator and network devices, and the RDMA
// device by verbs device nodes. What is not found or ambiguous stays unknown.
func resolve(h *driver.Hardware, root string) {
	var addresses, rdma []string
	for _, path := range h.DeviceNodes {
		dir, name := filepath.Split(path)
		switch {
		case dir == "/dev/dri/":
			addresses = append(addresses, sysfs.PCIOf(root, "drm", name))
		case dir == "/dev/accel/":
			addresses = append(addresses, sysfs.PCIOf(root, "accel", name))
		case dir == "/dev/infiniband/" && strings.HasPrefix(name, "uverbs"):
			rdma = append(rdma, attribute(root, "infiniband_verbs", name, "ibdev"))
		}
	}
	if h.NetDev != "" {
		addresses = append(addresses, sysfs.PCIOf(root, "net", h.NetDev))
	}
	if h.PCI == "" {
		h.PCI = only(addresses)
	}
	h.RDMADev = only(rdma)
}

// attribute returns the value of a sysfs attribute of a class device, "" if there is none.
func attribute(root, class, name, file string) string {
	folder := sysfs.ClassDevice(root, class, name)
	if folder == "" {
		return ""
	}
	var r sysfs.Reader
	value, err := r.Value(sysfs.WorkingDir, filepath.Join(folder, file))
	if err != nil {
		return ""
	}
	return string(value)
}

// only returns the value of all elements that are not empty, "" if they differ.
func only(values []string) string {
	one := ""
	for _, v := range values {
		if v != "" && one != "" && v != one {
			return ""
		}
		if v != "" {
			one = v
		}
	}
	return one
}
