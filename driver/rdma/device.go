package rdma

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// device is what is known of an RDMA device between samples.
type device struct {
	hardware driver.Hardware
	ports    []*port
	at       time.Time // when the traffic was read
	slowAt   time.Time // when all else was
	seen     time.Time // the last sample in which it was there
}

// port is one port of a device.
type port struct {
	number   string
	counters []counter // as counterFiles
	stateful bool      // its state could be read
	up       bool
	rate     float64 // bytes a second; 0: unknown, or it is down
}

// refresh lists the ports, whose counters go on.
func (d *device) refresh(dir sysfs.Dir, name string, bad *sysfs.Problems) {
	numbers, err := sysfs.Names(dir, "ports", maxPorts)
	if err != nil && !sysfs.IsGone(err) {
		bad.Add(fmt.Errorf("list the ports of RDMA device %s: %w", name, err))
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
			p = &port{number: number, counters: make([]counter, len(counterFiles()))}
		}
		d.ports = append(d.ports, p)
	}
}

// read reads the counters of these positions of counterFiles.
func (s *Source) read(dir sysfs.Dir, name string, p *port, from, to int, bad *sysfs.Problems) {
	for n := from; n < to; n++ {
		if n >= numTraffic && n < numFast && !p.counters[n-numTraffic].missing {
			continue // the other file of the same traffic is there
		}
		path := s.files[n].path
		value, err := s.reader.Value(dir, "ports/"+p.number+"/"+path)
		var raw uint64
		if err == nil {
			raw, err = parseCounter(value)
		}
		if err == nil {
			p.counters[n].advance(raw)
			continue
		}
		p.counters[n].missing = true
		if !isAbsent(err) {
			bad.Add(fmt.Errorf("read %s of port %s of RDMA device %s: %w", path, p.number, name, err))
		}
	}
}

// readState reads whether the port is up, and how fast it is.
func (s *Source) readState(dir sysfs.Dir, name string, p *port, bad *sysfs.Problems) {
	fail := func(file string, err error) {
		if !isAbsent(err) {
			bad.Add(fmt.Errorf("read %s of port %s of RDMA device %s: %w", file, p.number, name, err))
		}
	}
	p.stateful, p.up, p.rate = false, false, 0
	value, err := s.reader.Value(dir, "ports/"+p.number+"/state")
	if err == nil {
		p.up, err = parseState(value)
	}
	if err != nil {
		fail("state", err)
		return
	}
	p.stateful = true
	if !p.up {
		return // its rate is that of the last link, or the lowest there is
	}
	if value, err = s.reader.Value(dir, "ports/"+p.number+"/rate"); err == nil {
		p.rate, err = parseRate(value)
	}
	if err != nil {
		fail("rate", err)
	}
}

// report returns the readings of all ports together, the states excepted. What one of the ports
// does not count is absent: the sum of the others would fall when it vanishes.
func (s *Source) report(d *device) []driver.Reading {
	readings := make([]driver.Reading, 0, len(s.files)+len(d.ports)+1)
	for n := range s.files {
		f := &s.files[n]
		at := d.slowAt
		if n < numFast {
			at = d.at
		}
		sum, ports := uint64(0), 0
		for _, p := range d.ports {
			if c := &p.counters[n]; c.known && !c.missing {
				sum += c.value
				ports++
			}
		}
		if ports == 0 || ports < len(d.ports) || n >= numTraffic && n < numFast && hasTraffic(d, n-numTraffic) {
			continue
		}
		readings = append(readings, driver.Reading{
			Quantity: f.quantity, Labels: f.labels, Value: float64(sum) * f.scale, At: at,
		})
	}
	rate := 0.0
	for _, p := range d.ports {
		if !p.stateful {
			continue
		}
		up := 0.0
		if p.up {
			up = 1
		}
		rate += p.rate
		readings = append(readings, driver.Reading{
			Quantity: driver.LinkUp, Labels: driver.Labels{"rdma", p.number}, Value: up, At: d.slowAt,
		})
	}
	if rate > 0 {
		readings = append(readings, driver.Reading{
			Quantity: driver.Capacity, Labels: driver.Labels{"speed"}, Value: rate, At: d.slowAt,
		})
	}
	return readings
}

// hasTraffic reports whether all ports have the first file of a traffic.
func hasTraffic(d *device, n int) bool {
	for _, p := range d.ports {
		if c := &p.counters[n]; !c.known || c.missing {
			return false
		}
	}
	return true
}

// identify returns which hardware is behind an RDMA device, given its folder: a function of PCI, a
// part of one (a virtual function, a scalable function on the auxiliary bus), or, for RDMA in
// software (rxe, siw), a network interface.
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
	function, bus := behind, sysfs.Bus(behind)
	if bus == "auxiliary" {
		function = filepath.Dir(behind)
	}
	if sysfs.Bus(function) != "pci" {
		return h
	}
	address := driver.NormalizePCI(filepath.Base(function))
	h.NUMANode = sysfs.NUMANode(function)
	if bus == "auxiliary" {
		h.Kind, h.Parent = driver.KindPartition, address
		return h
	}
	h.PCI = address
	if physical, ok := sysfs.Follow(function, "physfn"); ok {
		h.Kind, h.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
	return h
}

// interfaceOf returns the network interface of an RDMA device in software: that of its first GID.
func interfaceOf(reader *sysfs.Reader, folder string) string {
	value, err := reader.Value(sysfs.WorkingDir, filepath.Join(folder, "ports", "1", "gid_attrs", "ndevs", "0"))
	if err != nil {
		return ""
	}
	return string(value)
}
