package drm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// Bounds of the search for clients.
const (
	maxProcesses = 1 << 14 // that are remembered
	maxFiles     = 1 << 12 // open files of a process that are looked at: the lowest numbers, mostly
	// scansAtOnce and filesAtOnce are the maximum numbers of processes, and of their open files, that
	// one sample scans.
	scansAtOnce = 128
	filesAtOnce = 1 << 10
	// A process is scanned again after minRescan. The time is doubled, up to maxRescan, while the
	// process opens and closes no device.
	minRescan = time.Second
	maxRescan = 32 * time.Second
	maxFile   = 1 << 14 // bytes of a file of fdinfo
)

// process is a process of a pod that holds a device.
type process struct {
	due       time.Time // when it is looked at again
	pause     time.Duration
	files     []openFile
	kfd       bool  // it has /dev/kfd open: clients do not report what it computes
	forbidden error // this process may not read it
}

// openFile is an open file of a process that belongs to a client.
type openFile struct {
	fdinfo string // path below the procfs
	client clientID
}

// clientID identifies a client.
type clientID struct {
	pci string
	id  uint64
}

// scan searches for the clients of the pods' processes.
func (s *Source) scan(ctx context.Context, pods []driver.PodProcesses, bad *sysfs.Problems) {
	now := s.now()
	due := s.dueProcesses(pods, now)
	files := 0
	for _, pid := range due[:min(len(due), s.limits.scans)] {
		if ctx.Err() != nil || files >= s.limits.files {
			return
		}
		p := s.processes[pid]
		n, err := s.look(pid, p)
		files += n
		if err != nil {
			bad.Add(err)
		}
		p.due = now.Add(p.pause)
	}
}

// dueProcesses returns the processes to scan, those first that have been due for the longest time,
// so that a pod with many processes does not displace others. It drops the state of other
// processes.
func (s *Source) dueProcesses(pods []driver.PodProcesses, now time.Time) []int {
	var due []int
	named := map[int]bool{}
	for i := range pods {
		most := s.limits.processes / len(pods)
		for _, pid := range pods[i].PIDs[:min(len(pods[i].PIDs), most)] {
			if named[pid] {
				continue
			}
			named[pid] = true
			p := s.processes[pid]
			if p == nil {
				p = &process{due: now}
				s.processes[pid] = p
			}
			if !now.Before(p.due) || p.due.Sub(now) > maxRescan {
				due = append(due, pid)
			}
		}
	}
	for pid, p := range s.processes {
		if !named[pid] {
			s.changed = s.changed || len(p.files) > 0
			delete(s.processes, pid)
		}
	}
	slices.SortFunc(due, func(a, b int) int {
		return cmp.Or(s.processes[a].due.Compare(s.processes[b].due), cmp.Compare(a, b))
	})
	return due
}

// look scans the open files of a process and returns their number.
func (s *Source) look(pid int, p *process) (int, error) {
	found, kfd, n, err := s.openFiles(pid)
	p.kfd, p.forbidden = kfd, nil
	if errors.Is(err, fs.ErrPermission) {
		err, p.forbidden = nil, err
	}
	if slices.Equal(found, p.files) {
		p.pause = min(max(2*p.pause, minRescan), maxRescan)
		return n, err
	}
	p.pause, p.files, s.changed = minRescan, found, true
	return n, err
}

// openFiles returns the open files of a process that belong to clients, one per client; whether it
// has /dev/kfd open; and the number of all its open files. A process that has ended has none.
func (s *Source) openFiles(pid int) (found []openFile, kfd bool, n int, err error) {
	dir := strconv.Itoa(pid)
	links, err := sysfs.OpenDir(sysfs.WorkingDir, filepath.Join(s.Procfs, dir, "fd"))
	if err != nil {
		return nil, false, 0, unlessEnded(err)
	}
	defer links.Close()
	names, err := sysfs.FirstNames(links, ".", maxFiles)
	if err != nil {
		return nil, false, 0, unlessEnded(err)
	}
	var target [unix.PathMax]byte
	for _, name := range names {
		length, linkErr := unix.Readlinkat(int(links), name, target[:])
		if unlessEnded(linkErr) != nil {
			return nil, false, len(names), linkErr
		}
		path := target[:max(length, 0)]
		kfd = kfd || string(path) == "/dev/kfd"
		if !bytes.HasPrefix(path, []byte(drmcard.CardNodes)) && !bytes.HasPrefix(path, []byte(drmcard.AccelNodes)) {
			continue
		}
		fdinfo := filepath.Join(dir, "fdinfo", name)
		u, clientErr := s.find(fdinfo, string(path))
		if u != nil && !slices.ContainsFunc(found, func(f openFile) bool { return f.client == u.id }) {
			found = append(found, openFile{fdinfo, u.id})
		}
		err = cmp.Or(err, clientErr)
	}
	return found, kfd, len(names), err
}

// find returns the client of a file, given the path that was opened; nil if the file does not
// belong to a client or has been closed.
func (s *Source) find(fdinfo, node string) (*usage, error) {
	c, err := s.readClient(fdinfo)
	if c == nil {
		return nil, err
	}
	id := clientID{c.pci, c.id}
	if u := s.clients[id]; u != nil {
		return u, nil
	}
	d := s.ofClient(node, c.pci)
	if d == nil {
		return nil, nil
	}
	u := &usage{id: id, device: d}
	u.update(c, s.now())
	s.clients[id] = u
	return u, nil
}

// readClient reads a file of fdinfo; nil if it does not belong to a client or has been closed.
func (s *Source) readClient(fdinfo string) (*client, error) {
	text, err := sysfs.ReadInto(sysfs.WorkingDir, filepath.Join(s.Procfs, fdinfo), s.buffer)
	if err != nil {
		if err = unlessEnded(err); err != nil {
			err = fmt.Errorf("read a DRM client: %w", err)
		}
		return nil, err
	}
	c, ok := s.parser.parse(text)
	if !ok {
		return nil, nil
	}
	return c, nil
}

// unlessEnded returns nil for an error of a process that has ended or a file that was closed, and
// other errors unchanged.
func unlessEnded(err error) error {
	if sysfs.HasEnded(err) {
		return nil
	}
	return err
}
