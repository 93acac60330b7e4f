package podresources

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the search for processes of pods.
const (
	// maxProcesses is how many processes one step of a search examines: some 40 ms.
	maxProcesses = 1 << 11

	// minProcessSearch and maxProcessSearch are the shortest and the longest time between two
	// searches; the shortest is also the time between two steps of one. The time grows while processes
	// of pods are missing.
	minProcessSearch = 500 * time.Millisecond
	maxProcessSearch = 15 * time.Second
)

// PodProcesses finds the first process of pods: the oldest one that runs in the pod's cgroup. It is
// that of the sandbox (pause), which the runtime starts before any container and keeps until the
// pod ends. If the runtime makes none (CRI-O, unless containers share the PID namespace), it is
// that of the oldest container. A pod can start any number of processes, and give them any name,
// but it cannot start an older one. Monitors of CRI-O, which may be in the pod's cgroup, do not
// count.
//
// It examines all processes of the procfs, since the numbers in a cgroup.procs are those of the
// reader's PID namespace, which need not be that of the procfs. It does so rarely, since it keeps
// what it found, and in steps, so that its share of the time is bounded however many processes
// there are. It is safe for concurrent use.
type PodProcesses struct {
	processes Processes
	now       func() time.Time
	atOnce    int // processes that one step examines

	mu       sync.Mutex
	known    map[string]process // by the pods' UIDs
	searched time.Time          // the last step of a search
	pause    time.Duration      // before the next search
	wanted   []string           // pods whose process the last search did not find
	search   *processSearch     // the search in progress, or nil
}

// process identifies a process, whose number another one may get later.
type process struct {
	pid     int
	started uint64 // clock ticks after the start of the machine
}

// NewPodProcesses returns the finder for the procfs mounted at that path. It reads nothing yet.
func NewPodProcesses(procfs string, now func() time.Time) *PodProcesses {
	return &PodProcesses{processes: NewProcesses(procfs), now: now, atOnce: maxProcesses}
}

// Of returns the first process of each of the pods, by their UIDs; it belonged to its pod during
// the call. Pods without a known process are omitted. Data of other pods are dropped.
func (p *PodProcesses) Of(uids []string) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make(map[string]process, len(uids))
	var missing []string
	for _, uid := range uids {
		if known, ok := p.known[uid]; ok && p.processes.alive(uid, known) {
			found[uid] = known
		} else if uid != "" && !slices.Contains(missing, uid) {
			missing = append(missing, uid)
		}
	}
	switch {
	case len(missing) == 0:
		p.abandon()
	case p.due(missing):
		p.step(missing, found)
	}
	p.known = found
	out := make(map[string]int, len(found))
	for uid, process := range found {
		out[uid] = process.pid
	}
	return out
}

// due reports whether to search now: soon for a new pod, at growing intervals for pods whose
// process was not found.
func (p *PodProcesses) due(missing []string) bool {
	if slices.ContainsFunc(missing, func(uid string) bool { return !slices.Contains(p.wanted, uid) }) {
		p.pause = minProcessSearch
	}
	pause := p.pause
	if p.search != nil {
		pause = minProcessSearch
	}
	return p.now().Sub(p.searched) >= pause
}

// step does one step of the search for the missing pods, and adds the result of a search that has
// ended.
func (p *PodProcesses) step(missing []string, found map[string]process) {
	p.searched = p.now()
	if p.search == nil {
		p.search = p.processes.newSearch(missing)
	}
	if !p.search.step(p.atOnce, p.search.look) {
		return
	}
	for _, uid := range missing {
		if first, ok := p.search.first[uid]; ok && p.processes.alive(uid, first) {
			found[uid] = first
		}
	}
	p.wanted = slices.DeleteFunc(missing, func(uid string) bool {
		_, ok := found[uid]
		return ok || !p.search.pods[uid]
	})
	p.abandon()
	p.pause = min(2*p.pause, maxProcessSearch)
}

// abandon ends the search in progress.
func (p *PodProcesses) abandon() {
	if p.search != nil {
		p.search.close()
		p.search = nil
	}
}

// processSearch examines all processes once for the first process of each of some pods. Its result
// is valid only at its end, since an older process may follow.
type processSearch struct {
	processWalk
	processes Processes
	pods      map[string]bool    // the wanted pods
	first     map[string]process // the oldest process so far, by pod
}

// newSearch starts a search, which finds nothing if the procfs can't be read.
func (p Processes) newSearch(pods []string) *processSearch {
	s := &processSearch{
		processWalk: p.walk(), processes: p, pods: make(map[string]bool, len(pods)), first: map[string]process{},
	}
	for _, uid := range pods {
		s.pods[uid] = true
	}
	return s
}

// look records a process as the first one of its pod if it is older than the recorded one.
func (s *processSearch) look(pid int) {
	uid := s.processes.podOfContained(pid)
	if !s.pods[uid] {
		return
	}
	started, ok := s.processes.started(pid)
	if !ok {
		return
	}
	before, known := s.first[uid]
	if !known || started < before.started || started == before.started && pid < before.pid {
		s.first[uid] = process{pid, started}
	}
}

// alive reports whether the process runs and is the pod's.
func (p Processes) alive(uid string, known process) bool {
	started, ok := p.started(known.pid)
	return ok && started == known.started && p.podOfContained(known.pid) == uid
}
