package podresources

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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

// Whatever the files have, no sum is negative, and a value that is not a number is an error.
func FuzzPodWork(f *testing.F) {
	for _, text := range []string{cpuStat, memoryStat, ioStat, memoryV1, blkio, netDev, "1\n", "", "259:0 rbytes=-1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sums, err := parseStat(text, false, "", "rbytes", "Write")
		traffic, failed := parseTraffic(text)
		if err == nil && !(slices.Min(sums) >= 0) || failed == nil && !(traffic >= 0) {
			t.Errorf("%v, %v", sums, traffic)
		}
	})
}
