package drm

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// Bounds of the data of one client.
const (
	maxParts = 64      // kinds of engines, and of memory
	maxName  = 64      // bytes of a name
	maxNames = 1 << 10 // names that are remembered
)

// client is the content of a file /proc/<pid>/fdinfo/<fd> of a DRM client
// (Documentation/gpu/drm-usage-stats.rst of Linux).
type client struct {
	driver string // drm-driver: the name that the kernel's driver registered, such as amdgpu
	pci    string // drm-pdev: address; "" for what is on no PCI bus
	id     uint64 // drm-client-id, unique within the device

	parts   [numKinds][]part
	garbled [numKinds]int // the numbers of values that could not be used
}

// The kinds of parts.
const (
	ofEngines = iota
	ofMemory
	numKinds
)

// part is the use of one kind of engine, or of memory. A field without its bit is 0.
type part struct {
	name   string
	bits   uint8
	values [numFields]uint64
}

// The fields.
const (
	busyTime    = iota // drm-engine-: nanoseconds in which engines were busy for this client
	busyCycles         // drm-cycles-: the same in cycles
	totalCycles        // drm-total-cycles-: a clock in the same unit
	capacity           // drm-engine-capacity-: how many engines of the kind there are
	resident           // drm-resident-, or drm-memory- of older kernels: bytes that are there now
	created            // drm-total-: all bytes that were created
	numFields
)

func (p *part) has(field int) bool { return p.bits&(1<<field) != 0 }

// bytes returns the resident memory, or all if the driver does not report resident memory.
func (p *part) bytes() uint64 {
	if p.has(resident) {
		return p.values[resident]
	}
	return p.values[created]
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
	p.client = client{parts: [...][]part{p.parts[ofEngines][:0], p.parts[ofMemory][:0]}}
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
	for i := range p.parts[ofEngines] {
		e := &p.parts[ofEngines][i]
		e.values[capacity] = max(e.values[capacity], 1)
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

// measure stores the value of a key, given without "drm-". It returns false for a malformed value,
// with its kind. It ignores other keys. Times of engines with the same name are summed.
func (p *parser) measure(key, value []byte) (kind int, ok bool) {
	for _, k := range [...]struct {
		prefix      string
		kind, field int
		unit        string
	}{
		{"engine-capacity-", ofEngines, capacity, ""},
		{"engine-", ofEngines, busyTime, "ns"},
		{"cycles-", ofEngines, busyCycles, ""},
		{"total-cycles-", ofEngines, totalCycles, ""},
		{"resident-", ofMemory, resident, "B"},
		{"memory-", ofMemory, resident, "B"},
		{"total-", ofMemory, created, "B"},
	} {
		name, ok := bytes.CutPrefix(key, []byte(k.prefix))
		if !ok {
			continue
		}
		n, ok := parseNumber(value, k.unit)
		if !ok || n == 0 && k.field == capacity {
			return k.kind, false
		}
		of := p.part(k.kind, p.name(name))
		if of == nil {
			return k.kind, false
		}
		if k.field == busyTime && n <= math.MaxUint64-of.values[busyTime] {
			n += of.values[busyTime]
		}
		of.values[k.field], of.bits = n, of.bits|1<<k.field
		return k.kind, true
	}
	return 0, true
}

// part returns the part with a name; nil if there are too many or the name is empty.
func (p *parser) part(kind int, name string) *part {
	all := &p.parts[kind]
	i := slices.IndexFunc(*all, func(other part) bool { return other.name == name })
	if i < 0 {
		if name == "" || len(*all) == maxParts {
			return nil
		}
		i = len(*all)
		*all = append(*all, part{name: name})
	}
	return &(*all)[i]
}

// parseNumber parses an unsigned number with an optional unit; of bytes also with a larger one.
func parseNumber(value []byte, unit string) (uint64, bool) {
	digits, name, _ := bytes.Cut(value, []byte(" "))
	n, err := strconv.ParseUint(string(digits), 10, 64)
	factor := uint64(1)
	switch name := string(bytes.TrimSpace(name)); {
	case name == "" || name == unit:
	case name == "KiB" && unit == "B":
		factor = 1 << 10
	case name == "MiB" && unit == "B":
		factor = 1 << 20
	default:
		return 0, false
	}
	return n * factor, err == nil && n <= math.MaxUint64/factor
}
