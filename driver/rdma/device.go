package rdma

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

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
	files    []*counterFile          // existing ones, in the order of their paths
	known    map[string]*counterFile // all that ever existed, by path
	chosen   map[reading]int
	unknown  []string // names of counters that the tables do not have
	stateful bool     // its state could be read
	up       float64  // 1 or 0
	rate     float64  // bytes per second; 0: unknown, or the port is down
}

// counterFile is a file below a port's folder.
type counterFile struct {
	path string
	meaning
	counter
}

// maxCounters is the maximum number of files of a folder.
const maxCounters = 1024

// refresh lists the ports and their counters. Known counters continue.
func (s *Source) refresh(d *device, dir sysfs.Dir, name string, bad *sysfs.Problems) {
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
			p = &port{number: number, chosen: map[reading]int{}, known: map[string]*counterFile{}}
		}
		s.list(p, dir, name, bad)
		d.ports = append(d.ports, p)
	}
}

// list finds the counters of a port. A counter that reappears continues.
func (s *Source) list(p *port, dir sysfs.Dir, name string, bad *sysfs.Problems) {
	p.files, p.unknown = nil, nil
	for _, folder := range [...]string{"counters", "hw_counters"} {
		names, err := sysfs.Names(dir, "ports/"+p.number+"/"+folder, maxCounters)
		if err != nil {
			if !isAbsent(err) {
				bad.Add(fmt.Errorf("list %s of port %s of RDMA device %s: %w", folder, p.number, name, err))
			}
			continue
		}
		for _, file := range names {
			path := folder + "/" + file
			m, ok := s.tables[path]
			switch {
			case ok:
				if p.known[path] == nil {
					p.known[path] = &counterFile{path: path, meaning: m}
				}
				p.files = append(p.files, p.known[path])
			case !strings.Contains(settings, " "+file+" "):
				p.unknown = append(p.unknown, file)
			}
		}
	}
}

// read reads the counters of a port: those of traffic, or the others.
func (s *Source) read(dir sysfs.Dir, name string, p *port, traffic bool, bad *sysfs.Problems) {
	for _, f := range p.files {
		if f.isTraffic() != traffic {
			continue
		}
		if chosen, ok := p.chosen[f.reading()]; ok && f.rank > chosen {
			continue // other files have the same reading
		}
		value, err := s.reader.Value(dir, "ports/"+p.number+"/"+f.path)
		var raw uint64
		if err == nil {
			raw, err = parseCounter(value)
		}
		if err == nil {
			f.advance(raw)
			continue
		}
		f.missing, f.garbled = true, driver.ReasonOf(err) == driver.ReasonMalformed
		if !isAbsent(err) {
			bad.Add(fmt.Errorf("read %s of port %s of RDMA device %s: %w", f.path, p.number, name, err))
		}
	}
	p.choose()
}

// choose selects the rank of readings without one: the lowest rank whose files all have a value.
func (p *port) choose() {
	for rank := rankSpecification; rank <= rankProtocol; rank++ {
		for _, f := range p.files {
			if _, ok := p.chosen[f.reading()]; !ok && f.rank == rank && p.has(f.reading(), rank) {
				p.chosen[f.reading()] = rank
			}
		}
	}
}

// has reports whether there are files of a rank and all of them have a value.
func (p *port) has(r reading, rank int) bool {
	_, ok := p.value(r, rank)
	return ok
}

// value returns the sum of the files of a rank, [driver.Malformed] if one of them has no number.
func (p *port) value(r reading, rank int) (sum float64, ok bool) {
	for _, f := range p.files {
		if f.rank != rank || f.reading() != r {
			continue
		}
		if f.garbled {
			return driver.Malformed(), true
		}
		if !f.Known() || f.missing {
			return 0, false
		}
		sum, ok = sum+float64(f.Value)*f.scale, true
	}
	return sum, ok
}

// readState reads the state and the rate of a port.
func (s *Source) readState(dir sysfs.Dir, name string, p *port, bad *sysfs.Problems) {
	fail := func(file string, err error) {
		if !isAbsent(err) {
			bad.Add(fmt.Errorf("read %s of port %s of RDMA device %s: %w", file, p.number, name, err))
		}
	}
	p.stateful, p.up, p.rate = false, 0, 0
	value, err := s.reader.Value(dir, "ports/"+p.number+"/state")
	if err == nil {
		p.up, err = parseState(value)
	}
	if err != nil {
		fail("state", err)
	}
	if p.up, p.stateful = driver.NumberOf(p.up, err); p.up != 1 {
		return // its rate is that of the last link, or the lowest
	}
	if value, err = s.reader.Value(dir, "ports/"+p.number+"/rate"); err == nil {
		p.rate, err = parseRate(value)
	}
	if err != nil {
		fail("rate", err)
	}
	p.rate, _ = driver.NumberOf(p.rate, err)
}

// report returns the sums over all ports, without their states. A reading that one of the ports
// lacks is absent, since its sum would fall when a port disappears.
func (s *Source) report(d *device) []driver.Reading {
	var readings []driver.Reading
	if len(d.ports) > 0 {
		first := d.ports[0]
		readings = make([]driver.Reading, 0, len(first.files)+len(d.ports)+1)
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
				readings = append(readings, driver.Reading{Quantity: r.quantity, Labels: r.labels, Value: sum, At: at})
			}
		}
	}
	rate := 0.0
	for _, p := range d.ports {
		if !p.stateful {
			continue
		}
		rate += p.rate
		readings = append(readings, driver.Reading{
			Quantity: driver.LinkUp, Labels: driver.Labels{"rdma", p.number}, Value: p.up, At: d.slowAt,
		})
	}
	if rate != 0 {
		readings = append(readings, driver.Reading{
			Quantity: driver.Capacity, Labels: driver.Labels{"speed"}, Value: rate, At: d.slowAt,
		})
	}
	return readings
}

// sum returns the sum of a reading over all ports, false if one of them lacks it.
func (d *device) sum(r reading) (sum float64, ok bool) {
	for _, p := range d.ports {
		rank, known := p.chosen[r]
		value, ok := p.value(r, rank)
		if !known || !ok {
			return 0, false
		}
		sum += value
	}
	return sum, true
}

// identify returns the hardware of an RDMA device, given its folder: a PCI function, a part of one
// (a virtual function, a scalable function on the auxiliary bus), or, for RDMA in software (rxe,
// siw), a network interface.
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

// interfaceOf returns the network interface of the first GID of an RDMA device in software.
func interfaceOf(reader *sysfs.Reader, folder string) string {
	value, err := reader.Value(sysfs.WorkingDir, filepath.Join(folder, "ports", "1", "gid_attrs", "ndevs", "0"))
	if err != nil {
		return ""
	}
	return string(value)
}
