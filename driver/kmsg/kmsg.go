// Package kmsg reads the errors of NVIDIA GPUs and NVSwitches from the kernel log, which has the
// affected process and the severity. NVML and DCGM report only the codes of XIDs.
//
// Bounds (max…) are for what writers of the kernel log send.
package kmsg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// Source reads errors from the kernel log. It is a [driver.Source] and a [driver.Watcher]. With
// Watch it reads an error when it happens, while the process probably still exists; without Watch
// it reads it at the next Sample.
//
// Records from before the log was opened do not count, except for those after the position of an
// earlier process of the exporter. Without an NVIDIA GPU on the PCI bus, the log is not opened.
type Source struct {
	path, sysfs, procfs string
	podOf               func(pid int) string
	now                 func() time.Time
	uptime              func() time.Duration // CLOCK_MONOTONIC
	read                func(fd int, b []byte) (int, error)

	mu       sync.Mutex
	lookedAt time.Time // time of the last look at the bus
	gpus     bool
	file     *os.File // nil: closed
	triedAt  time.Time
	err      error     // why it is closed
	drained  time.Time // when the log was last read; initially by an earlier process
	sequence uint64    // of the last record; valid if begun
	begun    bool      // there has been a record
	rest     []byte    // start of an incomplete line
	buffer   [maxRecord]byte
	counts   map[place]*nvidia.XIDs
	uuids    map[string]string // of GPUs, by PCI address
	records  int
	rejected driver.Rejections
}

// place is a GPU or a MIG device.
type place struct{ pci, instance string }

var (
	_ driver.Source           = (*Source)(nil)
	_ driver.Watcher          = (*Source)(nil)
	_ driver.Describer        = (*Source)(nil)
	_ driver.RejectionCounter = (*Source)(nil)
	_ driver.Resumer          = (*Source)(nil)
)

const (
	// retryInterval is the interval at which the PCI bus is checked, and opening the log is retried.
	retryInterval = 10 * time.Second
	// maxRecord is above the maximum length of a record (8 KiB, PRINTK_MESSAGE_MAX).
	maxRecord = 16 << 10
	// maxReads is the maximum number of records that are read at once.
	maxReads = 1 << 13
	// maxPlaces is the maximum number of devices.
	maxPlaces = 256
)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h), nil }

// New returns a source that reads the log h.Kmsg. PIDs in records are those of the host's PID
// namespace.
func New(h driver.Host) *Source {
	podOf := h.PodOf
	if podOf == nil {
		podOf = func(int) string { return "" }
	}
	return &Source{
		path: h.Kmsg, sysfs: h.Sysfs, procfs: h.Procfs, podOf: podOf, now: time.Now, uptime: uptime, read: syscall.Read,
		counts: map[place]*nvidia.XIDs{}, uuids: map[string]string{}, rejected: driver.Rejections{},
	}
}

func uptime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity { return []driver.Quantity{driver.Errors} }

// Name returns kmsg.
func (*Source) Name() string { return "kmsg" }

// Sample returns the counters of XIDs, and the new XIDs as events.
func (s *Source) Sample(context.Context) ([]driver.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() {
		s.drain()
	}
	now := s.now()
	places := slices.SortedFunc(maps.Keys(s.counts), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.pci, b.pci), cmp.Compare(a.instance, b.instance))
	})
	samples := make([]driver.Sample, 0, len(places))
	for _, p := range places {
		sample := driver.Sample{Hardware: s.hardware(p), FromLog: true}
		s.counts[p].Report(&sample, now)
		samples = append(samples, sample)
	}
	return samples, s.err
}

// hardware returns the identifiers of a place. A MIG device is identified by the UUID of its GPU
// and the number of its instance.
func (s *Source) hardware(p place) driver.Hardware {
	h := driver.Hardware{PCI: p.pci, Vendor: "nvidia"}
	if p.instance != "" {
		h.PCI, h.Parent, h.Instance = "", s.uuids[p.pci], p.instance
	}
	return h
}

