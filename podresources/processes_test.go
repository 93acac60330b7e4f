package podresources

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

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

const testUID = "0a1b2c3d-0000-4000-8000-00000000000f"

func cgroupTexts() map[string]string {
	return map[string]string{
		"0::/kubepods.slice/kubepods-burstable.slice/" +
			"kubepods-burstable-pod0a1b2c3d_0000_4000_8000_00000000000f.slice/cri-containerd-ab.scope\n": testUID,
		"0::/../../kubepods-pod0a1b2c3d_0000_4000_8000_00000000000f.slice/cri-containerd-ab.scope\n": testUID,
		"12:pids:/user.slice\n3:memory:/kubepods/burstable/pod" + testUID +
			"/ab\n0::/\n": testUID,
		"0::/kubepods/pod" + testUID + "/ab/kubepods/pod11111111-0000-4000-8000-000000000000/cd\n": testUID,
		"0::/../../../besteffort/pod" + testUID + "/ab\n":                                          testUID,
		"0::/user.slice/user-0.slice/session-1.scope\n":                                            "",
		"0::/user.slice/user-0.slice/pod" + testUID + "/ab\n":                                      "",
		"0::/../../user.slice/burstable/pod" + testUID + "/ab\n":                                   "",
		"0::/user.slice/burstable/pod" + testUID + "\n":                                            "",
		"0::/pod" + testUID + "\n":                                                                 "",
		"0::/kubepods/burstable/ab/pod" + testUID + "\n":                                           "",
		"0::/kubepods/pod.x/x":                                                                     "",
		"0::":                                                                                      "",
		"":                                                                                         "",
		":\n::\n":                                                                                  "",
	}
}

func TestPodOfProcess(t *testing.T) {
	for text, want := range cgroupTexts() {
		procfs := t.TempDir()
		must.Do(t, os.Mkdir(filepath.Join(procfs, "42"), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(procfs, "42", "cgroup"), []byte(text), 0o600))
		p := NewProcesses(procfs)
		expect.Is(t, p.PodUID(42), want, "%q", text)
		expect.Is(t, p.PodUID(43), "", "a process that is not there is of the pod")
	}
}

