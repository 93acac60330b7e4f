package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// device is the state of an RDMA device between samples.
type device struct {
	hardware driver.Hardware
	ports    []*port
	at       time.Time // when the traffic was read
	slowAt   time.Time // when everything else was read
	seen     time.Time // the last sample that had it
}

// port is one port of a device.
type port struct {
	number   string
	files    []*counterFile // of the lowest rank that the reading has, in the order of their paths
	stateful bool           // its state could be read
	up       float64        // 1 or 0
	rate     float64        // bytes per second; 0: unknown, or the port is down
}

// counterFile is a file below a port's folder.
type counterFile struct {
	path string
	meaning
	count float64 // [driver.Malformed] if the file has no number
	known bool    // the last attempt found a value
}

// refresh lists the ports and their counters.
func (s *Source) refresh(d *device, a *sysfs.Attributes) {
	numbers, err := sysfs.Names(a.Dir, "ports")
	if err != nil && !sysfs.IsGone(err) {
		a.Fail("ports", err)
		return
	}
	known := map[string]*port{}
	for _, p := range d.ports {
		known[p.number] = p
	}
	d.ports = nil
	for _, number := range numbers {
		p := known[number]
		if p == nil {
			p = &port{number: number}
		}
		s.list(p, a)
		d.ports = append(d.ports, p)
	}
}

// list finds the counters of a port.
func (s *Source) list(p *port, a *sysfs.Attributes) {
	p.files = nil
	lowest := map[reading]int{}
	for _, folder := range [...]string{"counters", "hw_counters"} {
		names, err := sysfs.Names(a.Dir, p.path(folder))
		a.Fail(p.path(folder), err)
		for _, file := range names {
			if m, ok := s.tables[folder+"/"+file]; ok {
				p.files = append(p.files, &counterFile{path: folder + "/" + file, meaning: m})
				if rank, ok := lowest[m.reading()]; !ok || m.rank < rank {
					lowest[m.reading()] = m.rank
				}
			}
		}
	}
	p.files = slices.DeleteFunc(p.files, func(f *counterFile) bool { return f.rank > lowest[f.reading()] })
}

// path returns the path of a file of the port, below the device.
func (p *port) path(file string) string { return "ports/" + p.number + "/" + file }

// read reads the counters of a port: those of traffic, or the others.
func (p *port) read(a *sysfs.Attributes, traffic bool) {
	for _, f := range p.files {
		if f.isTraffic() == traffic {
			f.count, f.known = a.Value(p.path(f.path))
		}
	}
}

// value returns the sum of the files of a reading, [driver.Malformed] if one of them has no number.
func (p *port) value(r reading) (sum float64, ok bool) {
	for _, f := range p.files {
		if f.reading() != r {
			continue
		}
		if !f.known || driver.IsMalformed(f.count) {
			return f.count, f.known
		}
		sum, ok = sum+f.count*f.scale, true
	}
	return sum, ok
}

// readState reads the state and the rate of a port.
func (p *port) readState(a *sysfs.Attributes) {
	p.rate = 0
	if p.up, p.stateful = a.Parse(p.path("state"), parseState); p.up == 1 { // otherwise it is that of the last link
		p.rate, _ = a.Parse(p.path("rate"), parseRate)
	}
}

// report returns the sums over all ports, without their states. A reading that one of the ports
// lacks is absent, since its sum would fall when a port disappears.
func (d *device) report() []driver.Reading {
	var out sysfs.Attributes
	if len(d.ports) > 0 {
		first := d.ports[0]
		out.Readings = make([]driver.Reading, 0, len(first.files)+len(d.ports)+1)
		seen := make(map[reading]bool, len(first.files))
		for _, f := range first.files {
			r := f.reading()
			if seen[r] {
				continue
			}
			seen[r] = true
			at := d.slowAt
			if f.isTraffic() {
				at = d.at
			}
			if sum, ok := d.sum(r); ok {
				out.AddAt(at, r.quantity, sum, r.labels[:]...)
			}
		}
	}
	rate := 0.0
	for _, p := range d.ports {
		if p.stateful {
			rate += p.rate
			out.AddAt(d.slowAt, driver.LinkUp, p.up, "rdma", p.number)
		}
	}
	if rate != 0 {
		out.AddAt(d.slowAt, driver.Capacity, rate, "speed")
	}
	return out.Readings
}

// sum returns the sum of a reading over all ports, false if one of them lacks it.
func (d *device) sum(r reading) (sum float64, ok bool) {
	for _, p := range d.ports {
		value, ok := p.value(r)
		if !ok {
			return 0, false
		}
		sum += value
	}
	return sum, true
}

// identify returns the hardware of an RDMA device, given its folder: a PCI function, a part of one
// or, for RDMA in software (rxe, siw), a network interface.
func identify(reader *sysfs.Reader, folder, name string) driver.Hardware {
	h := driver.Hardware{RDMADev: name}
	behind, ok := sysfs.Follow(folder, "device")
	if !ok {
		h.NetDev = interfaceOf(reader, folder)
		return h
	}
	if entry := sysfs.Only(filepath.Join(behind, "net")); !strings.ContainsAny(entry, " /") {
		h.NetDev = entry
	}
	sysfs.Identify(&h, behind)
	return h
}

// interfaceOf returns the network interface of the first GID of an RDMA device in software.
func interfaceOf(reader *sysfs.Reader, folder string) string {
	value, err := reader.Value(sysfs.WorkingDir, filepath.Join(folder, "ports", "1", "gid_attrs", "ndevs", "0"))
	if err != nil {
		return ""
	}
	return string(value)
}

// errNoValue is the error of a file that says that the device has no such value.
var errNoValue = fmt.Errorf("the device has no value: %w", unix.EOPNOTSUPP)

// parseState parses the file state of a port, such as "4: ACTIVE" (enum ib_port_state in
// include/rdma/ib_verbs.h), and returns 1 if the port is up, else 0.
func parseState(value []byte) (up float64, err error) {
	const down, active, deferred = 1, 4, 5
	number, _, _ := bytes.Cut(value, []byte(":"))
	state, err := strconv.ParseUint(string(number), 10, 8)
	switch {
	case err != nil:
		return 0, err
	case state < down || state > deferred:
		return 0, errNoValue
	}
	return driver.Flag(state >= active), nil
}

// parseRate parses the file rate of a port, such as "100 Gb/sec (4X EDR)", in bytes per second.
func parseRate(value []byte) (float64, error) {
	const bytesPerGigabit, most = 1e9 / 8, 1e6
	number, _, ok := bytes.Cut(value, []byte(" Gb/sec"))
	if !ok {
		return 0, errRate
	}
	gigabits, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		return 0, err
	}
	if !(gigabits >= 0 && gigabits <= most) { // NaN neither
		return 0, errRate
	}
	return gigabits * bytesPerGigabit, nil
}

var errRate = driver.WithReason(driver.ReasonMalformed, errors.New("not a rate in Gb/sec"))
