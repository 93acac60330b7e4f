package podresources

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// procfsTree is a procfs of processes that are in pods, and a clock.
type procfsTree struct {
	t     *testing.T
	path  string
	clock time.Time
}

func (p *procfsTree) process(pid int, uid string) {
	p.t.Helper()
	dir := filepath.Join(p.path, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod"+uid+"/container\n"),
		0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *procfsTree) exit(pid int) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.path, strconv.Itoa(pid))); err != nil {
		p.t.Fatal(err)
	}
}

func TestPodProcesses(t *testing.T) {
	const a, b = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
	procfs := &procfsTree{t: t, path: t.TempDir(), clock: time.Unix(1_800_000_000, 0)}
	p := NewPodProcesses(procfs.path, func() time.Time { return procfs.clock })
	if err := os.Mkdir(filepath.Join(procfs.path, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	for pid := 100; pid < 110; pid++ {
		procfs.process(pid, a)
	}
	for _, step := range []struct {
		name  string
		do    func()
		later time.Duration
		of    []string
		want  map[string][]int
	}{
		{
			"a few of the lowest, and none of a pod without any", func() {}, 0,
			[]string{a, b, ""},
			map[string][]int{a: {100, 101, 102, 103}},
		},
		{"not again at once", func() { procfs.process(9, b) }, 0, []string{a, b}, map[string][]int{a: {100, 101, 102, 103}}},
		{"but later", func() {}, time.Second, []string{a, b}, map[string][]int{a: {100, 101, 102, 103}, b: {9}}},
		{
			"one has ended, another has a process of the other pod in its place",
			func() { procfs.exit(100); procfs.process(101, b) },
			0,
			[]string{a, b},
			map[string][]int{a: {102, 103}, b: {9}},
		},
		{
			"all that are known have ended",
			func() { procfs.exit(102); procfs.exit(103) },
			time.Second,
			[]string{a},
			map[string][]int{a: {104, 105, 106, 107}},
		},
		{
			"a pod that comes is searched for at once", func() {}, time.Second,
			[]string{a, b},
			map[string][]int{a: {104, 105, 106, 107}, b: {9, 101}},
		},
	} {
		procfs.clock = procfs.clock.Add(step.later)
		step.do()
		if diff := cmp.Diff(step.want, p.Of(step.of)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// A pod that is not found is searched for ever more seldom.
func TestPodProcessesSearchesSeldom(t *testing.T) {
	const missing = "aaaaaaaa-0000-4000-8000-000000000000"
	clock := time.Unix(1_800_000_000, 0)
	p := NewPodProcesses(t.TempDir(), func() time.Time { return clock })
	searches := 0
	for range 600 { // a minute
		before := p.searched
		p.Of([]string{missing})
		if !p.searched.Equal(before) {
			searches++
		}
		clock = clock.Add(100 * time.Millisecond)
	}
	if searches < 5 || searches > 9 {
		t.Errorf("%d searches in a minute, want some", searches)
	}
}
