package podresources

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the search for all processes of pods.
const (
	// maxMemberSearch is the longest time between two searches. After a request for a new pod the time
	// is shorter, since its processes start now: [minProcessSearch], doubled after each search.
	maxMemberSearch = 10 * time.Second
	// maxMemberStep is how many processes one step examines: some 8 ms, even while other work of a
	// tick is due.
	maxMemberStep = 1 << 9
	// maxMembers is the highest number of processes of all pods together; others are omitted. Each pod
	// may always have its equal part, so that there are at most twice as many.
	maxMembers = 1 << 14
)

// PodMembers finds all processes of pods, except the monitors of CRI-O. A process that a pod starts
// is found within 10 s, plus a second for each 512 processes of the machine. Like [PodProcesses] it
// examines all processes of the procfs, in steps of bounded cost. It is safe for concurrent use.
type PodMembers struct {
	processes Processes
	now       func() time.Time
	atOnce    int // processes that one step examines
	most      int // highest number of processes of all pods

	mu      sync.Mutex
	known   map[string][]int // by the pods' UIDs, as of the last complete search
	asked   map[string]bool  // the pods that were requested last
	stepped time.Time        // the last step of a search
	pause   time.Duration    // before the next search
	search  *memberSearch    // the search in progress, or nil
}

// memberSearch is a search in progress.
type memberSearch struct {
	processWalk
	found map[string][]int
	count int
}

// NewPodMembers returns the finder for the procfs mounted at that path. It reads nothing yet.
func NewPodMembers(procfs string, now func() time.Time) *PodMembers {
	return &PodMembers{processes: NewProcesses(procfs), now: now, atOnce: maxMemberStep, most: maxMembers}
}

// Of returns the processes of each of the pods, by their UIDs, ascending, as far as they were found
// by the last search. A call makes at most one step of a search; without pods it does nothing. The
// slices must not be changed.
func (m *PodMembers) Of(uids []string) map[string][]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ask(uids)
	if len(m.asked) == 0 {
		return nil
	}
	if since := m.now().Sub(m.stepped); m.search != nil && since >= minProcessSearch || since >= m.pause || since < 0 {
		m.step()
	}
	out := make(map[string][]int, len(m.asked))
	for uid := range m.asked {
		if pids := m.known[uid]; pids != nil {
			out[uid] = pids
		}
	}
	return out
}

// ask records the requested pods.
func (m *PodMembers) ask(uids []string) {
	asked := make(map[string]bool, len(uids))
	for _, uid := range uids {
		if uid == "" {
			continue
		}
		asked[uid] = true
		if !m.asked[uid] {
			m.pause = minProcessSearch
		}
	}
	m.asked = asked
	if len(asked) == 0 {
		m.end(nil)
	}
}

// step makes a step of a search.
func (m *PodMembers) step() {
	m.stepped = m.now()
	if m.search == nil {
		m.search = &memberSearch{processWalk: m.processes.walk(), found: map[string][]int{}}
	}
	s := m.search
	if !s.step(m.atOnce, func(pid int) {
		uid := m.processes.podOfContained(pid)
		if m.asked[uid] && (s.count < m.most || len(s.found[uid]) < m.most/len(m.asked)) {
			s.found[uid] = append(s.found[uid], pid)
			s.count++
		}
	}) {
		return
	}
	for _, pids := range s.found {
		slices.Sort(pids)
	}
	m.end(s.found)
	m.pause = min(2*m.pause, maxMemberSearch)
}

// end ends the search in progress, if there is one.
func (m *PodMembers) end(found map[string][]int) {
	m.known = found
	if m.search != nil {
		m.search.close()
		m.search = nil
	}
}
