package podresources

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// procfsTree is a procfs with processes of pods, and a clock.
type procfsTree struct {
	t     *testing.T
	path  string
	clock time.Time
}

// process creates a process of a pod's container with its start time.
func (p *procfsTree) process(pid int, uid string, started int) {
	p.t.Helper()
	p.in(pid, "/kubepods/pod"+uid+"/container", 'S', started)
}

// in creates a process in a cgroup.
func (p *procfsTree) in(pid int, cgroup string, state rune, started int) {
	p.t.Helper()
	dir := filepath.Join(p.path, strconv.Itoa(pid))
	must.Do(p.t, os.MkdirAll(dir, 0o755))
	for file, text := range map[string]string{
		"cgroup": "0::" + cgroup + "\n",
		"stat": fmt.Sprintf("%d (a) S 1 (b\n) %c 1%s %d 4096 100 18446744073709551615\n", pid, state,
			strings.Repeat(" 7", 17), started),
	} {
		must.Do(p.t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
}

func (p *procfsTree) exit(pid int) {
	p.t.Helper()
	must.Do(p.t, os.RemoveAll(filepath.Join(p.path, strconv.Itoa(pid))))
}

const podA, podB = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"

func newProcfsTree(t *testing.T) (*procfsTree, *PodProcesses) {
	t.Helper()
	procfs := &procfsTree{t: t, path: t.TempDir(), clock: time.Unix(1_800_000_000, 0)}
	must.Do(t, os.Mkdir(filepath.Join(procfs.path, "sys"), 0o755))
	return procfs, NewPodProcesses(procfs.path, func() time.Time { return procfs.clock })
}

func TestPodProcesses(t *testing.T) {
	procfs, p := newProcfsTree(t)
	for pid := 100; pid < 110; pid++ {
		procfs.process(pid, podA, 5000+pid)
	}
	procfs.process(300, podA, 5000)                                              // the sandbox
	procfs.in(50, "/kubepods/pod"+podA+"/crio-conmon-0123.scope", 'S', 4000)     // a monitor, on the host
	procfs.in(51, "/kubepods/pod"+podA+"/container", 'Z', 4000)                  // has ended
	procfs.in(52, "/system.slice/"+podA, 'S', 1)                                 // is none of the pod
	procfs.in(53, "/kubepods/pod"+podA+"/container/crio-conmon-x/", 'S', 50_000) // a folder that the container made
	for _, step := range []struct {
		name  string
		do    func()
		later time.Duration
		of    []string
		want  map[string]int
	}{
		{"the oldest, and none of a pod without any", func() {}, 0, []string{podA, podB, ""}, map[string]int{podA: 300}},
		{"not again at once", func() { procfs.process(9, podB, 6000) }, 0, []string{podA, podB}, map[string]int{podA: 300}},
		{"but later", func() {}, time.Second, []string{podA, podB}, map[string]int{podA: 300, podB: 9}},
		{
			"it has ended, and another process of the pod has its number",
			func() { procfs.process(300, podA, 7000) },
			0,
			[]string{podA, podB},
			map[string]int{podB: 9},
		},
		{"the next one", func() {}, time.Second, []string{podA, podB}, map[string]int{podA: 100, podB: 9}},
		{
			"it has ended, and one of the other pod has its number",
			func() { procfs.exit(100); procfs.process(100, podB, 5100) },
			0,
			[]string{podA, podB},
			map[string]int{podB: 9},
		},
		{
			"all but the youngest have ended",
			func() {
				for pid := 100; pid < 110; pid++ {
					procfs.exit(pid)
				}
				procfs.exit(300)
			},
			time.Second,
			[]string{podA},
			map[string]int{podA: 53},
		},
		{
			"a pod that comes is searched for at once", func() {}, time.Second,
			[]string{podA, podB},
			map[string]int{podA: 53, podB: 9},
		},
	} {
		procfs.clock = procfs.clock.Add(step.later)
		step.do()
		expect.Equal(t, step.name, step.want, p.Of(step.of))
	}
}

// A call reads a bounded number of processes, no matter how many exist. No process counts as the
// first one before all have been read.
func TestPodProcessesSearchesInSteps(t *testing.T) {
	procfs, p := newProcfsTree(t)
	p.atOnce = 10
	const others = 30
	for pid := range others {
		must.Do(t, os.Mkdir(filepath.Join(procfs.path, strconv.Itoa(1+pid)), 0o755))
	}
	procfs.process(others+1, podA, 5001)
	procfs.process(others+2, podA, 5000)
	steps := 0
	for ; len(p.Of([]string{podA})) == 0; steps++ {
		must.That(t, steps <= 10, "it is not found")
		got := p.Of([]string{podA})
		expect.That(t, len(got) == 0, "a second step at the same time finds %v", got)
		procfs.clock = procfs.clock.Add(minProcessSearch)
	}
	if want := map[string]int{podA: others + 2}; !maps.Equal(p.Of([]string{podA}), want) || steps < 3 {
		t.Errorf("%v after %d steps, want %v after 3", p.Of([]string{podA}), steps, want)
	}
}

// A search for other pods that is in progress may have missed a new pod: the new pod has its own
// search.
func TestPodProcessesDuringSearch(t *testing.T) {
	procfs, p := newProcfsTree(t)
	p.atOnce = 3 // of 4 entries
	procfs.process(1, podA, 5000)
	procfs.process(2, podB, 5001)
	procfs.process(3, podB, 5002)
	p.Of([]string{podA})
	must.That(t, p.walk != nil, "the search has ended with its first step")
	if p.Of(nil); p.walk != nil {
		t.Error("a search goes on for no pod")
	}
	for _, tc := range []struct {
		of   []string
		want map[string]int
	}{
		{[]string{podA}, map[string]int{}},
		{[]string{podA, podB}, map[string]int{podA: 1}},
		{[]string{podA, podB}, map[string]int{podA: 1}},
		{[]string{podA, podB}, map[string]int{podA: 1, podB: 2}},
	} {
		procfs.clock = procfs.clock.Add(minProcessSearch)
		if got := p.Of(tc.of); !maps.Equal(got, tc.want) {
			t.Errorf("%v, want %v", got, tc.want)
		}
	}
}

func TestPodProcessesWithoutProcfs(t *testing.T) {
	p := NewPodProcesses(filepath.Join(t.TempDir(), "none"), time.Now)
	got := p.Of([]string{podA})
	expect.That(t, len(got) == 0 && p.walk == nil, "found %v", got)
}

func FuzzStarted(f *testing.F) {
	f.Add([]byte("1 (a b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 33 1 1"))
	f.Add([]byte("1 (x) Z 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 33 1 1"))
	f.Add([]byte(") S"))
	f.Add([]byte("1 (x) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 99999999999999999999 1"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		if started, running := parseStarted(stat); !running && started != 0 ||
			running && !strings.Contains(string(stat), strconv.FormatUint(started, 10)) {
			t.Errorf("parseStarted(%q) = %d, %v", stat, started, running)
		}
	})
}
