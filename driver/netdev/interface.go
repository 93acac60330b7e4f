package netdev

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// netInterface is the state of an interface between samples.
type netInterface struct {
	index    uint64           // ifindex; 0: unknown
	readings []driver.Reading // of the counters and the link
	at       time.Time        // when they were read
	facts    facts
	due      bool      // to be read in this sample
	seen     time.Time // the last sample that had it
}

// measure reads the interface. It returns nil if the interface does not exist.
func (s *Source) measure(root *os.File, name string, bad *sysfs.Problems) *netInterface {
	folder, err := sysfs.OpenDir(sysfs.Dir(root.Fd()), name)
	if err != nil {
		// Not every entry is a folder: bonding_masters is a file.
		if !sysfs.IsGone(err) {
			bad.Add(fmt.Errorf("open network interface %s: %w", name, err))
		}
		return nil
	}
	defer folder.Close()
	index, err := s.file.Number(folder, "ifindex")
	if sysfs.IsAbsent(err) { // this interface is being removed (dev_isalive in net/core/net-sysfs.c)
		return nil
	}
	i := s.known[name]
	if i == nil || i.index != index {
		i = &netInterface{index: index}
		s.known[name] = i
	}
	i.at = s.now()
	a := sysfs.Attributes{
		Dir: folder, Of: "network interface " + name, Now: func() time.Time { return i.at }, Reader: &s.file, Problems: bad,
		Readings: make([]driver.Reading, 0, numCounters+2),
	}
	a.Fail("ifindex", err)
	if age := i.at.Sub(i.facts.at); age >= factsEvery || age < 0 || i.facts.at.IsZero() {
		i.facts = readFacts(&a, filepath.Join(s.root, name), name)
	}
	readCounters(&a)
	if i.facts.physical {
		readLink(&a)
	}
	i.readings = a.Readings
	return i
}

// report appends the interface's last readings.
func (i *netInterface) report(readings []driver.Reading) []driver.Reading {
	readings = append(readings, i.readings...)
	if i.facts.speed != 0 {
		readings = append(readings, driver.Reading{
			Quantity: driver.Capacity, Labels: driver.Labels{"speed"}, Value: i.facts.speed, At: i.facts.at,
		})
	}
	return append(readings, i.facts.temperatures...)
}

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

const numCounters = 8

// counterFile is a file below an interface's folder, with the quantity that it counts.
type counterFile struct {
	path     string
	quantity driver.Quantity
	labels   driver.Labels
}

// missedErrors is the file of the packets that the hardware dropped for lack of buffers. They count
// as received drops, as in /proc/net/dev, so that the counter of an interface continues in a pod.
const missedErrors = "statistics/rx_missed_errors"

// counterFiles returns the counters that are read.
func counterFiles() [numCounters]counterFile {
	const receive, transmit = "receive", "transmit"
	return [numCounters]counterFile{
		{"statistics/rx_bytes", driver.IOBytes, driver.Labels{"network", receive}},
		{"statistics/tx_bytes", driver.IOBytes, driver.Labels{"network", transmit}},
		{"statistics/rx_packets", driver.NetworkPackets, driver.Labels{receive}},
		{"statistics/tx_packets", driver.NetworkPackets, driver.Labels{transmit}},
		{"statistics/rx_errors", driver.NetworkErrors, driver.Labels{receive}},
		{"statistics/tx_errors", driver.NetworkErrors, driver.Labels{transmit}},
		{"statistics/rx_dropped", driver.NetworkDrops, driver.Labels{receive}},
		{"statistics/tx_dropped", driver.NetworkDrops, driver.Labels{transmit}},
	}
}

// readCounters adds the kernel's counters.
func readCounters(a *sysfs.Attributes) {
	for _, f := range counterFiles() {
		n, ok := a.Value(f.path)
		if ok && f.path == "statistics/rx_dropped" && !driver.IsMalformed(n) {
			missed, _ := a.Value(missedErrors)
			n += missed
		}
		if ok {
			a.Add(f.quantity, n, f.labels[:]...)
		}
	}
}

// readLink adds the state of the link and the number of losses of the carrier. It reads the
// operational state (RFC 2863, Documentation/networking/operstates.rst), which takes no lock. It
// reads carrier only if that state is missing or "unknown". An interface that is switched off has
// no link.
func readLink(a *sysfs.Attributes) {
	switch state := a.Text("operstate"); state {
	case "up":
		a.Add(driver.LinkUp, 1, "network")
	case "down", "lowerlayerdown", "dormant", "testing", "notpresent":
		a.Add(driver.LinkUp, 0, "network")
	default:
		carrier, err := a.Reader.Number(a.Dir, "carrier")
		a.Fail("carrier", err)
		up, known := driver.NumberOf(carrier, err)
		if known || state != "" && sysfs.IsAbsent(err) { // carrier can't be read while the interface is off
			a.Add(driver.LinkUp, up, "network")
		}
	}
	a.Gauge("carrier_down_count", 1, driver.Errors, "link_down")
}

// readLinkInPod reads the link of a pod's interface in the sysfs of one of the pod's processes.
// This needs CAP_SYS_PTRACE: without it, the link is unknown, but net/dev is still read.
func (r *podReader) readLinkInPod(a *sysfs.Attributes, f *found) {
	class, err := sysfs.OpenClass(r.source.Procfs, f.pid, "net", r.source.isSysfs)
	if err != nil {
		return
	}
	defer class.Close()
	folder, err := sysfs.OpenDevice(class, f.Interface, r.source.isSysfs)
	if err != nil {
		return
	}
	defer folder.Close()
	a.Dir = folder
	readLink(a)
}

// parseSpeed converts the kernel's speed in Mbit/s to bytes per second; 0 if it is -1, which means
// unknown (Documentation/ABI/testing/sysfs-class-net).
func parseSpeed(line []byte) (float64, error) {
	const bytesPerMegabit = 1e6 / 8
	megabits, err := strconv.ParseInt(string(line), 10, 64)
	// A value above the 31 bits of ethtool is -1 of a driver that treats it as unsigned.
	if err != nil || megabits < 0 || megabits >= 1<<31-1 {
		return 0, err
	}
	return float64(megabits) * bytesPerMegabit, nil
}

func nilAtEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
