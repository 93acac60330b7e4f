package netdev

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// link is the state of the link of an interface with hardware.
type link struct {
	known bool
	up    float64 // 1 or 0
	downs counter // number of losses of the carrier
}

// readLink reads the state of the link and the number of losses, in the open folder of an
// interface. It reads the operational state (RFC 2863, Documentation/networking/operstates.rst),
// which takes no lock. It reads carrier only if that state is missing or "unknown". An interface
// that is switched off has no link.
func (i *netInterface) readLink(a *sysfs.Attributes) {
	l := &i.link
	l.lose()
	switch state := a.Text("operstate"); state {
	case "up":
		l.known, l.up = true, 1
	case "down", "lowerlayerdown", "dormant", "testing", "notpresent":
		l.known = true
	default:
		carrier, err := a.Reader.Number(a.Dir, "carrier")
		a.Fail("carrier", err)
		if l.up, l.known = driver.NumberOf(carrier, err); !l.known {
			l.known = state != "" && sysfs.IsAbsent(err) // carrier can't be read while the interface is off
		}
	}
	downs, err := a.Reader.Number(a.Dir, "carrier_down_count")
	a.Fail("carrier_down_count", err)
	l.downs.take(downs, err, i.at)
}

// lose records that nothing could be read.
func (l *link) lose() {
	l.known, l.up = false, 0
	l.downs.lose()
}

// report appends the readings of the link.
func (l *link) report(readings []driver.Reading, i *netInterface) []driver.Reading {
	if l.known {
		readings = append(readings, driver.Reading{
			Quantity: driver.LinkUp, Labels: driver.Labels{"network"}, Value: l.up, At: i.at,
		})
	}
	return l.downs.report(readings, driver.Errors, driver.Labels{"link_down"}, i.at)
}

// readLinkInPod reads the link of a pod's interface in the sysfs of one of the pod's processes.
// This needs CAP_SYS_PTRACE: without it, the link is unknown, but net/dev is still read.
func (r *podReader) readLinkInPod(i *netInterface, f *found) {
	i.link.lose()
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
	i.readLink(&sysfs.Attributes{
		Dir: folder, Of: "network interface " + f.Interface, Reader: &r.source.file, Problems: r.bad,
	})
}
