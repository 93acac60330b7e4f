package intelgpu

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// perfUnit is a performance monitoring unit, as <sysfs>/bus/event_source/devices/NAME describes it
// (Documentation/ABI/testing/sysfs-bus-event_source-devices-*).
type perfUnit struct {
	number uint32
	cpu    int
	events map[string][]term
	format map[string]bits
}

// openUnit reads the description of a unit.
func openUnit(reader *sysfs.Reader, folder string) (*perfUnit, error) {
	dir, err := sysfs.OpenDir(sysfs.WorkingDir, folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	number, err := reader.Number(dir, "type")
	if err != nil {
		return nil, fmt.Errorf("type: %w", err)
	}
	u := &perfUnit{number: uint32(number), events: map[string][]term{}, format: map[string]bits{}}
	if value, err := reader.Value(dir, "cpumask"); err == nil {
		first, _, _ := strings.Cut(string(value), ",")
		first, _, _ = strings.Cut(first, "-")
		if u.cpu, err = strconv.Atoi(first); err != nil {
			return nil, fmt.Errorf("cpumask: %w", err)
		}
	}
	err = each(reader, dir, "events", func(name string, value []byte) (err error) {
		if !strings.Contains(name, ".") { // NAME.unit
			u.events[name], err = parseTerms(value)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return u, each(reader, dir, "format", func(name string, value []byte) (err error) {
		u.format[name], err = parseBits(value)
		return err
	})
}

// each calls f for each file of a folder, and stops at its first error.
func each(reader *sysfs.Reader, dir sysfs.Dir, folder string, f func(name string, value []byte) error) error {
	names, err := sysfs.Names(dir, folder, maxEntries)
	if err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	for _, name := range names {
		value, err := reader.Value(dir, folder+"/"+name)
		if err == nil {
			err = f(name, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", folder+"/"+name, err)
		}
	}
	return nil
}

// tickEvents selects the events of xe: for each engine of each GT, the ticks in which it was
// active, and all ticks. sysfs does not have the number of engines of a class.
func (u *perfUnit) tickEvents(
	function uint64, classes []engineClass, want func(name string, configs ...uint64),
) error {
	const activeTicks, totalTicks = "engine-active-ticks", "engine-total-ticks"
	_, hasFunctions := u.format["function"]
	if u.events[activeTicks] == nil || u.events[totalTicks] == nil || function > 0 && !hasFunctions {
		return nil // Linux before 6.15, or old firmware
	}
	for _, class := range classes {
		for instance := range uint64(maxInstance + 1) {
			terms := maps.Clone(class.terms)
			terms["engine_instance"] = instance
			if function > 0 {
				terms["function"] = function
			}
			active, err := u.config(activeTicks, terms)
			if err != nil {
				return err
			}
			total, err := u.config(totalTicks, terms)
			if err != nil {
				return err
			}
			want(class.name, active, total)
		}
	}
	return nil
}

// nanosecondEvents selects the events of i915, which count nanoseconds: rcs0-busy, and
// rcs0-busy-gt1 if there are several GTs.
func (u *perfUnit) nanosecondEvents(want func(name string, configs ...uint64)) {
	pattern := regexp.MustCompile(`^([a-z]+)\d+-busy(-gt\d+)?$`)
	var names []string
	for name := range u.events {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		match := pattern.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		engine, _, ok := engineName(match[1])
		if !ok {
			continue
		}
		if config, err := u.config(name, nil); err == nil {
			want(engine, config)
		}
	}
}

// config returns the configuration of an event with values of additional terms.
func (u *perfUnit) config(event string, more map[string]uint64) (uint64, error) {
	config := uint64(0)
	set := func(name string, value uint64) error {
		if name == "config" {
			config |= value
			return nil
		}
		place, ok := u.format[name]
		if !ok || value > place.mask() {
			return fmt.Errorf("event %s: %w", event, errTerm)
		}
		config |= value << place.shift
		return nil
	}
	for _, t := range u.events[event] {
		if err := set(t.name, t.value); err != nil {
			return 0, err
		}
	}
	for name, value := range more {
		if err := set(name, value); err != nil {
			return 0, err
		}
	}
	return config, nil
}

// term is a part of an event's configuration.
type term struct {
	name  string
	value uint64
}

// bits is the position of a term's value in the configuration.
type bits struct{ shift, width uint }

func (b bits) mask() uint64 { return ^uint64(0) >> (64 - b.width) }

var (
	errTerm   = errors.New("term without a place in the configuration")
	errFormat = errors.New("not a format of config")
)

// parseTerms returns the terms of an event: "event=0x02,gt=1".
func parseTerms(value []byte) ([]term, error) {
	var terms []term
	for field := range strings.SplitSeq(string(value), ",") {
		name, number, isNumber := strings.Cut(field, "=")
		n := uint64(1) // a flag
		if isNumber {
			var err error
			if n, err = strconv.ParseUint(number, 0, 64); err != nil {
				return nil, err
			}
		}
		terms = append(terms, term{name, n})
	}
	return terms, nil
}

// parseBits returns the bits of a format: "config:12-19", or "config:3".
func parseBits(value []byte) (bits, error) {
	place, ok := strings.CutPrefix(string(value), "config:")
	if !ok {
		return bits{}, errFormat
	}
	low, high, isRange := strings.Cut(place, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 6)
	if err != nil {
		return bits{}, err
	}
	last, err := strconv.ParseUint(high, 10, 6)
	if err != nil {
		return bits{}, err
	}
	if last < first {
		return bits{}, errFormat
	}
	return bits{uint(first), uint(last - first + 1)}, nil
}
