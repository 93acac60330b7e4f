package podresources

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the search for processes of pods.
const (
	// maxProcesses is how many processes one step of a search looks at: some 40 ms.
	maxProcesses = 1 << 11

	// minProcessSearch and maxProcessSearch are the shortest and the longest time between two
	// searches, and the shortest is the time between two steps of one. It grows while pods have no
	// process that can be found.
	minProcessSearch = 500 * time.Millisecond
	maxProcessSearch = 15 * time.Second
)

// PodProcesses finds the first process of pods: the oldest one that runs in the pod's cgroup. It is
// that of the sandbox (pause), which the runtime starts before any container and keeps until the
// pod ends. Where the runtime makes none (CRI-O, unless containers share the PID namespace), it is
// that of the oldest container. A pod can start any number of processes, and give them any name,
// but no older one. Monitors of CRI-O, which may be in the pod's cgroup, are no processes of the
// pod.
//
// It looks at all processes of the procfs, since the numbers that a cgroup.procs shows are those of
// the reader's PID namespace, which need not be the procfs's; but rarely, since it remembers what
// it found, and in steps: however many processes pods have and start, its share of the time is
// bounded. It is safe for concurrent use.
type PodProcesses struct {
	processes Processes
	now       func() time.Time
	atOnce    int // processes that one step looks at

	mu       sync.Mutex
	known    map[string]process // by the pods' UIDs
	searched time.Time          // the last step of a search
	pause    time.Duration      // before the next search
	wanted   []string           // those that the last search did not find
	search   *processSearch     // in progress; nil: none
}

// process is a process of which the number may become that of another.
type process struct {
	pid     int
	started uint64 // clock ticks after the start of the machine
}

// NewPodProcesses returns the pods' processes of the procfs mounted at that path. It reads nothing
// yet.
func NewPodProcesses(procfs string, now func() time.Time) *PodProcesses {
	return &PodProcesses{processes: NewProcesses(procfs), now: now, atOnce: maxProcesses}
}

// Of returns the first process of each of the pods, by their UIDs. It was of its pod during the
// call. Pods of which it is not known are not in the answer. What is remembered of other pods is
// forgotten.
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

// due reports whether to search now: soon for a new pod, later and later for those that were not
// found.
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

// step does one step of the search for the missing pods, and adds what a search that has ended has
// found.
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

// processSearch looks once at all processes for the first one of each of some pods. What was found
// before its end is not sure: an older process may come.
type processSearch struct {
	processWalk
	processes Processes
	pods      map[string]bool    // those that are searched for
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

// look takes a process for the first of its pod if it is older than what was seen.
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
