package podresources

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Bounds of the search for processes of pods.
const (
	maxProcesses       = 1 << 16 // that are looked at
	maxProcessesPerPod = 4       // that are remembered

	// minProcessSearch and maxProcessSearch are the shortest and the longest time between two
	// searches. It grows while pods have no process that can be found.
	minProcessSearch = 500 * time.Millisecond
	maxProcessSearch = 15 * time.Second
)

// PodProcesses finds processes of pods. It looks at all processes of the procfs, since the numbers
// that a cgroup.procs shows are those of the reader's PID namespace, which need not be the
// procfs's; but rarely, since it remembers a few of each pod. It is safe for concurrent use.
type PodProcesses struct {
	processes Processes
	now       func() time.Time

	mu       sync.Mutex
	known    map[string][]int // by the pods' UIDs
	searched time.Time
	pause    time.Duration // before the next search
	wanted   []string      // those that the last search did not find
}

// NewPodProcesses returns the pods' processes of the procfs mounted at that path. It reads nothing
// yet.
func NewPodProcesses(procfs string, now func() time.Time) *PodProcesses {
	return &PodProcesses{processes: NewProcesses(procfs), now: now}
}

// Of returns a few processes of each of the pods, by their UIDs. Each of them was of its pod during
// the call. Pods of which no process is known are not in the answer. What is remembered of other
// pods is forgotten.
func (p *PodProcesses) Of(uids []string) map[string][]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make(map[string][]int, len(uids))
	var missing []string
	for _, uid := range uids {
		if alive := p.alive(uid); len(alive) > 0 {
			found[uid] = alive
		} else if uid != "" && !slices.Contains(missing, uid) {
			missing = append(missing, uid)
		}
	}
	if p.due(missing) {
		p.wanted = p.search(missing, found)
	}
	p.known = found
	return found
}

// alive returns those of the pod's known processes that are the pod's still.
func (p *PodProcesses) alive(uid string) []int {
	return slices.DeleteFunc(slices.Clone(p.known[uid]), func(pid int) bool { return p.processes.PodUID(pid) != uid })
}

// due reports whether to search for these pods now: soon for a new one, later and later for those
// that were not found.
func (p *PodProcesses) due(missing []string) bool {
	if len(missing) == 0 {
		return false
	}
	if slices.ContainsFunc(missing, func(uid string) bool { return !slices.Contains(p.wanted, uid) }) {
		p.pause = minProcessSearch
	}
	now := p.now()
	if now.Sub(p.searched) < p.pause {
		return false
	}
	p.searched, p.pause = now, min(2*p.pause, maxProcessSearch)
	return true
}

// search looks at all processes, adds those of the missing pods, and returns which are missing
// still.
func (p *PodProcesses) search(missing []string, found map[string][]int) []string {
	for _, pid := range p.list() {
		uid := p.processes.PodUID(pid)
		if len(found[uid]) < maxProcessesPerPod && slices.Contains(missing, uid) {
			found[uid] = append(found[uid], pid)
		}
	}
	return slices.DeleteFunc(missing, func(uid string) bool { return len(found[uid]) > 0 })
}

// list returns the numbers of the processes, ascending: a pod's first process is mostly the one
// that lives longest.
func (p *PodProcesses) list() []int {
	folder, err := os.Open(p.processes.procfs)
	if err != nil {
		return nil
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(maxProcesses) // what was read before an error is there
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, cmp.Compare)
	return pids
}
