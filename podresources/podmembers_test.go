package podresources

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func newMembers(t *testing.T) (*procfsTree, *PodMembers) {
	t.Helper()
	procfs, _ := newProcfsTree(t)
	return procfs, NewPodMembers(procfs.path, func() time.Time { return procfs.clock })
}

func TestPodMembers(t *testing.T) {
	procfs, m := newMembers(t)
	procfs.process(300, podA, 1)
	procfs.process(20, podA, 2)
	procfs.process(21, podB, 3)
	procfs.in(50, "/kubepods/pod"+podA+"/crio-conmon-0123.scope", 'S', 4000) // a monitor, on the host
	procfs.in(52, "/system.slice/"+podA, 'S', 1)                             // is none of the pod
	for _, step := range []struct {
		name  string
		do    func()
		later time.Duration
		of    []string
		want  map[string][]int
	}{
		{"all, of the pods that are asked for", func() {}, 0, []string{podA, ""}, map[string][]int{podA: {20, 300}}},
		{"not again at once", func() { procfs.process(22, podA, 4) }, 0, []string{podA}, map[string][]int{podA: {20, 300}}},
		{
			"another pod is searched for soon", func() {}, minProcessSearch,
			[]string{podA, podB},
			map[string][]int{podA: {20, 22, 300}, podB: {21}},
		},
		{
			"a process of a new pod, too", func() { procfs.process(23, podB, 5) }, 2 * minProcessSearch,
			[]string{podA, podB},
			map[string][]int{podA: {20, 22, 300}, podB: {21, 23}},
		},
		{
			"those that have ended are named until the next search", func() { procfs.exit(21); procfs.exit(23) }, 0,
			[]string{podA, podB},
			map[string][]int{podA: {20, 22, 300}, podB: {21, 23}},
		},
		{"and then not", func() {}, maxMemberSearch, []string{podA, podB}, map[string][]int{podA: {20, 22, 300}}},
		{"for no pod nothing is done", func() {}, time.Hour, nil, map[string][]int{}},
	} {
		procfs.clock = procfs.clock.Add(step.later)
		step.do()
		expect.Equal(t, step.name, step.want, m.Of(step.of))
	}
	expect.That(t, m.known == nil && m.walk == nil, "what nobody asks for is remembered")
}

// A pod with too many processes does not displace processes of other pods, in whatever order the
// kernel lists them.
func TestPodMembersAreShared(t *testing.T) {
	procfs, m := newMembers(t)
	const podC = "cccccccc-0000-4000-8000-000000000000"
	m.most = 30
	for pid := 1; pid <= 60; pid++ {
		uid := podA
		if pid <= 8 {
			uid = podB
		} else if pid > 52 {
			uid = podC
		}
		procfs.process(pid, uid, pid)
	}
	got := m.Of([]string{podA, podB, podC})
	if n := len(got[podA]); n < m.most/3 || n > m.most || len(got[podB]) != 8 || len(got[podC]) != 8 {
		t.Errorf("%d processes are named of a pod with 44, %d and %d of pods with 8", n, len(got[podB]), len(got[podC]))
	}
}

// The time between two searches for the same pods grows to 10 s.
func TestPodMembersSearchSeldom(t *testing.T) {
	procfs, m := newMembers(t)
	procfs.process(1, podA, 1)
	searches := 0
	for range 60 {
		before := m.stepped
		m.Of([]string{podA})
		if !m.stepped.Equal(before) {
			searches++
		}
		procfs.clock = procfs.clock.Add(time.Second)
	}
	expect.That(t, searches >= 6 && searches <= 10,
		"%d searches in a minute, want one every 10 s and some at first", searches)
}
