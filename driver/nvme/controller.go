package nvme

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// controller is the state of a controller between samples.
type controller struct {
	name, folder string
	hardware     driver.Hardware // without a PCI address if it is not a PCI device
	namespaces   []*namespace
	at           time.Time        // when the namespaces were read
	rest         []driver.Reading // temperatures, size, use and state
	slowAt       time.Time        // when everything was read; zero: never
}

// namespace is a block device of a controller, or a path to a block device with several paths.
type namespace struct {
	name    string
	isKnown bool // the last attempt to read it succeeded
	garbled bool // the last attempt found something else than its statistics
	stat    stat
	busy    sysfs.Meter
}

func newController(folder, name, address string) *controller {
	c := &controller{name: name, folder: folder, hardware: driver.Hardware{PCI: address}}
	if address == "" {
		return c
	}
	var reader sysfs.Reader
	text := func(file string) string {
		value, err := reader.Value(sysfs.WorkingDir, filepath.Join(folder, file))
		if err != nil {
			return ""
		}
		return strings.ToValidUTF8(string(value), "")
	}
	c.hardware.Serial, c.hardware.Model = text("serial"), text("model")
	function, _ := sysfs.Follow(folder, "device")
	c.hardware.NUMANode = sysfs.NUMANode(function)
	if physical, ok := sysfs.Follow(function, "physfn"); ok {
		c.hardware.Kind, c.hardware.Parent = driver.KindPartition, driver.NormalizePCI(filepath.Base(physical))
	}
	return c
}

// measure reads a controller. It returns false if the controller no longer exists.
func (s *Source) measure(c *controller, whole bool, bad *sysfs.Problems) bool {
	if whole || c.namespaces == nil {
		entries, err := sysfs.Names(sysfs.WorkingDir, c.folder, maxEntries)
		if sysfs.IsGone(err) {
			return false
		}
		if err != nil {
			bad.Add(fmt.Errorf("list the namespaces of NVMe controller %s: %w", c.name, err))
		} else {
			s.setNamespaces(c, entries)
		}
	}
	c.at = s.now()
	for _, n := range c.namespaces {
		content, err := sysfs.ReadFile(filepath.Join(c.folder, n.name, "stat"), maxStat)
		if err == nil {
			n.stat, err = parseStat(string(content))
		}
		n.isKnown, n.garbled = err == nil, driver.ReasonOf(err) == driver.ReasonMalformed
		if n.isKnown {
			n.busy.Advance(n.stat.busy, c.at)
			continue
		}
		n.busy.Stop()
		if !sysfs.IsAbsent(err) {
			bad.Add(fmt.Errorf("read statistics of NVMe namespace %s: %w", n.name, err))
		}
	}
	if whole {
		s.measureTemperatures(c, bad)
		s.measureSize(c, bad)
		s.measureState(c, bad)
	}
	return true
}

// setNamespaces sets the namespaces. It keeps the state of known ones.
func (s *Source) setNamespaces(c *controller, entries []string) {
	known := map[string]*namespace{}
	for _, n := range c.namespaces {
		known[n.name] = n
	}
	c.namespaces = []*namespace{}
	for _, entry := range entries {
		if !s.namespace.MatchString(entry) {
			continue
		}
		n := known[entry]
		if n == nil {
			n = &namespace{name: entry}
		}
		c.namespaces = append(c.namespaces, n)
	}
}

// measureTemperatures reads the sensors, which are below the controller, or in kernels before 5.11
// below the PCI device.
func (s *Source) measureTemperatures(c *controller, bad *sysfs.Problems) {
	c.rest, c.slowAt = nil, s.now()
	sensors, err := sysfs.ClassTemperatures(c.folder)
	if err == nil && len(sensors) == 0 {
		sensors, err = sysfs.Temperatures(filepath.Join(c.folder, "device"))
	}
	if err != nil && !sysfs.IsAbsent(err) {
		bad.Add(fmt.Errorf("list the temperatures of NVMe controller %s: %w", c.name, err))
	}
	for _, sensor := range sensors {
		celsius, err := sensor.Read(&s.reader)
		if value, ok := driver.NumberOf(celsius, err); ok {
			c.rest = append(c.rest, driver.Reading{
				Quantity: driver.Temperature, Labels: driver.Labels{sensor.Label}, Value: value, At: c.slowAt,
			})
		}
		if err != nil && !sysfs.IsAbsent(err) {
			bad.Add(fmt.Errorf("read temperature %s of NVMe controller %s: %w", sensor.Label, c.name, err))
		}
	}
}