// Watch reads the log until ctx ends.
func (s *Source) Watch(ctx context.Context) {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for {
		s.mu.Lock()
		s.open()
		file := s.file
		s.mu.Unlock()
		if file != nil {
			s.follow(ctx, file)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// follow reads new records until reading fails or ctx ends. It returns immediately for a file that
// does not support polling.
func (s *Source) follow(ctx context.Context, file *os.File) {
	log, err := file.SyscallConn()
	if err != nil || file.SetReadDeadline(time.Time{}) != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Now()) })()
	_ = log.Read(func(uintptr) (failed bool) { // the closed file shows a failure
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.file == file {
			s.drain()
		}
		return s.file != file
	})
}

// open opens the log if it is due, and reports whether it is open.
func (s *Source) open() bool {
	now := s.now()
	if s.file != nil || !s.present(now) {
		return s.file != nil
	}
	if !s.triedAt.IsZero() && now.Sub(s.triedAt) < retryInterval {
		return false
	}
	s.triedAt = now
	file, err := os.OpenFile(s.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		s.err = s.failure("open", err)
		return false
	}
	s.file, s.err, s.rest = file, nil, nil
	if !s.begun { // otherwise, known records are skipped
		s.drained = now
		s.passOver()
	}
	return true
}

// passOver skips the records in the log to learn the position.
func (s *Source) passOver() {
	rejected := maps.Clone(s.rejected)
	for more := true; more; {
		before := s.records
		if s.readAll(func(record) {}) != nil {
			break // the next read has the position
		}
		more = s.records-before >= maxReads
	}
	s.rejected, s.records = rejected, 0
}

// Position returns the number of the last record.
func (s *Source) Position() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		return nil
	}
	return binary.AppendUvarint(nil, s.sequence)
}

// Resume makes the record after a position the first one that counts.
func (s *Source) Resume(position []byte, at time.Time) {
	sequence, n := binary.Uvarint(position)
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun, s.sequence, s.drained = true, sequence, at
}

// present reports whether there is an NVIDIA GPU.
func (s *Source) present(now time.Time) bool {
	if !s.gpus && (s.lookedAt.IsZero() || now.Sub(s.lookedAt) >= retryInterval) {
		s.lookedAt, s.gpus = now, len(sysfs.PCIDevices(s.sysfs, "10de", []string{"03"})) > 0
	}
	return s.gpus
}

func (s *Source) failure(operation string, err error) error {
	err = fmt.Errorf("%s the kernel log: %w", operation, err)
	if errors.Is(err, fs.ErrNotExist) {
		err = driver.WithReason(driver.ReasonAbsent, err)
	}
	return err
}

// drain reads all records that are in the log.
func (s *Source) drain() {
	var found []written
	now, uptime := s.now(), s.uptime()
	err := s.readAll(func(r record) {
		if !r.kernel {
			return
		}
		failures, ok := parseText(r.text)
		if !ok {
			s.rejected.Add(driver.ReasonMalformed, 1)
		}
		for _, f := range failures {
			found = append(found, written{failure: f, at: now.Add(r.at - uptime)})
		}
	})
	for i := range found { // it was written after the read before; the log's clock drifts
		if at := &found[i].at; at.Before(s.drained) || at.After(now) {
			*at = now
		}
	}
	for i := len(found) - 2; i >= 0; i-- { // no two events have the same time
		if limit := found[i+1].at.Add(-time.Microsecond); found[i].at.After(limit) {
			found[i].at = limit
		}
	}
	for _, w := range found {
		s.count(w)
	}
	s.drained = now
	if err != nil {
		_ = s.file.Close() // only read, so that errors do not matter
		s.file, s.triedAt, s.err = nil, now, s.failure("read", err)
	}
}

// written is an error with the time of its record.
type written struct {
	failure
	at time.Time
}

