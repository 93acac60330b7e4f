package podresources

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
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
	cpuFile, cpuKey, perSecond := filepath.Join(dir, "cpu.stat"), "usage_usec", 1e6
	memoryFile, memoryKeys := filepath.Join(dir, "memory.stat"), []string{"pgfault", "anon", "file"}
	storageFile, storageKeys := filepath.Join(dir, "io.stat"), []string{"rbytes", "wbytes"}
	if !exists(filepath.Join(root, "cgroup.controllers")) {
		_, below, _ := strings.Cut(strings.TrimPrefix(dir, root+"/"), "/") // without the hierarchy
		cpuFile, cpuKey, perSecond = filepath.Join(root, "cpuacct", below, "cpuacct.usage"), "", 1e9
		memoryFile = filepath.Join(root, "memory", below, "memory.stat")
		memoryKeys = []string{"total_pgfault", "total_rss", "total_cache"}
		storageFile = filepath.Join(root, "blkio", below, "blkio.throttle.io_service_bytes_recursive")
		storageKeys = []string{"Read", "Write"}
	}
	cpu, err := readStat(cpuFile, true, cpuKey)
	if err != nil {
		return PodWork{}, err
	}
	memory, err := readStat(memoryFile, true, memoryKeys...)
	if err != nil {
		return PodWork{}, err
	}
	work := PodWork{
		CPU: cpu[0] / perSecond, Faults: memory[0], Memory: memory[1] + memory[2], Storage: math.NaN(), Network: math.NaN(),
	}
	storage, err := readStat(storageFile, false, storageKeys...)
	switch {
	case err == nil:
		work.Storage = storage[0] + storage[1]
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTSUP): // some kernels and nodes do not have it
		err = nil
	}
	return work, err
}

// readStat returns the sum of the values of each key in a file.
func readStat(path string, required bool, keys ...string) ([]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	values, err := parseStat(text, required, keys...)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", filepath.Base(path), err)
	}
	return values, nil
}

// parseStat returns the sum of the values of each key in a file of a cgroup, in which a value
// follows its key: cpu.stat, memory.stat and io.stat (kernel
// Documentation/admin-guide/cgroup-v2.rst), blkio.throttle.io_service_bytes_recursive (kernel
// Documentation/admin-guide/cgroup-v1/blkio-controller.rst). An empty key is that of the first
// value. A required key must be there.
func parseStat(text []byte, required bool, keys ...string) ([]float64, error) {
	out, found := make([]float64, len(keys)), make([]bool, len(keys))
	before := ""
	for word := range bytes.FieldsFuncSeq(text, func(r rune) bool { return unicode.IsSpace(r) || r == '=' }) {
		if i := slices.Index(keys, before); i >= 0 {
			n, err := strconv.ParseUint(string(word), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", before, err)
			}
			out[i] += float64(n)
			found[i] = true
		}
		before = string(word)
	}
	if i := slices.Index(found, false); required && i >= 0 {
		return nil, fmt.Errorf("there is no %q", keys[i])
	}
	return out, nil
}

// maxNetDev limits a net/dev, in bytes: a pod may make interfaces, of which each has a line of 130.
const maxNetDev = 1 << 16

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
	text, err := readHead(path(strconv.Itoa(pid)), maxNetDev)
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
