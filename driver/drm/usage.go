package drm

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
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
	files  []sharedFile // where it is open, one file of each process, by PID; the first one is read
	at     time.Time    // time of the fields below

	engines   []engineUse
	memory    uint64 // bytes
	hasMemory bool
	garbled   [numKinds]int
}

// sharedFile is the file of a client in one of its processes.
type sharedFile struct {
	pid    int
	fdinfo string
}

// engineUse is the use of a kind of engine and its busy fraction between the last two reads.
type engineUse struct {
	engine
	busy  float64
	known bool
}

// addFile adds the file of a process, or replaces it.
func (u *usage) addFile(pid int, fdinfo string) {
	i, found := slices.BinarySearchFunc(u.files, pid, byPID)
	if found {
		u.files[i].fdinfo = fdinfo
		return
	}
	u.files = slices.Insert(u.files, i, sharedFile{pid, fdinfo})
}

// removeFile removes the file of a process, and reports whether it was the last one.
func (u *usage) removeFile(pid int) bool {
	if i, found := slices.BinarySearchFunc(u.files, pid, byPID); found {
		u.files = slices.Delete(u.files, i, i+1)
	}
	return len(u.files) == 0
}

func byPID(f sharedFile, pid int) int { return cmp.Compare(f.pid, pid) }

// read reads the clients. If there are many, it reads them in turns.
func (s *Source) read(ctx context.Context, bad *sysfs.Problems) {
	if s.changed {
		s.order, s.changed = s.order[:0], false
		for _, u := range s.clients {
			s.order = append(s.order, u)
		}
		slices.SortFunc(s.order, func(a, b *usage) int {
			return cmp.Or(cmp.Compare(a.files[0].pid, b.files[0].pid), strings.Compare(a.files[0].fdinfo, b.files[0].fdinfo))
		})
	}
	turns := min(len(s.order), s.limits.reads)
	for range turns {
		if ctx.Err() != nil {
			return
		}
		s.next %= len(s.order)
		bad.Add(s.readUsage(s.order[s.next]))
		s.next++
	}
}

// readUsage reads a client in the first of its processes that still has it. Processes that no
// longer have it are scanned again at the next sample.
func (s *Source) readUsage(u *usage) error {
	for len(u.files) > 0 {
		file := u.files[0]
		c, err := s.readClient(file.fdinfo)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		if c != nil && (clientID{c.pci, c.id}) == u.id {
			u.update(c, s.now())
			return nil
		}
		p := s.processes[file.pid]
		if err != nil {
			p.forbidden = err
		}
		p.due, p.pause = time.Time{}, 0
		p.files = slices.DeleteFunc(p.files, func(f openFile) bool { return f.client == u.id })
		s.close(file.pid, u)
	}
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
		e.known = e.known && slices.ContainsFunc(c.engines, func(now engine) bool { return now.name == e.name })
	}
	for _, now := range c.engines {
		i := slices.IndexFunc(u.engines, func(e engineUse) bool { return e.name == now.name })
		if i < 0 && len(u.engines) == maxEngines {
			continue
		}
		if i < 0 {
			i = len(u.engines)
			u.engines = append(u.engines, engineUse{engine: now})
			if !first && now.has&hasTime != 0 { // amdgpu leaves out an engine that was never used
				u.engines[i].time = 0
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
func (e *engineUse) advance(now engine, elapsed time.Duration) {
	var done uint64
	var span float64
	switch has := e.has & now.has; {
	case has&hasTime != 0:
		now.time = max(now.time, e.time)
		done, span = now.time-e.time, float64(elapsed)
	case has&hasCycles == 0:
		return
	case has&hasTotal != 0 && now.total < e.total:
		e.engine, e.known = now, false
		return
	case has&hasTotal != 0:
		now.cycles = max(now.cycles, e.cycles)
		done, span = now.cycles-e.cycles, float64(now.total-e.total)
	case has&hasHighest != 0:
		now.cycles = max(now.cycles, e.cycles)
		done, span = now.cycles-e.cycles, elapsed.Seconds()*float64(now.highest)
	}
	if span <= 0 {
		return
	}
	e.busy, e.known = min(float64(done)/span/float64(now.capacity), 1), true
	e.engine = now
}

// memory returns the memory of a client, in bytes: its device memory or, if the device has none,
// its memory of the machine.
func (c *client) memory() (bytes uint64, ok bool) {
	local := slices.ContainsFunc(c.regions, isLocal)
	for _, r := range c.regions {
		if !local || isLocal(r) {
			bytes += r.bytes()
			ok = true
		}
	}
	return bytes, ok
}

// isLocal reports whether a region is device memory: vram of amdgpu, vram0 of xe, local0 of i915.
func isLocal(r region) bool {
	return strings.HasPrefix(r.name, "vram") || strings.HasPrefix(r.name, "local")
}
