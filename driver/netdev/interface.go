package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// netInterface is the state of an interface between samples.
type netInterface struct {
	index    uint64 // ifindex; 0: could not be read so far
	counters [numCounters]counter
	at       time.Time // when the counters were read
	link     link
	facts    facts
	due      bool // to be read in this sample

	// namespace is the network namespace of the last read; 0: that of the host.
	namespace uint64
	seen      time.Time // the last sample that had it
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
	i := s.interfaceOf(name, index)
	i.move(0)
	i.at = s.now()
	a := sysfs.Attributes{
		Dir: folder, Of: "network interface " + name, Now: func() time.Time { return i.at }, Reader: &s.file, Problems: bad,
	}
	s.refresh(i, name, &a)
	if err != nil { // it exists, but the owner of its counters is unknown
		a.Fail("ifindex", err)
		i.lose()
		return i
	}
	if i.facts.physical {
		i.readLink(&a)
	}
	for n, f := range counterFiles() {
		raw, err := s.file.Number(folder, f.path)
		i.counters[n].take(raw, err, i.at)
		a.Fail(f.path, err)
	}
	return i
}

// interfaceOf returns the state of the interface, or a new state if the ifindex has changed. An
// index of 0 is unknown.
func (s *Source) interfaceOf(name string, index uint64) *netInterface {
	i := s.known[name]
	switch {
	case i == nil:
		i = &netInterface{index: index}
		s.known[name] = i
	case i.index == 0:
		i.index = index
	case index != 0 && i.index != index:
		*i = netInterface{index: index}
		for n := range i.counters {
			i.counters[n].fromZero = true
		}
		i.link.downs.fromZero = true
	}
	return i
}

// refresh reads the interface's facts if they are due.
func (s *Source) refresh(i *netInterface, name string, a *sysfs.Attributes) {
	if age := i.at.Sub(i.facts.at); age >= factsEvery || age < 0 || i.facts.at.IsZero() {
		i.facts = readFacts(a, filepath.Join(s.root, name), name)
	}
}

// lose records that no counter could be read.
func (i *netInterface) lose() {
	for n := range i.counters {
		i.counters[n].lose()
	}
	i.link.lose()
}

// report appends the interface's last readings.
func (i *netInterface) report(readings []driver.Reading) []driver.Reading {
	for n, f := range counterFiles() {
		readings = i.counters[n].report(readings, f.quantity, f.labels, i.at)
	}
	if i.facts.speed != 0 {
		readings = append(readings, driver.Reading{
			Quantity: driver.Capacity, Labels: driver.Labels{"speed"}, Value: i.facts.speed, At: i.facts.at,
		})
	}
	return append(i.link.report(readings, i), i.facts.temperatures...)
}
