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