// measureSize reads the size of the namespaces, in sectors of 512 bytes for any block size
// (Documentation/ABI/stable/sysfs-block: size), and their allocated blocks (nuse in
// drivers/nvme/host/sysfs.c, since Linux 6.8). A sum that lacks a namespace is absent.
func (s *Source) measureSize(c *controller, bad *sysfs.Problems) {
	sum := func(unit func(n *namespace) (float64, bool), file string) (total float64, ok bool) {
		for _, n := range c.namespaces {
			number, err := s.reader.Number(sysfs.WorkingDir, filepath.Join(c.folder, n.name, file))
			if err != nil && !sysfs.IsAbsent(err) {
				bad.Add(fmt.Errorf("read %s of NVMe namespace %s: %w", file, n.name, err))
			}
			value, isThere := driver.NumberOf(number, err)
			bytes, known := unit(n)
			if !isThere || !known {
				return 0, false
			}
			total, ok = total+value*bytes, true
		}
		return total, ok
	}
	size, ok := sum(func(*namespace) (float64, bool) { return sector, true }, "size")
	if ok {
		c.rest = append(c.rest, driver.Reading{
			Quantity: driver.Capacity, Labels: driver.Labels{"storage"}, Value: size, At: c.slowAt,
		})
	}
	used, ok := sum(func(n *namespace) (float64, bool) {
		block, err := s.reader.Number(sysfs.WorkingDir, filepath.Join(c.folder, n.name, "queue", "logical_block_size"))
		return driver.NumberOf(block, err)
	}, "nuse")
	if ok {
		c.rest = append(c.rest, driver.Reading{Quantity: driver.StorageUsed, Value: used, At: c.slowAt})
	}
}

// measureState reads the state of the controller (nvme_sysfs_show_state in
// drivers/nvme/host/sysfs.c): live is healthy, dead is unhealthy, and other states, such as
// resetting, are unknown.
func (s *Source) measureState(c *controller, bad *sysfs.Problems) {
	value, err := s.reader.Value(sysfs.WorkingDir, filepath.Join(c.folder, "state"))
	if err != nil {
		if !sysfs.IsAbsent(err) {
			bad.Add(fmt.Errorf("read the state of NVMe controller %s: %w", c.name, err))
		}
		return
	}
	health := driver.HealthUnknown
	switch string(value) {
	case "live":
		health = driver.HealthGood
	case "dead":
		health = driver.HealthBad
	}
	c.rest = append(c.rest, health.Reading(c.slowAt))
}

// report returns the sums over all namespaces. A reading that one of them lacks is absent, since
// its sum would fall when a namespace disappears.
func (c *controller) report() []driver.Reading {
	readings := make([]driver.Reading, 0, 5+len(c.rest))
	readings = append(readings, c.rest...)
	if len(c.namespaces) == 0 {
		return readings
	}
	var sum stat
	highest, at, isKnown := 0.0, time.Time{}, true
	for _, n := range c.namespaces {
		if n.garbled {
			return c.reportGarbled(readings)
		}
		if !n.isKnown {
			return readings
		}
		sum.read, sum.written, sum.inFlight = sum.read+n.stat.read, sum.written+n.stat.written, sum.inFlight+n.stat.inFlight
		perSecond, when, ok := n.busy.Rate()
		highest, at, isKnown = max(highest, perSecond/milliseconds), when, isKnown && ok
	}
	add := func(q driver.Quantity, value float64, at time.Time, labels ...string) {
		r := driver.Reading{Quantity: q, Value: value, At: at}
		copy(r.Labels[:], labels)
		readings = append(readings, r)
	}
	add(driver.IOBytes, float64(sum.written)*sector, c.at, "storage", "receive")
	add(driver.IOBytes, float64(sum.read)*sector, c.at, "storage", "transmit")
	add(driver.RequestsInFlight, float64(sum.inFlight), c.at)
	if isKnown {
		add(driver.Utilization, min(1, highest), at)
	}
	if len(c.namespaces) == 1 { // with several, busy times overlap
		add(driver.ActiveSeconds, float64(c.namespaces[0].stat.busy)/milliseconds, c.at)
	}
	return readings
}

// reportGarbled appends the readings of which a namespace has no numbers.
func (c *controller) reportGarbled(readings []driver.Reading) []driver.Reading {
	for _, r := range [...]driver.Reading{
		{Quantity: driver.IOBytes, Labels: driver.Labels{"storage", "receive"}},
		{Quantity: driver.IOBytes, Labels: driver.Labels{"storage", "transmit"}},
		{Quantity: driver.RequestsInFlight},
		{Quantity: driver.Utilization},
		{Quantity: driver.ActiveSeconds},
	} {
		r.Value, r.At = driver.Malformed(), c.at
		readings = append(readings, r)
	}
	return readings
}

// stat has the kernel's counters of a block device.
type stat struct {
	read, written uint64 // sectors
	inFlight      uint64 // requests
	busy          uint64 // milliseconds
}

const (
	maxStat      = 1 << 10 // bytes of the file, which has 17 numbers
	sector       = 512     // bytes, whatever the device's own size is
	milliseconds = 1000    // in a second
)

var errStat = driver.WithReason(driver.ReasonMalformed, errors.New("not the statistics of a block device"))

// parseStat returns the statistics of a block device by its file stat: numbers in one line, 11 or
// more (Documentation/block/stat.rst).
func parseStat(line string) (stat, error) {
	const readSectors, writtenSectors, inFlight, ioTicks, least = 2, 6, 8, 9, 11
	fields := strings.Fields(line)
	if len(fields) < least {
		return stat{}, errStat
	}
	var s stat
	for at, value := range map[int]*uint64{
		readSectors: &s.read, writtenSectors: &s.written, inFlight: &s.inFlight, ioTicks: &s.busy,
	} {
		n, err := strconv.ParseUint(fields[at], 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("%w: %w", errStat, err)
		}
		*value = n
	}
	return s, nil
}