const (
	cpuStat    = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 0\n"
	memoryStat = "anon 1000000\nfile 500000\nkernel 7\npgfault 1234\npgmajfault 5\n"
	ioStat     = "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=999 dios=1\n8:0 rbytes=1 wbytes=0 rios=1 wios=0\n"
	memoryV1   = "cache 1\nrss 2\npgfault 3\ntotal_cache 500000\ntotal_rss 1000000\ntotal_pgfault 1234\n"
	blkio      = "259:0 Read 4096\n259:0 Write 8193\n259:0 Sync 12289\n259:0 Total 12289\nTotal 12289\n"
	netDev     = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|` +
		`bytes    packets errs drop fifo colls carrier compressed
    lo: 9999999    9    0    0    0     0          0         0 9999999    9    0    0    0     0       0          0
  eth0:    7000   70    0    0    0     0          0         0     300    3    0    0    0     0       0          0
`
)

// The work of a pod is the same from both versions of cgroups. What can't be read is NaN, or an
// error, never 0.
func TestPodWorks(t *testing.T) {
	const burstable = "kubepods/burstable/pod" + uidA
	whole := PodWork{CPU: 2.5, Storage: 12289, Faults: 1234, Memory: 1500000, Network: 7300}
	without := func(edit func(*PodWork)) map[string]PodWork {
		w := whole
		edit(&w)
		return map[string]PodWork{uidA: w}
	}
	for name, test := range map[string]struct {
		v1      bool
		change  func(c cgroupTree, procfs string)
		want    map[string]PodWork
		failing bool
	}{
		"version 2": {want: without(func(*PodWork) {})},
		"version 1": {v1: true, want: without(func(*PodWork) {})},
		"no io controller": {
			change: func(c cgroupTree, _ string) { c.remove(burstable + "/io.stat") },
			want:   without(func(w *PodWork) { w.Storage = math.NaN() }),
		},
		"no blkio": {
			v1: true, change: func(c cgroupTree, _ string) { c.remove("blkio/" + burstable) },
			want: without(func(w *PodWork) { w.Storage = math.NaN() }),
		},
		"no cpu.stat": {
			change:  func(c cgroupTree, _ string) { c.remove(burstable + "/cpu.stat") },
			failing: true, want: map[string]PodWork{},
		},
		"a torn memory.stat": {
			change:  func(c cgroupTree, _ string) { c.write(burstable+"/memory.stat", "anon 100\nfile 1") },
			failing: true, want: map[string]PodWork{},
		},
		"the host's network": {
			change: func(_ cgroupTree, procfs string) {
				path := func(pid string) string { return filepath.Join(procfs, pid, "net", "dev") }
				must.Do(t, os.Remove(path("1")))
				must.Do(t, os.Link(path("300"), path("1")))
			},
			want: without(func(w *PodWork) { w.Network = math.NaN() }),
		},
		"it has ended": {
			change: func(c cgroupTree, _ string) { c.remove(burstable) }, want: map[string]PodWork{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newCgroupTree(t, test.v1)
			for file, text := range map[string]string{"cpu.stat": cpuStat, "memory.stat": memoryStat, "io.stat": ioStat} {
				if !test.v1 {
					tree.mkdir(burstable)
					tree.write(burstable+"/"+file, text)
				}
			}
			for file, text := range map[string]string{
				"cpuacct/" + burstable + "/cpuacct.usage":                           "2500000000\n",
				"memory/" + burstable + "/memory.stat":                              memoryV1,
				"blkio/" + burstable + "/blkio.throttle.io_service_bytes_recursive": blkio,
			} {
				if test.v1 {
					tree.mkdir(filepath.Dir(file))
					tree.write(file, text)
				}
			}
			procfs, processes := newProcfsTree(t)
			procfs.process(300, uidA, 5000)
			for _, pid := range []string{"1", "300"} {
				dir := filepath.Join(procfs.path, pid, "net")
				must.Do(t, os.MkdirAll(dir, 0o755))
				must.Do(t, os.WriteFile(filepath.Join(dir, "dev"), []byte(netDev), 0o644))
			}
			cgroups := NewCgroups(tree.sysfs, time.Now)
			cgroups.scan(func(string) {})
			if test.change != nil {
				test.change(tree, procfs.path)
			}
			got, err := NewPodWorks(cgroups, processes, procfs.path).Of([]string{uidA, uidNever})
			expect.That(t, (err != nil) == test.failing, "the error is %v", err)
			expect.Equal(t, "", test.want, got, cmpopts.EquateNaNs())
		})
	}
}

// Whatever the files of the kernel have, no UID is unusable, no sum is negative, and no start time
// is made up.
func FuzzKernelFiles(f *testing.F) {
	seeds := []string{
		cpuStat, memoryStat, ioStat, memoryV1, blkio, netDev, "1\n", "259:0 rbytes=-1",
		"1 (a b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 33 1 1", ") S",
		"1 (x) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 99999999999999999999 1",
	}
	for _, text := range slices.AppendSeq(seeds, maps.Keys(cgroupTexts())) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sums, err := parseStat(text, false, "", "rbytes", "Write")
		traffic, failed := parseTraffic(text)
		expect.That(t, (err != nil || slices.Min(sums) >= 0) && (failed != nil || traffic >= 0), "%v, %v", sums, traffic)
		uid, _ := parseProcessCgroup(text)
		expect.That(t, uid == "" || validUID(uid), "%q is no UID", uid)
		started, running := parseStarted(text)
		expect.That(t, !running && started == 0 || running && bytes.Contains(text, []byte(strconv.FormatUint(started, 10))),
			"started %d, %v", started, running)
	})
}
