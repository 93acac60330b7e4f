package drm

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// Bounds of the data of one client.
const (
	maxEngines = 64
	maxRegions = 64
	maxName    = 64      // bytes of a name
	maxNames   = 1 << 10 // names that are remembered
)

// client is the content of a file /proc/<pid>/fdinfo/<fd> of a DRM client
// (Documentation/gpu/drm-usage-stats.rst of Linux).
type client struct {
	driver string // drm-driver: the name that the kernel's driver registered, such as amdgpu
	pci    string // drm-pdev: address; "" for what is on no PCI bus
	id     uint64 // drm-client-id, unique within the device

	engines []engine
	regions []region
	garbled [numKinds]int // the numbers of values that could not be used
}

// The kinds of values.
const (
	ofEngines = iota
	ofMemory
	numKinds
)

// engine is the use of one kind of engine. Fields without their bit in has are 0.
type engine struct {
	name     string
	has      uint8  // bits of hasTime, hasCycles …
	time     uint64 // drm-engine-: nanoseconds in which it was busy for this client
	cycles   uint64 // drm-cycles-: the same in cycles
	total    uint64 // drm-total-cycles-: a clock in the same unit
	highest  uint64 // drm-maxfreq-: Hz
	capacity uint64 // drm-engine-capacity-: how many engines of the kind there are
}

const (
	hasTime uint8 = 1 << iota
	hasCycles
	hasTotal
	hasHighest
	hasCapacity
)

// region is a client's memory of one kind, in bytes.
type region struct {
	name     string
	has      uint8
	resident uint64 // drm-resident-, or drm-memory- of older kernels: what is there now
	total    uint64 // drm-total-: all that was created
}

const (
	hasResident uint8 = 1 << iota
	hasAll
)

// bytes returns the resident memory, or the total if the driver does not report resident memory.
func (r *region) bytes() uint64 {
	if r.has&hasResident != 0 {
		return r.resident
	}
	return r.total
}

// parser parses files of clients into one client, which the next call replaces. It keeps names, so
// that parsing does not allocate once all names are known.
type parser struct {
	client
	names map[string]string
}

// parse parses a file of fdinfo. It returns false if the file is not that of a DRM client, or if
// the driver gives clients no ID (before Linux 6.5), so that a client might be counted twice.
func (p *parser) parse(text []byte) (*client, bool) {
	p.client = client{engines: p.engines[:0], regions: p.regions[:0]}
	identified := false
	for line := range bytes.Lines(text) {
		key, rest, found := bytes.Cut(line, []byte(":"))
		key, drm := bytes.CutPrefix(key, []byte("drm-"))
		if !found || !drm {
			continue
		}
		value := bytes.TrimSpace(rest)
		switch string(key) {
		case "driver":
			setOnce(&p.driver, p.name(value))
		case "pdev":
			setOnce(&p.pci, p.name(value))
		case "client-id":
			id, err := strconv.ParseUint(string(value), 10, 64)
			if err == nil && !identified {
				p.id, identified = id, true
			}
		default:
			if kind, ok := p.measure(key, value); !ok {
				p.garbled[kind]++
			}
		}
	}
	for i := range p.engines {
		if e := &p.engines[i]; e.has&hasCapacity == 0 {
			e.capacity = 1
		}
	}
	return &p.client, identified && p.driver != ""
}

func setOnce(to *string, value string) {
	if *to == "" {
		*to = value
	}
}

// name returns the text as a string, "" if it is too long.
func (p *parser) name(text []byte) string {
	if name, ok := p.names[string(text)]; ok {
		return name
	}
	if len(text) > maxName {
		return ""
	}
	if p.names == nil || len(p.names) >= maxNames {
		p.names = map[string]string{}
	}
	name := string(text)
	p.names[name] = name
	return name
}

// unit is the optional unit of a value and larger units, each a constant multiple of the one
// before.
type unit struct {
	name   string
	larger [2]string
	times  uint64
}