// count counts an error. The counter of a new code was zero just before.
func (s *Source) count(w written) {
	p := place{w.pci, w.instance}
	if p.instance != "" && s.uuid(p.pci) == "" {
		p.instance = "" // errors of a GPU count for its parts
	}
	x := s.counts[p]
	if x == nil {
		if len(s.counts) == maxPlaces {
			s.rejected.Add(driver.ReasonTooMany, 1)
			return
		}
		x = &nvidia.XIDs{}
		s.counts[p] = x
	}
	e := driver.Event{At: w.at, PID: w.pid}
	if w.pid != 0 {
		e.PodUID = s.podOf(w.pid)
	}
	x.Count(nvidia.Error{Code: w.code, Severity: w.severity, Before: w.at.Add(-time.Microsecond), Event: e})
}

// readAll calls f for each new record. It counts records that were overwritten before they were
// read.
func (s *Source) readAll(f func(record)) (err error) {
	log, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	control := log.Control(func(fd uintptr) {
		for range maxReads {
			var n int
			n, err = s.read(int(fd), s.buffer[:])
			switch {
			case errors.Is(err, syscall.EAGAIN) || err == nil && n == 0:
				err = nil
				return
			case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR):
				// The sequence number of the next record shows how many were overwritten.
			case errors.Is(err, syscall.EINVAL): // longer than the buffer; the kernel skips it
				s.rejected.Add(driver.ReasonTooLarge, 1)
			case err != nil:
				return
			default:
				s.split(s.buffer[:n], f)
			}
		}
		err = nil
	})
	return cmp.Or(err, control)
}

// split calls f for the complete records in the data of one read: one record of /dev/kmsg, any
// number of a regular file.
func (s *Source) split(b []byte, f func(record)) {
	s.rest = append(s.rest, b...)
	var last *record
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte{'\n'})
		if !ok {
			break
		}
		s.rest = rest
		if last != nil {
			f(*last)
		}
		last = s.take(line)
	}
	if last != nil {
		f(*last)
	}
	if len(s.rest) > maxRecord {
		s.rejected.Add(driver.ReasonTooLarge, 1)
		s.rest = nil
	}
	s.rest = slices.Clone(s.rest)
}

// take returns the record that begins with a line, nil if none does, or if the record is known. A
// line that starts with a space belongs to the record before it and names its device.
func (s *Source) take(line []byte) *record {
	if len(line) == 0 || line[0] == ' ' {
		return nil
	}
	r, ok := parseRecord(line)
	if !ok {
		s.rejected.Add(driver.ReasonMalformed, 1)
		return nil
	}
	if s.begun && r.sequence <= s.sequence {
		return nil // the log has been opened again
	}
	if s.begun && r.sequence-s.sequence > 1 {
		s.rejected.Add(driver.ReasonOverwritten, int(min(r.sequence-s.sequence-1, 1<<20)))
	}
	s.begun, s.sequence = true, r.sequence
	s.records++
	return &r
}

// maxInformation is the maximum size of a GPU's file information, in bytes.
const maxInformation = 4 << 10

// uuid returns the UUID of the GPU with a PCI address from the driver's file
// /proc/driver/nvidia/gpus/ADDRESS/information; "" if it is unknown.
func (s *Source) uuid(pci string) string {
	if s.uuids[pci] == "" {
		file := filepath.Join(s.procfs, "driver", "nvidia", "gpus", pci, "information")
		if content, err := sysfs.ReadFile(file, maxInformation); err == nil {
			s.uuids[pci] = parseUUID(string(content))
		}
	}
	return s.uuids[pci]
}

// parseUUID returns the value of the line "GPU UUID:".
func parseUUID(information string) string {
	for line := range strings.Lines(information) {
		if value, ok := strings.CutPrefix(line, "GPU UUID:"); ok {
			if value = strings.TrimSpace(value); strings.HasPrefix(value, "GPU-") {
				return value
			}
		}
	}
	return ""
}

// Rejected returns the numbers of records that were overwritten before they were read, and of those
// that could not be used.
func (s *Source) Rejected() driver.Rejections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}

// Describe returns a line about the log.
func (s *Source) Describe() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.file != nil:
		return []string{fmt.Sprintf("%s: %d records since it was opened", s.path, s.records)}
	case !s.gpus:
		return []string{s.path + " is not read: there is no GPU of NVIDIA on the PCI bus"}
	default:
		return nil // the error describes it
	}
}
