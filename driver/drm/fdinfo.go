package drm

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
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

// readsAtOnce is the maximum number of clients that one sample reads.
const readsAtOnce = 256

// usage is the state of a client.
type usage struct {
	id     clientID
	device *device
	pid    int    // the first process that has it open
	fdinfo string // and its file there, which is read
	at     time.Time

	engines   []engineUse
	memory    uint64 // bytes
	hasMemory bool
	garbled   [numKinds]int
}

// engineUse is the use of a kind of engine and its busy fraction between the last two reads.
type engineUse struct {
	part
	busy  float64
	known bool
}

// read reads the clients. If there are many, it reads them in turns.
func (s *Source) read(ctx context.Context, bad *sysfs.Problems) {
	s.sort()
	for range min(len(s.order), s.limits.reads) {
		if ctx.Err() != nil {
			break
		}
		s.next %= len(s.order)
		bad.Add(s.readUsage(s.order[s.next]))
		s.next++
	}
	s.sort()
}

// sort lists the clients that processes have, each in the first of these, if that has changed, and
// drops others.
func (s *Source) sort() {
	if !s.changed {
		return
	}
	present := make(map[clientID]*usage, len(s.clients))
	s.order, s.changed = s.order[:0], false
	for _, pid := range slices.Sorted(maps.Keys(s.processes)) {
		for _, f := range s.processes[pid].files {
			if u := s.clients[f.client]; u != nil && present[f.client] == nil {
				u.pid, u.fdinfo, present[f.client] = pid, f.fdinfo, u
				s.order = append(s.order, u)
			}
		}
	}
	s.clients = present
}

// readUsage reads a client. A process that no longer has it is scanned again at the next sample.
func (s *Source) readUsage(u *usage) error {
	c, err := s.readClient(u.fdinfo)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if c != nil && (clientID{c.pci, c.id}) == u.id {
		u.update(c, s.now())
		return nil
	}
	p := s.processes[u.pid]
	if err != nil {
		p.forbidden = err
	}
	p.due, p.pause, s.changed = time.Time{}, 0, true
	p.files = slices.DeleteFunc(p.files, func(f openFile) bool { return f.client == u.id })
	return nil
}

// update stores the present values of the client.
func (u *usage) update(c *client, at time.Time) {
	first, elapsed := u.at.IsZero(), at.Sub(u.at)
	if !first && elapsed <= 0 {
		return
	}
	for i := range u.engines {
		e := &u.engines[i]
		e.known = e.known && slices.ContainsFunc(c.parts[ofEngines], func(now part) bool { return now.name == e.name })
	}
	for _, now := range c.parts[ofEngines] {
		i := slices.IndexFunc(u.engines, func(e engineUse) bool { return e.name == now.name })
		if i < 0 && len(u.engines) == maxParts {
			continue
		}
		if i < 0 {
			i = len(u.engines)
			u.engines = append(u.engines, engineUse{part: now})
			if !first && now.has(busyTime) { // amdgpu leaves out an engine that was never used
				u.engines[i].values[busyTime] = 0
			}
			if first {
				continue
			}
		}
		u.engines[i].advance(now, elapsed)
	}
	u.memory, u.hasMemory = c.memory()
	u.garbled, u.at = c.garbled, at
}

// advance stores the use of an engine after a time. A value that falls is ignored until it is
// higher again, as the kernel's document requires; a clock that falls has been reset.
func (e *engineUse) advance(now part, elapsed time.Duration) {
	field, span := busyTime, float64(elapsed)
	switch both := e.bits & now.bits; {
	case both&(1<<busyTime) != 0:
	case both&(1<<busyCycles) == 0 || both&(1<<totalCycles) == 0:
		return
	case now.values[totalCycles] < e.values[totalCycles]:
		e.part, e.known = now, false
		return
	default:
		field, span = busyCycles, float64(now.values[totalCycles]-e.values[totalCycles])
	}
	if span <= 0 {
		return
	}
	now.values[field] = max(now.values[field], e.values[field])
	done := float64(now.values[field] - e.values[field])
	e.busy, e.known, e.part = min(done/span/float64(now.values[capacity]), 1), true, now
}

// memory returns the memory of a client, in bytes: its device memory or, if the device has none,
// its memory of the machine.
func (c *client) memory() (total uint64, ok bool) {
	local := slices.ContainsFunc(c.parts[ofMemory], isLocal)
	for _, r := range c.parts[ofMemory] {
		if !local || isLocal(r) {
			total += r.bytes()
			ok = true
		}
	}
	return total, ok
}

// isLocal reports whether memory is the device's: vram of amdgpu, vram0 of xe, local0 of i915.
func isLocal(r part) bool {
	return strings.HasPrefix(r.name, "vram") || strings.HasPrefix(r.name, "local")
}
