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
	"sync"
	"syscall"
	"time"
	"unicode"
)

// Bounds of the search for processes of pods.
const (
	// maxProcesses is how many processes one step of a search examines: some 40 ms, and maxMemberStep
	// the same while other work of a tick is due: some 8 ms.
	maxProcesses  = 1 << 11
	maxMemberStep = 1 << 9
	// minProcessSearch is the shortest time between two steps, and between two searches while a pod is
	// new. That time doubles after each search, up to maxProcessSearch or maxMemberSearch.
	minProcessSearch = 500 * time.Millisecond
	maxProcessSearch = 15 * time.Second
	maxMemberSearch  = 10 * time.Second
	// maxMembers is the highest number of processes of a pod; others are omitted.
	maxMembers = 1 << 12
)

// podSearch finds something about the processes of pods, except the monitors of CRI-O, which may be
// in a pod's cgroup.
//
// It examines all processes of the procfs, since the numbers in a cgroup.procs are those of the
// reader's PID namespace, which need not be that of the procfs. It does so rarely, and in steps, so
// that its share of the time is bounded however many processes there are. It is safe for concurrent
// use.
type podSearch[T any] struct {
	processes Processes
	now       func() time.Time
	atOnce    int           // processes that one step examines
	longest   time.Duration // between two searches

	mu      sync.Mutex
	known   map[string]T    // by the pods' UIDs, as of the last complete search
	asked   map[string]bool // the pods that were requested last
	stepped time.Time       // the last step of a search
	pause   time.Duration   // before the next search
	walk    *os.File        // the procfs, of which the search in progress has read a part, or nil
	found   map[string]T    // by it, so far
	wanted  map[string]bool // the pods that were requested when it began
}

// of returns what is known of the pods, and makes at most one step of a search: if something is
// not known or not valid, or always. add adds a process to what was found of a pod. Without pods it
// does nothing.
func (s *podSearch[T]) of(
	uids []string, always bool, valid func(uid string, of T) bool, add func(found map[string]T, uid string, pid int),
) map[string]T {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(uids)
	out := s.valid(valid)
	since := s.now().Sub(s.stepped)
	switch {
	case len(s.asked) == 0, !always && len(out) == len(s.asked):
		s.end()
	case s.walk != nil && since >= minProcessSearch, since >= s.pause, since < 0:
		s.step(add)
		return s.valid(valid)
	}
	return out
}

// valid returns what is known of the requested pods, and forgets what is not valid.
func (s *podSearch[T]) valid(valid func(uid string, of T) bool) map[string]T {
	out := make(map[string]T, len(s.asked))
	for uid := range s.asked {
		switch of, known := s.known[uid]; {
		case !known:
		case valid(uid, of):
			out[uid] = of
		default:
			delete(s.known, uid)
			s.pause = minProcessSearch
		}
	}
	return out
}

// ask records the requested pods.
func (s *podSearch[T]) ask(uids []string) {
	asked := make(map[string]bool, len(uids))
	for _, uid := range uids {
		if uid == "" {
			continue
		}
		asked[uid] = true
		if !s.asked[uid] {
			s.pause = minProcessSearch
		}
	}
	if s.asked = asked; len(asked) == 0 {
		s.known = nil
	}
}

// step makes a step of a search. Its result is valid only at its end.
func (s *podSearch[T]) step(add func(found map[string]T, uid string, pid int)) {
	s.stepped = s.now()
	if s.walk == nil {
		s.walk, _ = os.Open(s.processes.procfs) // nil: it can't be read
		s.found, s.wanted = map[string]T{}, s.asked
	}
	names, err := s.walk.Readdirnames(s.atOnce)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			if uid := s.processes.PodUID(pid); s.asked[uid] {
				add(s.found, uid, pid)
			}
		}
	}
	if err == nil && len(names) == s.atOnce {
		return
	}
	s.known = s.found
	s.end()
	s.pause = min(2*s.pause, s.longest)
	for uid := range s.asked {
		if !s.wanted[uid] { // the search may have missed it
			s.pause = minProcessSearch
		}
	}
}

// end ends the search in progress, if there is one.
func (s *podSearch[T]) end() {
	if s.walk != nil {
		_ = s.walk.Close() // it was only read
		s.walk, s.found = nil, nil
	}
}

// PodProcesses finds the first process of pods: the oldest one that runs in the pod's cgroup. It is
// that of the sandbox (pause), which the runtime starts before any container and keeps until the
// pod ends. If the runtime makes none (CRI-O, unless containers share the PID namespace), it is
// that of the oldest container. A pod can start any number of processes, and give them any name,
// but it cannot start an older one. It searches again only if a process is not known or has ended.
type PodProcesses struct{ podSearch[process] }

// process identifies a process, whose number another one may get later.
type process struct {
	pid     int
	started uint64 // clock ticks after the start of the machine
}

// NewPodProcesses returns the finder for the procfs mounted at that path. It reads nothing yet.
func NewPodProcesses(procfs string, now func() time.Time) *PodProcesses {
	return &PodProcesses{podSearch[process]{
		processes: NewProcesses(procfs), now: now, atOnce: maxProcesses, longest: maxProcessSearch,
	}}
}

