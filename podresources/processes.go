package podresources

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes finds the pods of the processes in a procfs.
type Processes struct{ procfs string }

// NewProcesses returns the processes of the procfs mounted at that path. It must show the host's
// PID namespace.
func NewProcesses(procfs string) Processes { return Processes{procfs} }

// PodUID returns the UID of the pod that a process belongs to, by its cgroup (proc(5),
// /proc/<pid>/cgroup); "" if the process belongs to no pod, is gone, or can't be read.
func (p Processes) PodUID(pid int) string {
	uid, _ := parseProcessCgroup(p.cgroup(pid))
	return uid
}

// crioMonitor is the prefix of the name of the folder of a container's monitor, which CRI-O puts
// into the pod's cgroup with conmon_cgroup = "pod" (OpenShift's default). Monitors are in the
// host's network namespace.
const crioMonitor = "crio-conmon-"

// podOfContained is PodUID for processes in containers and sandboxes; it returns "" for their
// monitors.
func (p Processes) podOfContained(pid int) string {
	uid, container := parseProcessCgroup(p.cgroup(pid))
	if strings.HasPrefix(container, crioMonitor) {
		return ""
	}
	return uid
}

// cgroup returns the cgroups of a process, nil if they can't be read.
func (p Processes) cgroup(pid int) []byte {
	text, err := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "cgroup"), maxCgroupFile)
	if err != nil {
		return nil
	}
	return text
}

// started returns the time at which a process started, in clock ticks after the start of the
// machine; false if it is gone, or has ended and waits for its parent.
func (p Processes) started(pid int) (uint64, bool) {
	text, err := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "stat"), maxCgroupFile)
	if err != nil {
		return 0, false
	}
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

// processWalk visits all processes of a procfs once, in steps.
type processWalk struct {
	folder *os.File // the procfs, of which a part is read; nil: it can't be read
}

// walk starts a walk, which visits nothing if the procfs can't be read.
func (p Processes) walk() processWalk {
	folder, _ := os.Open(p.procfs)
	return processWalk{folder}
}

// step calls look for the next n processes, and reports whether these were the last.
func (w processWalk) step(n int, look func(pid int)) (ended bool) {
	names, err := w.folder.Readdirnames(n)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			look(pid)
		}
	}
	return err != nil || len(names) < n
}

// close ends the walk.
func (w processWalk) close() { _ = w.folder.Close() } // it was only read
