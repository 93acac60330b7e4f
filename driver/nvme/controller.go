package nvme

import (
	"errors"
	"fmt"
	"slices"
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
	if dir, err := sysfs.OpenDir(sysfs.WorkingDir, folder); err == nil {
		defer dir.Close()
		facts := sysfs.Attributes{Dir: dir, Reader: &sysfs.Reader{}, Problems: &sysfs.Problems{}}
		c.hardware.Serial, c.hardware.Model = facts.Text("serial"), facts.Text("model")
	}
	if function, ok := sysfs.Follow(folder, "device"); ok {
		sysfs.Identify(&c.hardware, function)
	}
	return c
}

// measure reads a controller. It returns false if the controller no longer exists.
func (s *Source) measure(c *controller, whole bool, bad *sysfs.Problems) bool {
	dir, err := sysfs.OpenDir(sysfs.WorkingDir, c.folder)
	if err != nil {
		if !sysfs.IsGone(err) {
			bad.Add(fmt.Errorf("open NVMe controller %s: %w", c.name, err))
		}
		return false
	}
	defer dir.Close()
	a := sysfs.Attributes{Dir: dir, Of: "NVMe controller " + c.name, Now: s.now, Reader: &s.reader, Problems: bad}
	if whole || c.namespaces == nil {
		entries, err := sysfs.Names(dir, ".")
		a.Fail("the namespaces", err)
		if err == nil {
			s.setNamespaces(c, entries)
		}
	}
	c.at = s.now()
	var buffer [maxStat]byte
	for _, n := range c.namespaces {
		content, err := sysfs.ReadInto(dir, n.name+"/stat", buffer[:])
		if err == nil {
			n.stat, err = parseStat(string(content))
		}
		a.Fail(n.name+"/stat", err)
		n.isKnown, n.garbled = err == nil, driver.ReasonOf(err) == driver.ReasonMalformed
		if n.isKnown {
			n.busy.Advance(n.stat.busy, c.at)
		} else {
			n.busy.Stop()
		}
	}
	if whole {
		c.slowAt = s.now()
		c.measureRest(&a)
		c.rest = a.Readings
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

// measureRest reads the temperatures; the size of the namespaces, in sectors of 512 bytes for any
// block size (Documentation/ABI/stable/sysfs-block: size); their allocated blocks (nuse in
// drivers/nvme/host/sysfs.c, since Linux 6.8); and the state (nvme_sysfs_show_state): live is
// healthy, dead is unhealthy, and other states, such as resetting, are unknown.
func (c *controller) measureRest(a *sysfs.Attributes) {
	a.Sensors(driver.Temperature, sysfs.ClassTemperatures, c.folder, sysfs.AsLabeled)
	if size, ok := c.sum(a, "size", func(string) (float64, bool) { return sector, true }); ok {
		a.Add(driver.Capacity, size, "storage")
	}
	block := func(namespace string) (float64, bool) { return a.Value(namespace + "/queue/logical_block_size") }
	if used, ok := c.sum(a, "nuse", block); ok {
		a.Add(driver.StorageUsed, used)
	}
	switch a.Text("state") {
	case "":
	case "live":
		a.Readings = append(a.Readings, driver.HealthGood.Reading(c.slowAt))
	case "dead":
		a.Readings = append(a.Readings, driver.HealthBad.Reading(c.slowAt))
	default:
		a.Readings = append(a.Readings, driver.HealthUnknown.Reading(c.slowAt))
	}
}

// sum returns the sum of the numbers in a file of all namespaces, in bytes. It returns false if one
// of them lacks it, or its unit.
func (c *controller) sum(
	a *sysfs.Attributes, file string, unit func(namespace string) (bytes float64, ok bool),
) (total float64, ok bool) {
	for _, n := range c.namespaces {
		number, isThere := a.Value(n.name + "/" + file)
		bytes, known := unit(n.name)
		if !isThere || !known {
			return 0, false
		}
		total, ok = total+number*bytes, true
	}
	return total, ok
}

// report returns the sums over all namespaces. A reading that one of them lacks is absent, since
// its sum would fall when a namespace disappears.
func (c *controller) report() []driver.Reading {
	out := sysfs.Attributes{Readings: slices.Clone(c.rest)}
	if len(c.namespaces) == 0 {
		return out.Readings
	}
	var sum stat
	highest, at, isKnown := 0.0, time.Time{}, true
	for _, n := range c.namespaces {
		if n.garbled {
			return c.reportGarbled(out)
		}
		if !n.isKnown {
			return out.Readings
		}
		sum.read, sum.written, sum.inFlight = sum.read+n.stat.read, sum.written+n.stat.written, sum.inFlight+n.stat.inFlight
		perSecond, when, ok := n.busy.Rate()
		highest, at, isKnown = max(highest, perSecond/milliseconds), when, isKnown && ok
	}
	out.AddAt(c.at, driver.IOBytes, float64(sum.written)*sector, "storage", "receive")
	out.AddAt(c.at, driver.IOBytes, float64(sum.read)*sector, "storage", "transmit")
	out.AddAt(c.at, driver.RequestsInFlight, float64(sum.inFlight))
	if isKnown {
		out.AddAt(at, driver.Utilization, min(1, highest))
	}
	if len(c.namespaces) == 1 { // with several, busy times overlap
		out.AddAt(c.at, driver.ActiveSeconds, float64(c.namespaces[0].stat.busy)/milliseconds)
	}
	return out.Readings
}

// reportGarbled adds the readings of which a namespace has no numbers.
func (c *controller) reportGarbled(out sysfs.Attributes) []driver.Reading {
	none := driver.Malformed()
	out.AddAt(c.at, driver.IOBytes, none, "storage", "receive")
	out.AddAt(c.at, driver.IOBytes, none, "storage", "transmit")
	out.AddAt(c.at, driver.RequestsInFlight, none)
	out.AddAt(c.at, driver.Utilization, none)
	out.AddAt(c.at, driver.ActiveSeconds, none)
	return out.Readings
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