// Of returns the first process of each of the pods, by their UIDs; it belonged to its pod during
// the call. Pods without a known process are omitted. Data of other pods are dropped.
func (p *PodProcesses) Of(uids []string) map[string]int {
	out := map[string]int{}
	for uid, first := range p.of(uids, false, p.processes.alive, p.look) {
		out[uid] = first.pid
	}
	return out
}

// look records a process as the first one of its pod if it is older than the recorded one.
func (p *PodProcesses) look(found map[string]process, uid string, pid int) {
	started, ok := p.processes.started(pid)
	if !ok {
		return
	}
	before, known := found[uid]
	if !known || started < before.started || started == before.started && pid < before.pid {
		found[uid] = process{pid, started}
	}
}

// Processes finds the pods of the processes in a procfs.
type Processes struct{ procfs string }

// alive reports whether the process runs and is the pod's.
func (p Processes) alive(uid string, known process) bool {
	started, ok := p.started(known.pid)
	return ok && started == known.started && p.PodUID(known.pid) == uid
}

// PodMembers finds all processes of pods. A process that a pod starts is found within 10 s, plus a
// second for each 512 processes of the machine.
type PodMembers struct{ podSearch[[]int] }

// NewPodMembers returns the finder for the procfs mounted at that path. It reads nothing yet.
func NewPodMembers(procfs string, now func() time.Time) *PodMembers {
	return &PodMembers{podSearch[[]int]{
		processes: NewProcesses(procfs), now: now, atOnce: maxMemberStep, longest: maxMemberSearch,
	}}
}

// Of returns the processes of each of the pods, by their UIDs, ascending, as far as they were found
// by the last search. Pods without any are omitted. The slices must not be changed.
func (m *PodMembers) Of(uids []string) map[string][]int {
	return m.of(uids, true, func(string, []int) bool { return true }, func(found map[string][]int, uid string, pid int) {
		if at, _ := slices.BinarySearch(found[uid], pid); len(found[uid]) < maxMembers {
			found[uid] = slices.Insert(found[uid], at, pid)
		}
	})
}

// NewProcesses returns the processes of the procfs mounted at that path. It must show the host's
// PID namespace.
func NewProcesses(procfs string) Processes { return Processes{procfs} }

// crioMonitor is the prefix of the name of the folder of a container's monitor, which CRI-O puts
// into the pod's cgroup with conmon_cgroup = "pod" (OpenShift's default). Monitors are in the
// host's network namespace.
const crioMonitor = "crio-conmon-"

// PodUID returns the UID of the pod that a process in a container or sandbox belongs to, by its
// cgroup (proc(5), /proc/<pid>/cgroup); "" if the process belongs to no pod, is the monitor of a
// container, is gone, or can't be read.
func (p Processes) PodUID(pid int) string {
	text, _ := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "cgroup"), maxCgroupFile)
	uid, container := parseProcessCgroup(text)
	if strings.HasPrefix(container, crioMonitor) {
		return ""
	}
	return uid
}

// started returns the time at which a process started, in clock ticks after the start of the
// machine; false if it is gone, or has ended and waits for its parent.
func (p Processes) started(pid int) (uint64, bool) {
	text, _ := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "stat"), maxCgroupFile)
	return parseStarted(text)
}

// parseStarted parses the fields 3 and 22 of a /proc/<pid>/stat (proc_pid_stat(5)). The second
// field is in parentheses, and may contain any character.
func parseStarted(stat []byte) (started uint64, running bool) {
	const state, starttime = 3, 22
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) <= starttime-state || bytes.ContainsAny(fields[0], "ZXx") {
		return 0, false
	}
	started, err := strconv.ParseUint(string(fields[starttime-state]), 10, 64)
	if err != nil {
		return 0, false
	}
	return started, true
}

// parseProcessCgroup returns, from the cgroups of a process in each hierarchy, the UID of its pod
// and the container's folder within the pod's. A pod's folder is in the folder of a quality of
// service or in kubepods. The path is relative to the reader's own cgroup namespace, and may begin
// with "/.." in place of these. If a pod runs a kubelet of its own, the outermost pod counts.
func parseProcessCgroup(text []byte) (uid, container string) {
	for line := range bytes.Lines(text) {
		_, rest, _ := strings.Cut(string(bytes.TrimRight(line, "\n")), ":")
		_, path, _ := strings.Cut(rest, ":")
		for inKubepods := false; path != ""; {
			var name string
			name, path, _ = strings.Cut(path, "/")
			if uid, ok := podUID(name); ok && inKubepods {
				container, _, _ = strings.Cut(path, "/")
				return uid, container
			}
			inKubepods = name == ".." || isKubepods(name) || inKubepods && isQoS(name)
		}
	}
	return "", ""
}

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
		if err != nil {
			if exists(dir) { // else the pod has just ended
				errs = fmt.Errorf("read the work of pod %s: %w", uid, err)
			}
			continue
		}
		if pid, ok := first[uid]; ok {
			if work.Network, err = podTraffic(w.procfs, pid); err != nil && !gone(err) {
				errs = fmt.Errorf("read the work of pod %s: %w", uid, err)
			}
		}
		out[uid] = work
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
