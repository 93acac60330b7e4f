package podresources

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes finds the pods of processes in a procfs.
type Processes struct{ procfs string }

// NewProcesses returns the processes of the procfs mounted at that path. It must show the host's
// PID namespace.
func NewProcesses(procfs string) Processes { return Processes{procfs} }

// PodUID returns the UID of the pod that a process belongs to, by its cgroup (proc(5),
// /proc/<pid>/cgroup); "" for one that is no pod's, is gone, or can't be read.
func (p Processes) PodUID(pid int) string {
	uid, _ := parseProcessCgroup(p.cgroup(pid))
	return uid
}

// crioMonitor is how the folder of a container's monitor begins, which CRI-O puts into the pod's
// cgroup with conmon_cgroup = "pod" (OpenShift's default). Monitors are in the host's network
// namespace.
const crioMonitor = "crio-conmon-"

// podOfContained is PodUID for processes in containers and sandboxes; "" for a monitor of them.
func (p Processes) podOfContained(pid int) string {
	uid, container := parseProcessCgroup(p.cgroup(pid))
	if strings.HasPrefix(container, crioMonitor) {
		return ""
	}
	return uid
}

// cgroup returns the cgroups of a process, nil if they can't be read.
func (p Processes) cgroup(pid int) []byte {
	text, err := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil
	}
	return text
}

// started returns the time at which a process started, in clock ticks after the start of the
// machine; false for one that is gone, or that has ended and waits for its parent.
func (p Processes) started(pid int) (uint64, bool) {
	text, err := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	return parseStarted(text)
}

// parseStarted reads the fields 3 and 22 of a /proc/<pid>/stat (proc_pid_stat(5)). The second field
// is in parentheses, and may have any character.
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

// parseProcessCgroup returns the UID of the pod that a process's cgroups, one of each hierarchy,
// belong to, and the folder in the pod's, which is the container's. A pod's folder is in that of a
// quality of service or in kubepods. The path is relative to the reader's own cgroup namespace,
// and may begin with "/.." in place of these. If a pod runs a kubelet of its own, the outermost pod
// counts.
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

// processWalk looks once at all processes of a procfs, in steps.
type processWalk struct {
	folder *os.File // the procfs, of which a part is read; nil: it can't be read
}

// walk starts a walk, which sees no process if the procfs can't be read.
func (p Processes) walk() processWalk {
	folder, _ := os.Open(p.procfs)
	return processWalk{folder}
}

// step calls look for the next n processes, and reports whether these were the last ones.
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
func (w processWalk) close() { _ = w.folder.Close() } // of what was only read
