package drm

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

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
func (c *client) memory() (bytes uint64, ok bool) {
	local := slices.ContainsFunc(c.parts[ofMemory], isLocal)
	for _, r := range c.parts[ofMemory] {
		if !local || isLocal(r) {
			bytes += r.bytes()
			ok = true
		}
	}
	return bytes, ok
}

// isLocal reports whether memory is the device's: vram of amdgpu, vram0 of xe, local0 of i915.
func isLocal(r part) bool {
	return strings.HasPrefix(r.name, "vram") || strings.HasPrefix(r.name, "local")
}
