package netdev

import (
	"cmp"
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

// readFacts reads the facts of the interface in a folder of /sys/class/net, which is that of the
// attributes. It ignores the speed of an interface without hardware: a veth always reports 10
// Gbit/s.
func readFacts(a *sysfs.Attributes, folder, name string) facts {
	f := facts{hardware: driver.Hardware{NetDev: name}, at: a.Now()}
	device, ok := sysfs.Follow(folder, "device")
	if !ok {
		return f
	}
	f.physical = true
	f.speed, _ = a.Parse("speed", parseSpeed)
	if sysfs.Identify(&f.hardware, device) {
		if h := &f.hardware; isRepresentor(a.Text("phys_port_name")) {
			*h = driver.Hardware{NetDev: name, NUMANode: h.NUMANode, Parent: cmp.Or(h.PCI, h.Parent)}
			return f // the sensors are those of its parent
		}
		f.hardware.RDMADev = sysfs.Only(filepath.Join(device, "infiniband"))
	}
	sensors := *a
	sensors.Readings = nil
	if f.hardware.PCI != "" || f.hardware.Parent == "" { // otherwise they are those of its parent
		sensors.Sensors(driver.Temperature, sysfs.Temperatures, device, sysfs.AsLabeled)
	}
	f.temperatures = sensors.Readings
	return f
}

// isRepresentor reports whether an interface is the port of a switch to another function, and not
// the function of its device link, by the name of its port: pf0, pf0vf3 or pf0sf8, after the number
// of the controller if there are several (c1pf0vf3). That of a physical port is p0 (devlink-port in
// Documentation/networking/devlink).
func isRepresentor(portName string) bool {
	if rest, ok := strings.CutPrefix(portName, "c"); ok {
		portName = strings.TrimLeft(rest, "0123456789")
	}
	return strings.HasPrefix(portName, "pf")
}
