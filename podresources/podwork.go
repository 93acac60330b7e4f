package podresources

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// PodWork is what the processes of a pod have done on the host so far. What can't be read is NaN.
type PodWork struct {
	CPU     float64 // seconds
	Storage float64 // bytes that were read from and written to block devices
	Faults  float64 // page faults
	Memory  float64 // bytes of anonymous memory and of the page cache, now
	Network float64 // bytes through the interfaces of the pod's own network namespace
}

// PodWorks reads what pods do from their cgroups and the net/dev of their first process, which
// needs no privilege beyond that of reading cgroups and the procfs. It is safe for concurrent use.
//
//	            version 2                       version 1
//	CPU         cpu.stat usage_usec             cpuacct.usage
//	Storage     io.stat rbytes, wbytes          blkio.throttle.io_service_bytes_recursive
//	Faults      memory.stat pgfault             memory.stat total_pgfault
//	Memory      memory.stat anon, file          memory.stat total_rss, total_cache
//
// Storage is not there if the controller io is not enabled for pods, which depends on the runtime.
// In version 1, it does not have what the page cache writes later. Network is not there for pods of
// the host's network.
type PodWorks struct {
	cgroups *Cgroups
	pods    *PodProcesses
	procfs  string
}

// NewPodWorks returns the reader. It reads nothing yet. pods must not have another user.
func NewPodWorks(cgroups *Cgroups, pods *PodProcesses, procfs string) *PodWorks {
	return &PodWorks{cgroups: cgroups, pods: pods, procfs: procfs}
}

// Of returns the work of each pod by UID. A pod that has ended, or whose cgroup is not known, is
// omitted. The error is that of one pod, which may be in the answer with what could be read.
func (w *PodWorks) Of(uids []string) (map[string]PodWork, error) {
	out := make(map[string]PodWork, len(uids))
	var errs error
	first := w.pods.Of(uids)
	for _, uid := range uids {
		dir := w.cgroups.Folder(uid)
		if dir == "" {
			continue
		}
		work, err := readPodWork(dir, w.cgroups.path)
		if err == nil {
			out[uid] = work
		} else if exists(dir) { // else the pod has just ended
			errs = fmt.Errorf("read the work of pod %s: %w", uid, err)
		}
		if pid, ok := first[uid]; ok && err == nil {
			work.Network, err = podTraffic(w.procfs, pid)
			out[uid] = work
			if err != nil && !gone(err) {
				errs = fmt.Errorf("read the work of pod %s: %w", uid, err)
			}
		}
	}
	return out, errs
}

// readPodWork reads the cgroup of a pod, in one hierarchy of the cgroup file system at root.
func readPodWork(dir, root string) (PodWork, error) {
	if exists(filepath.Join(root, "cgroup.controllers")) {
		return readUnified(dir)
	}
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return PodWork{}, err
	}
	_, below, _ = strings.Cut(below, string(filepath.Separator)) // without the hierarchy
	work := PodWork{Network: math.NaN()}
	of := func(controller, file string) string { return filepath.Join(root, controller, below, file) }
	nanoseconds, err := statOf(of("cpuacct", "cpuacct.usage"), "")
	if err != nil {
		return PodWork{}, err
	}
	work.CPU = nanoseconds[0] / 1e9
	memory, err := statOf(of("memory", "memory.stat"), "total_pgfault", "total_rss", "total_cache")
	if err != nil {
		return PodWork{}, err
	}
	work.Faults, work.Memory = memory[0], memory[1]+memory[2]
	work.Storage, err = optional(of("blkio", "blkio.throttle.io_service_bytes_recursive"), parseBlkio)
	return work, err
}

// readUnified reads a cgroup of version 2.
func readUnified(dir string) (PodWork, error) {
	work := PodWork{Network: math.NaN()}
	cpu, err := statOf(filepath.Join(dir, "cpu.stat"), "usage_usec")
	if err != nil {
		return PodWork{}, err
	}
	work.CPU = cpu[0] / 1e6
	memory, err := statOf(filepath.Join(dir, "memory.stat"), "pgfault", "anon", "file")
	if err != nil {
		return PodWork{}, err
	}
	work.Faults, work.Memory = memory[0], memory[1]+memory[2]
	work.Storage, err = optional(filepath.Join(dir, "io.stat"), parseIOStat)
	return work, err
}