// measure stores the value of a key, given without "drm-". It returns false for a malformed value,
// with its kind. It ignores other keys. Times of engines with the same name are summed.
func (p *parser) measure(key, value []byte) (kind int, ok bool) {
	for _, k := range [...]struct {
		prefix string
		unit   unit
		bit    uint8
		field  func(*engine) *uint64
	}{
		{"engine-capacity-", unit{}, hasCapacity, func(e *engine) *uint64 { return &e.capacity }},
		{"engine-", unit{name: "ns"}, hasTime, func(e *engine) *uint64 { return &e.time }},
		{"cycles-", unit{}, hasCycles, func(e *engine) *uint64 { return &e.cycles }},
		{"total-cycles-", unit{}, hasTotal, func(e *engine) *uint64 { return &e.total }},
		{
			"maxfreq-",
			unit{"Hz", [2]string{"KHz", "MHz"}, 1000},
			hasHighest,
			func(e *engine) *uint64 { return &e.highest },
		},
	} {
		name, ok := bytes.CutPrefix(key, []byte(k.prefix))
		if !ok {
			continue
		}
		n, ok := k.unit.parse(value)
		if !ok || n == 0 && k.bit&(hasCapacity|hasHighest) != 0 {
			return ofEngines, false
		}
		e := p.engine(p.name(name))
		if e == nil {
			return ofEngines, false
		}
		field := k.field(e)
		if k.bit == hasTime && n <= math.MaxUint64-*field {
			n += *field
		}
		*field, e.has = n, e.has|k.bit
		return ofEngines, true
	}
	return ofMemory, p.measureMemory(key, value)
}

// measureMemory is measure for memory. Resident memory has one of two keys.
func (p *parser) measureMemory(key, value []byte) bool {
	for _, k := range [...]struct {
		prefix string
		bit    uint8
		field  func(*region) *uint64
	}{
		{"resident-", hasResident, func(r *region) *uint64 { return &r.resident }},
		{"memory-", hasResident, func(r *region) *uint64 { return &r.resident }},
		{"total-", hasAll, func(r *region) *uint64 { return &r.total }},
	} {
		name, ok := bytes.CutPrefix(key, []byte(k.prefix))
		if !ok {
			continue
		}
		n, ok := unit{"B", [2]string{"KiB", "MiB"}, 1024}.parse(value)
		if !ok {
			return false
		}
		r := p.region(p.name(name))
		if r == nil {
			return false
		}
		*k.field(r), r.has = n, r.has|k.bit
		return true
	}
	return true
}

// engine returns the engine with a name; nil if there are too many or the name is empty.
func (p *parser) engine(name string) *engine {
	i := slices.IndexFunc(p.engines, func(e engine) bool { return e.name == name })
	if i < 0 {
		if name == "" || len(p.engines) == maxEngines {
			return nil
		}
		i = len(p.engines)
		p.engines = append(p.engines, engine{name: name})
	}
	return &p.engines[i]
}

// region returns the region with a name; nil if there are too many or the name is empty.
func (p *parser) region(name string) *region {
	i := slices.IndexFunc(p.regions, func(r region) bool { return r.name == name })
	if i < 0 {
		if name == "" || len(p.regions) == maxRegions {
			return nil
		}
		i = len(p.regions)
		p.regions = append(p.regions, region{name: name})
	}
	return &p.regions[i]
}

// parse parses an unsigned number with an optional unit.
func (u unit) parse(value []byte) (uint64, bool) {
	digits, name, _ := bytes.Cut(value, []byte(" "))
	n, err := strconv.ParseUint(string(digits), 10, 64)
	name = bytes.TrimSpace(name)
	if len(name) == 0 || string(name) == u.name {
		return n, err == nil
	}
	factor := uint64(1)
	for _, larger := range u.larger {
		factor *= u.times
		if string(name) == larger {
			return n * factor, err == nil && n <= math.MaxUint64/factor
		}
	}
	return 0, false
}
