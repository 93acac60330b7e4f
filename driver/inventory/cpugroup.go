package inventory

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// CPUGroup is a group of CPUs that the machine's topology defines. A device of dra-driver-cpu is
// such a group by default: the CPUs of a NUMA node (cpudevnuma000), of a socket (cpudevsocket000)
// or of the machine (cpudevmachine), by its option group-by (pkg/device, builder.go). Its slice has
// only the number of CPUs.
type CPUGroup struct {
	kind   string // one of the name prefixes below
	number uint64 // of the NUMA node or the socket
}

const (
	numaGroup    = "cpudevnuma"
	socketGroup  = "cpudevsocket"
	machineGroup = "cpudevmachine"
)

// CPUGroupOf returns the group of CPUs that the device's name denotes, false if it denotes none.
func CPUGroupOf(id driver.ID) (CPUGroup, bool) {
	if id.Driver != "dra.cpu" {
		return CPUGroup{}, false
	}
	if id.Device == machineGroup {
		return CPUGroup{kind: machineGroup}, true
	}
	for _, kind := range [...]string{numaGroup, socketGroup} {
		number, ok := strings.CutPrefix(id.Device, kind)
		if n, err := strconv.ParseUint(number, 10, 16); ok && err == nil {
			return CPUGroup{kind, n}, true
		}
	}
	return CPUGroup{}, false
}

// NUMANode returns the number of the group's NUMA node, "" if the group is not a NUMA node.
func (g CPUGroup) NUMANode() string {
	if g.kind != numaGroup {
		return ""
	}
	return strconv.FormatUint(g.number, 10)
}

// CPUs returns the CPUs of the group that are online, ascending. root is the mount point of sysfs
// (Documentation/ABI/stable/sysfs-devices-node, sysfs-devices-system-cpu). The result includes CPUs
// that the driver reserves for the system, because nothing on the node identifies these.
func (g CPUGroup) CPUs(root string) ([]int, error) {
	folder := filepath.Join(root, "devices", "system")
	switch g.kind {
	case numaGroup:
		return readCPUList(filepath.Join(folder, "node", "node"+g.NUMANode(), "cpulist"))
	case machineGroup:
		return readCPUList(filepath.Join(folder, "cpu", "online"))
	}
	online, err := readCPUList(filepath.Join(folder, "cpu", "online"))
	if err != nil {
		return nil, err
	}
	var cpus []int
	var reader sysfs.Reader
	for _, cpu := range online {
		path := filepath.Join(folder, "cpu", "cpu"+strconv.Itoa(cpu), "topology", "physical_package_id")
		socket, err := reader.Number(sysfs.WorkingDir, path)
		if sysfs.IsGone(err) {
			continue // it went offline
		}
		if err != nil {
			return nil, fmt.Errorf("read the socket of a CPU: %w", err)
		}
		if socket == g.number {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// maxCPUListFile is the maximum size of a file with a list of CPUs. The kernel writes at most a
// page.
const maxCPUListFile = 1 << 16

// readCPUList reads a file with one list of CPUs, which may be empty. The result is ascending.
func readCPUList(path string) ([]int, error) {
	content, err := sysfs.ReadFile(path, maxCPUListFile)
	if err != nil {
		return nil, fmt.Errorf("read a list of CPUs: %w", err)
	}
	list := strings.TrimSpace(string(content))
	if list == "" {
		return nil, nil
	}
	cpus := parseCPUList(list)
	if cpus == nil {
		return nil, fmt.Errorf("read a list of CPUs: %s: %w", path, errCPUList)
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}
