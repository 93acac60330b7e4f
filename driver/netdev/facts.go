package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// facts are what hardly changes about an interface.
type facts struct {
	hardware driver.Hardware
	physical bool    // there is a device behind it, PCI's or another
	speed    float64 // bytes per second; 0: unknown
	at       time.Time
}

// facts reads the facts of the interface in a folder of /sys/class/net. An interface without hardware has no speed:
// a veth calls itself 10 Gbit/s whatever it can do.
func (r *reader) facts(folder, name string, at time.Time) (facts, error) {
	f := facts{hardware: driver.Hardware{NetDev: name}, at: at}
	device, ok := follow(folder, "device")
	if !ok {
		return f, nil
	}
	f.physical = true
	r.identify(&f.hardware, folder, device)

	line, err := r.line(workingFolder, filepath.Join(folder, "speed"))
	if err == nil {
		f.speed, err = parseSpeed(line)
	}
	if err != nil && !isAbsent(err) {
		return f, fmt.Errorf("read speed of network interface %s: %w", name, err)
	}
	return f, nil
}

// identify says which hardware is behind an interface, given the folder of its device: a function of PCI itself,
// a virtio device that is the whole of one, or a part of one (a virtual function, a scalable function on the
// auxiliary bus, a port of its switch). Behind any other bus, USB's for one, the PCI address is that of a controller
// with others on it, and none of ours.
func (r *reader) identify(h *driver.Hardware, folder, device string) {
	function := device
	bus := subsystem(device)
	if bus == "virtio" || bus == "auxiliary" {
		function = filepath.Dir(device)
	}
	if subsystem(function) != "pci" {
		return
	}
	address := driver.NormalizePCI(filepath.Base(function))
	h.NUMANode = r.numaNode(function)
	if r.representsOther(folder) {
		h.Parent = address
		return
	}
	h.RDMADev = only(filepath.Join(device, "infiniband"))
	if bus == "auxiliary" {
		h.Kind, h.Parent = driver.KindPartition, address
		return
	}
	h.PCI = address
	if physical, ok := follow(function, "physfn"); ok {
		h.Kind, h.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
}

// representsOther tells whether the interface is a switch's port towards another function, rather than the function
// that its device link names: the kernel calls such a port pf0, pf0vf3 or pf0sf8, behind the controller's number if
// there are several (c1pf0vf3), and the port to the wire p0 (devlink-port in Documentation/networking/devlink).
func (r *reader) representsOther(folder string) bool {
	line, err := r.line(workingFolder, filepath.Join(folder, "phys_port_name"))
	return err == nil && isRepresentor(string(line))
}

func isRepresentor(portName string) bool {
	if rest, ok := strings.CutPrefix(portName, "c"); ok {
		portName = strings.TrimLeft(rest, "0123456789")
	}
	return strings.HasPrefix(portName, "pf")
}

// numaNode returns the node of a PCI function, "" where the kernel says -1, none.
func (r *reader) numaNode(function string) string {
	line, err := r.line(workingFolder, filepath.Join(function, "numa_node"))
	if err != nil {
		return ""
	}
	if _, err := parseNumber(line); err != nil {
		return ""
	}
	return string(line)
}

// follow returns the folder that a link in a folder leads to.
func follow(folder, link string) (string, bool) {
	path := filepath.Join(folder, link)
	if _, err := os.Readlink(path); err != nil { // cheap, and the answer for most interfaces
		return "", false
	}
	target, err := filepath.EvalSymlinks(path)
	return target, err == nil
}

// subsystem returns the name of the bus that a device is on, "" for none.
func subsystem(device string) string {
	target, err := os.Readlink(filepath.Join(device, "subsystem"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// only returns the name of what is in a folder, if that is one thing.
func only(folder string) string {
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
