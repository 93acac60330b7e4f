package sysfs

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
)

// NUMANode returns the number of the NUMA node of a device, given its folder; "" if it has none or
// it is unknown.
func NUMANode(device string) string {
	return digitsIn(filepath.Join(device, "numa_node"))
}

// digitsIn returns the text of a file that has one number without a sign, else "".
func digitsIn(path string) string {
	var r Reader
	value, err := r.Value(WorkingDir, path)
	if err != nil {
		return ""
	}
	if _, err := strconv.ParseUint(string(value), 10, 32); err != nil {
		return ""
	}
	return string(value)
}

// PCIDevice returns the folder of the PCI device with an address.
func PCIDevice(sysfs, address string) string {
	return filepath.Join(sysfs, "bus", "pci", "devices", address)
}

// PCIPathOf returns the position of the PCI device with an address; zero if the device does not
// exist. If the NUMA node of the device is unknown and the machine has only one, it is that one.
func PCIPathOf(root, address string) (driver.PCIPath, error) {
	folder := PCIDevice(root, address)
	target, err := os.Readlink(folder)
	if IsGone(err) {
		return driver.PCIPath{}, nil
	}
	if err != nil {
		return driver.PCIPath{}, fmt.Errorf("read the path of a PCI device: %w", err)
	}
	path := driver.PCIPath{NUMANode: NUMANode(folder)}
	if path.NUMANode == "" { // several nodes online are 0-1
		path.NUMANode = digitsIn(filepath.Join(root, "devices", "system", "node", "online"))
	}
	for part := range strings.SplitSeq(filepath.ToSlash(target), "/") {
		switch {
		case path.Root == "" && strings.HasPrefix(part, "pci") && strings.Contains(part, ":"):
			path.Root = part
		case path.Root != "" && path.Port == "" && part != address && driver.NormalizePCI(part) == part:
			path.Port = part
		}
	}
	return path, nil
}

// ClassDevice returns the folder of a class device such as a network interface
// (/sys/class/CLASS/NAME), "" if the name is not valid.
func ClassDevice(sysfs, class, name string) string {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return ""
	}
	return filepath.Join(sysfs, "class", class, name)
}

// PCIOf returns the PCI address of a class device, "" if it is not a PCI device.
func PCIOf(sysfs, class, name string) string {
	folder := ClassDevice(sysfs, class, name)
	if folder == "" {
		return ""
	}
	address := targetName(folder, "device")
	if driver.NormalizePCI(address) != address {
		return "" // that of another bus, such as 1-1:1.0 of USB
	}
	return address
}

// targetName returns the last part of the target of a symbolic link in a folder, "" if there is
// none.
func targetName(folder, link string) string {
	target, err := os.Readlink(filepath.Join(folder, link))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Follow returns the target of a symbolic link in a folder, false if there is none.
func Follow(folder, link string) (string, bool) {
	path := filepath.Join(folder, link)
	if _, err := os.Readlink(path); err != nil { // cheap, and most devices do not have the link
		return "", false
	}
	target, err := filepath.EvalSymlinks(path)
	return target, err == nil
}

// Driver returns the name of the kernel driver that a device is bound to, "" if there is none.
func Driver(device string) string { return targetName(device, "driver") }

// Bus returns the name of the bus of a device, "" if there is none.
func Bus(device string) string { return targetName(device, "subsystem") }

// Only returns the name of the only entry of a folder, "" if there is none or several.
func Only(folder string) string {
	f, err := os.Open(folder)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if names, _ := f.Readdirnames(2); len(names) == 1 {
		return names[0]
	}
	return ""
}

// PCIDevices returns the sorted addresses of the devices of a vendor on the PCI bus whose class
// code has one of the prefixes, without virtual functions and devices that are passed through to
// guests. vendor and classes are hexadecimal digits without 0x (/sys/bus/pci/devices/*/vendor and
// class). It returns nil if there is no PCI bus.
func PCIDevices(root, vendor string, classes []string) []string {
	entries, err := os.ReadDir(filepath.Join(root, "bus", "pci", "devices"))
	if err != nil {
		return nil
	}
	var reader Reader
	is := func(device, attribute string, prefixes ...string) bool {
		value, err := reader.Value(WorkingDir, filepath.Join(device, attribute))
		return err == nil && slices.ContainsFunc(prefixes, func(prefix string) bool {
			return strings.HasPrefix(string(value), "0x"+prefix)
		})
	}
	var out []string
	for _, e := range entries {
		device := PCIDevice(root, e.Name())
		if !is(device, "vendor", vendor) || !is(device, "class", classes...) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(device, "physfn")); err == nil || Driver(device) == "vfio-pci" {
			continue
		}
		out = append(out, e.Name())
	}
	return out
}

