package intelgpu

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// group is a group of open counters that are read together.
type group interface {
	// read returns the counts, in the order of the opened events. They are valid until the next call.
	read() ([]uint64, error)
	close()
}

// opener opens counters of a PMU for the given events. pmu is the number of the PMU. Events that
// the hardware lacks are left out: there says which were opened.
type opener func(pmu uint32, cpu int, events []uint64) (g group, there []bool, err error)

// counters are the open counters of a GPU's engines; nil: none are open.
type counters struct {
	functions []*functionCounters // of the device itself, and of its virtual functions
	err       error               // why they could not be opened
}

// functionCounters are the counters of the engines of one function of a GPU.
type functionCounters struct {
	group   group
	engines []engineCounter
	before  []uint64
	at      time.Time          // of before
	busy    map[string]float64 // share of time by engine name; the busiest of several
}

// engineCounter is an engine, and the indexes of its counts in the group.
type engineCounter struct {
	name   string
	active int
	total  int // of all ticks; unused if active counts nanoseconds
}

const none = -1

// minWindow is the shortest time over which shares are computed.
const minWindow = 100 * time.Millisecond

// maxInstance is the highest engine number in a class.
const maxInstance = 8

// engineName returns the purpose of a class of engines, and the class's number in xe's events
// (include/uapi/drm/xe_drm.h).
func engineName(class string) (name string, number uint64, ok bool) {
	switch class {
	case "rcs":
		return "render", 0, true
	case "bcs":
		return "copy", 1, true
	case "vcs":
		return "video", 2, true
	case "vecs":
		return "video_enhance", 3, true
	case "ccs":
		return "compute", 4, true
	}
	return "", 0, false
}

// openCounters opens the counters of the GPU, and opens them again if its virtual functions have
// changed.
func (p *pass) openCounters(tiles []string) {
	d := p.device
	if c := d.counters; c != nil && c.err == nil && len(c.functions) == 1+len(d.functions) {
		return
	}
	d.counters.close()
	d.counters = nil
	folder := filepath.Join(p.source.Sysfs, "bus", "event_source", "devices", d.driver)
	address := folder + "_" + strings.ReplaceAll(d.hardware.PCI, ":", "_")
	unit, err := openUnit(&p.source.reader, address)
	if sysfs.IsGone(err) && d.driver == i915 { // an integrated GPU's
		unit, err = openUnit(&p.source.reader, folder)
	}
	if err != nil {
		if !sysfs.IsAbsent(err) {
			d.counters = &counters{err: fmt.Errorf("read the PMU of Intel device %s: %w", d.hardware.PCI, err)}
		}
		return
	}
	d.counters = &counters{}
	for function := range 1 + len(d.functions) {
		f, err := p.openFunction(unit, uint64(function), tiles)
		if err != nil {
			d.counters.close()
			d.counters = &counters{err: fmt.Errorf("open the PMU of Intel device %s: %w", d.hardware.PCI, err)}
			return
		}
		d.counters.functions = append(d.counters.functions, f)
	}
}

func (p *pass) openFunction(unit *perfUnit, function uint64, tiles []string) (*functionCounters, error) {
	var wanted []engineCounter
	var events []uint64
	want := func(name string, configs ...uint64) {
		e := engineCounter{name, len(events), none}
		if len(configs) > 1 {
			e.total = e.active + 1
		}
		wanted, events = append(wanted, e), append(events, configs...)
	}
	if p.device.driver == i915 {
		if function == 0 {
			unit.nanosecondEvents(want)
		}
	} else if err := unit.tickEvents(function, p.engineClasses(tiles), want); err != nil {
		return nil, err
	}
	f := &functionCounters{}
	if len(events) == 0 {
		return f, nil
	}
	group, there, err := p.source.open(unit.number, unit.cpu, events)
	if err != nil {
		return nil, err
	}
	f.group = group
	position := make([]int, len(events)) // index of the event's count among the opened ones
	n := 0
	for i := range events {
		position[i] = n
		if there[i] {
			n++
		}
	}
	for _, e := range wanted {
		if !there[e.active] || e.total != none && !there[e.total] {
			continue
		}
		e.active = position[e.active]
		if e.total != none {
			e.total = position[e.total]
		}
		f.engines = append(f.engines, e)
	}
	return f, nil
}

// engineClass is a class of engines of a GT.
type engineClass struct {
	name  string
	terms map[string]uint64 // terms of xe's events
}

// engineClasses lists the classes of engines of all GTs of an xe GPU.
func (p *pass) engineClasses(tiles []string) []engineClass {
	var classes []engineClass
	for _, tile := range tiles {
		for _, name := range p.names(tile) {
			gt, ok := number(name, "gt")
			if !ok {
				continue
			}
			for _, class := range p.names(tile + "/" + name + "/engines") {
				if engine, n, ok := engineName(class); ok {
					classes = append(classes, engineClass{engine, map[string]uint64{"gt": uint64(gt), "engine_class": n}})
				}
			}
		}
	}
	return classes
}

// read reads all counters, and returns the first error.
func (c *counters) read(at time.Time) error {
	if c == nil {
		return nil
	}
	err := c.err
	for _, f := range c.functions {
		if failure := f.read(at); err == nil {
			err = failure
		}
	}
	return err
}

func (f *functionCounters) read(at time.Time) error {
	if f.group == nil {
		return nil
	}
	counts, err := f.group.read()
	if err != nil {
		f.before, f.busy = nil, nil
		return fmt.Errorf("read the counters of engines: %w", err)
	}
	window := at.Sub(f.at)
	if f.before != nil && window >= 0 && window < minWindow {
		return nil
	}
	f.busy = nil
	if f.before != nil && window > 0 {
		f.busy = f.shares(counts, window)
	}
	f.before, f.at = append(f.before[:0], counts...), at
	return nil
}

// shares returns the busy shares of the engines since the previous counts.
func (f *functionCounters) shares(counts []uint64, window time.Duration) map[string]float64 {
	busy := map[string]float64{}
	for _, e := range f.engines {
		if counts[e.active] < f.before[e.active] {
			continue
		}
		active, total := counts[e.active]-f.before[e.active], float64(window)
		if e.total != none {
			if counts[e.total] <= f.before[e.total] {
				continue
			}
			total = float64(counts[e.total] - f.before[e.total])
		}
		busy[e.name] = max(busy[e.name], min(1, float64(active)/total))
	}
	return busy
}

// has reports whether the counters include an engine of the device itself.
func (c *counters) has(engine string) bool {
	if c == nil || len(c.functions) == 0 {
		return false
	}
	_, ok := c.functions[0].busy[engine]
	return ok
}

// readings returns the readings of a function: 0 is the device itself. The utilization of a virtual
// function is that of its busiest engine.
func (c *counters) readings(function int) []driver.Reading {
	if c == nil || function >= len(c.functions) {
		return nil
	}
	f := c.functions[function]
	var readings []driver.Reading
	highest := 0.0
	for _, engine := range []string{"render", "compute", "copy", "video", "video_enhance"} {
		if share, ok := f.busy[engine]; ok {
			highest = max(highest, share)
			readings = append(readings, driver.Reading{
				Quantity: driver.EngineUtilization, Labels: driver.Labels{engine}, Value: share, At: f.at,
			})
		}
	}
	if function > 0 && len(readings) > 0 {
		readings = append(readings, driver.Reading{Quantity: driver.Utilization, Value: highest, At: f.at})
	}
	return readings
}

func (c *counters) close() {
	if c == nil {
		return
	}
	for _, f := range c.functions {
		if f.group != nil {
			f.group.close()
		}
	}
	c.functions = nil
}