// maxStat limits the files of cgroups, of which memory.stat has up to 3 kB, and a procfs's net/dev,
// which has 130 bytes per line.
const maxStat = 1 << 16

// statOf reads values of a file with lines of a key and a value. The key of a file with one value
// is empty.
func statOf(path string, keys ...string) ([]float64, error) {
	text, err := readStat(path)
	if err != nil {
		return nil, err
	}
	values, err := parseStat(text, keys...)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", filepath.Base(path), err)
	}
	return values, nil
}

// optional reads a file that only some kernels and nodes have. NaN: it is not there.
func optional(path string, parse func([]byte) (float64, error)) (float64, error) {
	text, err := readStat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTSUP) {
		return math.NaN(), nil
	}
	if err != nil {
		return math.NaN(), err
	}
	value, err := parse(text)
	if err != nil {
		return math.NaN(), fmt.Errorf("parse %s: %w", filepath.Base(path), err)
	}
	return value, nil
}

func readStat(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxStat+1))
	if err == nil && len(text) > maxStat {
		return nil, fmt.Errorf("read %s: more than %d bytes", filepath.Base(path), maxStat)
	}
	return text, err
}

// parseStat returns the values of keys of a cpu.stat, a memory.stat or a cpuacct.usage.
func parseStat(text []byte, keys ...string) ([]float64, error) {
	out := make([]float64, len(keys))
	found := 0
	for line := range bytes.Lines(text) {
		key, value, two := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if !two {
			key, value = nil, key
		}
		for i, wanted := range keys {
			if string(key) != wanted {
				continue
			}
			n, err := strconv.ParseUint(string(value), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", wanted, err)
			}
			out[i] = float64(n)
			found++
		}
	}
	if found != len(keys) {
		return nil, fmt.Errorf("%d of %d values are there, once", found, len(keys))
	}
	return out, nil
}

// parseIOStat returns the sum of bytes of an io.stat (kernel
// Documentation/admin-guide/cgroup-v2.rst).
func parseIOStat(text []byte) (sum float64, err error) {
	for field := range bytes.FieldsSeq(text) {
		key, value, _ := bytes.Cut(field, []byte("="))
		if string(key) != "rbytes" && string(key) != "wbytes" {
			continue
		}
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", key, err)
		}
		sum += float64(n)
	}
	return sum, nil
}

// parseBlkio returns the sum of bytes of a blkio.throttle.io_service_bytes_recursive (kernel
// Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
func parseBlkio(text []byte) (sum float64, err error) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) != 3 || string(fields[1]) != "Read" && string(fields[1]) != "Write" {
			continue
		}
		n, err := strconv.ParseUint(string(fields[2]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", fields[1], err)
		}
		sum += float64(n)
	}
	return sum, nil
}

// podTraffic returns the bytes through the interfaces of a process's network namespace, NaN for
// that of the host. A procfs entry has the same inode for all processes of a namespace.
func podTraffic(procfs string, pid int) (float64, error) {
	path := func(process string) string { return filepath.Join(procfs, process, "net", "dev") }
	own, err := os.Stat(path(strconv.Itoa(pid)))
	if err != nil {
		return math.NaN(), err
	}
	host, err := os.Stat(path("1"))
	if err != nil || os.SameFile(own, host) {
		return math.NaN(), err
	}
	text, err := readStat(path(strconv.Itoa(pid)))
	if err != nil {
		return math.NaN(), err
	}
	return parseTraffic(text)
}

// parseTraffic returns the sum of the received and transmitted bytes of a net/dev
// (dev_seq_printf_stats in net/core/net-procfs.c), without the loopback interface.
func parseTraffic(text []byte) (sum float64, err error) {
	for line := range bytes.Lines(text) {
		name, counters, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(bytes.TrimSpace(name)) == "lo" {
			continue
		}
		columns := bytes.Fields(counters)
		if len(columns) != 16 {
			return math.NaN(), fmt.Errorf("%d columns of net/dev", len(columns))
		}
		for _, column := range [2][]byte{columns[0], columns[8]} {
			n, err := strconv.ParseUint(string(column), 10, 64)
			if err != nil {
				return math.NaN(), fmt.Errorf("bytes of net/dev: %w", err)
			}
			sum += float64(n)
		}
	}
	return sum, nil
}

// gone reports whether a process or a cgroup has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