// maxSensors is the maximum number of sensors of a device.
const maxSensors = 64

// Sensor is a sensor of a device's hwmon (Documentation/hwmon/sysfs-interface.rst).
type Sensor struct {
	// Label is the driver's label of the sensor, or else the name of its file, such as temp1 or in0.
	// It is unique among the device's sensors of its kind.
	Label string
	path  string
}

// Temperatures returns the temperature sensors of a device, given its folder, in the order of their
// files. A device without hwmon has none.
func Temperatures(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "temp")
}

// Voltages returns the voltage sensors of a device, like Temperatures.
func Voltages(device string) ([]Sensor, error) {
	return sensors(filepath.Join(device, "hwmon"), "", "in")
}

// ClassTemperatures returns the temperature sensors of a class device, given its folder. Its
// monitors are directly in this folder, not in a folder hwmon.
func ClassTemperatures(device string) ([]Sensor, error) {
	return sensors(device, "hwmon", "temp")
}

// sensors returns the sensors of one kind, with files KIND0_input, KIND1_input and so on, of the
// monitors in a folder whose names have a prefix.
func sensors(parent, prefix, kind string) ([]Sensor, error) {
	monitors, err := Names(WorkingDir, parent)
	if err != nil && !IsGone(err) {
		return nil, err
	}
	var found []Sensor
	for _, monitor := range monitors {
		if !strings.HasPrefix(monitor, prefix) {
			continue
		}
		folder := filepath.Join(parent, monitor)
		files, err := Names(WorkingDir, folder)
		if err != nil && !IsGone(err) {
			return nil, err
		}
		for _, file := range files {
			name, isInput := strings.CutSuffix(file, "_input")
			if digits, ok := strings.CutPrefix(name, kind); isInput && ok && isNumber(digits) {
				found = append(found, Sensor{label(folder, name), filepath.Join(folder, file)})
			}
		}
	}
	slices.SortFunc(found, func(a, b Sensor) int {
		return cmp.Or(cmp.Compare(len(a.path), len(b.path)), strings.Compare(a.path, b.path)) // temp9, temp10
	})
	found = found[:min(len(found), maxSensors)]
	seen := map[string]bool{}
	for i := range found {
		if s := &found[i]; seen[s.Label] {
			s.Label += " " + strings.TrimSuffix(filepath.Base(s.path), "_input")
		}
		seen[found[i].Label] = true
	}
	return found, nil
}

func isNumber(digits string) bool {
	_, err := strconv.ParseUint(digits, 10, 16)
	return err == nil
}

// Read returns the value of the sensor in degrees Celsius or volts; the kernel's unit is a
// thousandth of these. For 0, which drivers report if a board lacks the sensor, it returns an error
// for which [IsAbsent] is true.
func (s Sensor) Read(r *Reader) (float64, error) {
	value, err := r.Value(WorkingDir, s.path)
	if err != nil {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: err}
	}
	thousandths, err := strconv.ParseInt(string(value), 10, 64)
	if err == nil && thousandths == 0 {
		return 0, &fs.PathError{Op: "read", Path: s.path, Err: unix.ENODEV}
	}
	return float64(thousandths) / 1000, err
}

// label returns the label of a sensor.
func label(folder, name string) string {
	var r Reader
	value, err := r.Value(WorkingDir, filepath.Join(folder, name+"_label"))
	if err != nil {
		return name
	}
	return strings.ToValidUTF8(string(value), "")
}
