package podresources

import (
	"bytes"
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
	text, err := readHead(filepath.Join(p.procfs, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	return parseProcessCgroup(text)
}

// parseProcessCgroup returns the UID of the pod that a process's cgroups, one of each hierarchy,
// belong to. The path is relative to the reader's own cgroup namespace, and may begin with "/..":
// what matters is the folder of a pod in it, the outermost if a pod runs a kubelet of its own.
func parseProcessCgroup(text []byte) string {
	for line := range bytes.Lines(text) {
		_, rest, _ := strings.Cut(string(bytes.TrimRight(line, "\n")), ":")
		_, path, _ := strings.Cut(rest, ":")
		for name := range strings.SplitSeq(path, "/") {
			if uid, ok := podUID(name); ok {
				return uid
			}
		}
	}
	return ""
}
