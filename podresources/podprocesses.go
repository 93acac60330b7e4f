package podresources

import (
	"slices"
	"sync"
	"time"
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
	// maxMembers is the highest number of processes of all pods together; others are omitted. Each pod
	// may always have its equal part, so that there are at most twice as many.
	maxMembers = 1 << 14
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
	walk    *processWalk    // the search in progress, or nil
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
		walk := s.processes.walk()
		s.walk, s.found, s.wanted = &walk, map[string]T{}, s.asked
	}
	if !s.walk.step(s.atOnce, func(pid int) {
		if uid := s.processes.podOfContained(pid); s.asked[uid] {
			add(s.found, uid, pid)
		}
	}) {
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
		s.walk.close()
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

// alive reports whether the process runs and is the pod's.
func (p Processes) alive(uid string, known process) bool {
	started, ok := p.started(known.pid)
	return ok && started == known.started && p.podOfContained(known.pid) == uid
}

// PodMembers finds all processes of pods. A process that a pod starts is found within 10 s, plus a
// second for each 512 processes of the machine.
type PodMembers struct {
	podSearch[[]int]
	most  int // highest number of processes of all pods
	count int // of the search in progress
}

// NewPodMembers returns the finder for the procfs mounted at that path. It reads nothing yet.
func NewPodMembers(procfs string, now func() time.Time) *PodMembers {
	return &PodMembers{podSearch: podSearch[[]int]{
		processes: NewProcesses(procfs), now: now, atOnce: maxMemberStep, longest: maxMemberSearch,
	}, most: maxMembers}
}

// Of returns the processes of each of the pods, by their UIDs, ascending, as far as they were found
// by the last search. Pods without any are omitted. The slices must not be changed.
func (m *PodMembers) Of(uids []string) map[string][]int {
	return m.of(uids, true, func(string, []int) bool { return true }, func(found map[string][]int, uid string, pid int) {
		if len(found) == 0 {
			m.count = 0
		}
		if m.count < m.most || len(found[uid]) < m.most/len(m.asked) {
			at, _ := slices.BinarySearch(found[uid], pid)
			found[uid] = slices.Insert(found[uid], at, pid)
			m.count++
		}
	})
}
