package netdev

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// facts has the properties of an interface that rarely change.
type facts struct {
	hardware driver.Hardware
	physical bool    // there is hardware behind it, on PCI or another bus
	speed    float64 // bytes per second; 0: unknown
	at       time.Time

	temperatures []driver.Reading // of the hardware's sensors
}

// readFacts reads the facts of the interface in a folder of /sys/class/net. It ignores the speed of
// an interface without hardware: a veth always reports 10 Gbit/s.
func readFacts(r *sysfs.Reader, folder, name string, at time.Time) (facts, error) {
	f := facts{hardware: driver.Hardware{NetDev: name}, at: at}
	device, ok := sysfs.Follow(folder, "device")
	if !ok {
		return f, nil
	}
	f.physical = true
	identify(r, &f.hardware, folder, device)

	line, err := r.Value(sysfs.WorkingDir, filepath.Join(folder, "speed"))
	if err == nil {
		f.speed, err = parseSpeed(line)
		f.speed, _ = driver.NumberOf(f.speed, err)
	}
	if err != nil && !sysfs.IsAbsent(err) {
		err = fmt.Errorf("read speed of network interface %s: %w", name, err)
	} else {
		err = nil
	}
	if f.hardware.PCI == "" && f.hardware.Parent != "" {
		return f, err // the sensors are those of its parent
	}
	var failed error
	if f.temperatures, failed = readTemperatures(r, device, at); failed != nil {
		err = cmp.Or(err, fmt.Errorf("read temperature of network interface %s: %w", name, failed))
	}
	return f, err
}

// readTemperatures reads the sensors of the interface's device, with the driver's labels: those of
// the chip, ports and modules.
func readTemperatures(r *sysfs.Reader, device string, at time.Time) ([]driver.Reading, error) {
	sensors, err := sysfs.Temperatures(device)
	if err != nil {
		return nil, err
	}
	var readings []driver.Reading
	for _, s := range sensors {
		celsius, failed := s.Read(r)
		if value, ok := driver.NumberOf(celsius, failed); ok {
			readings = append(readings, driver.Reading{
				Quantity: driver.Temperature, Labels: driver.Labels{s.Label}, Value: value, At: at,
			})
		}
		if failed != nil && !sysfs.IsAbsent(failed) && err == nil {
			err = failed
		}
	}
	return readings, err
}

// identify sets the identifiers of the hardware of an interface, given the folder of its device: a
// PCI function, a virtio device that is a whole one, or a part of one (a virtual function, a
// scalable function on the auxiliary bus, a port of its switch). On other buses, such as USB, the
// PCI address is that of a controller with several devices and is not used.
func identify(r *sysfs.Reader, h *driver.Hardware, folder, device string) {
	function := device
	bus := sysfs.Bus(device)
	if bus == "virtio" || bus == "auxiliary" {
		function = filepath.Dir(device)
	}
	if sysfs.Bus(function) != "pci" {
		return
	}
	address := driver.NormalizePCI(filepath.Base(function))
	h.NUMANode = sysfs.NUMANode(function)
	if representsOther(r, folder) {
		h.Parent = address
		return
	}
	h.RDMADev = sysfs.Only(filepath.Join(device, "infiniband"))
	if bus == "auxiliary" {
		h.Kind, h.Parent = driver.KindPartition, address
		return
	}
	h.PCI = address
	if physical, ok := sysfs.Follow(function, "physfn"); ok {
		h.Kind, h.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
}

// representsOther reports whether the interface is the port of a switch to another function, and
// not the function of its device link. The name of such a port is pf0, pf0vf3 or pf0sf8, after the
// number of the controller if there are several (c1pf0vf3); that of a physical port is p0
// (devlink-port in Documentation/networking/devlink).
func representsOther(r *sysfs.Reader, folder string) bool {
	line, err := r.Value(sysfs.WorkingDir, filepath.Join(folder, "phys_port_name"))
	return err == nil && isRepresentor(string(line))
}

func isRepresentor(portName string) bool {
	if rest, ok := strings.CutPrefix(portName, "c"); ok {
		portName = strings.TrimLeft(rest, "0123456789")
	}
	return strings.HasPrefix(portName, "pf")
}
