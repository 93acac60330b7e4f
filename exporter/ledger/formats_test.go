package ledger_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// saga is a node that has some of everything that a state keeps: a partition, a claim that is
// shared by two pods, one that is made again twice under its name, one that a device plugin
// allocated, a pod that is gone soon, errors, peaks, distributions, advice.
type saga struct {
	*exportertest.History
	each func() // is called after each tick
	n    int    // number of ticks
}

func sagaConfig() ledger.Config {
	c := exportertest.LedgerConfig()
	c.MinLifetime = 5 * time.Second
	return c
}

func newSaga(t *testing.T) *saga {
	s := &saga{History: exportertest.NewHistory(t), each: func() {}}
	s.Ledger = ledger.New(sagaConfig())
	for name, h := range map[string]driver.Hardware{
		"gpu-0": {Model: "H100", PCI: "0000:01:00.0"}, "gpu-1": {CPUs: []int{0, 4}},
		"quarter": {Kind: driver.KindPartition, Model: "H100", Profile: "2g.20gb", Parent: "gpu-1", ParentShare: 0.25},
	} {
		h.UUID = name
		s.In.Inventory[jointest.ID(name)] = driver.Entry{
			Hardware: h, Capacity: []driver.Amount{{Resource: "memory", Value: 80 * gib}},
		}
	}
	return s
}

// play plays the saga up to the tick at which the states of the folders in testdata end.
func (s *saga) play() {
	s.hold("gpu-0", "a", "a-1", "p0")
	s.hold("quarter", "part", "part-1", "p4")
	s.ticks(3, time.Second)
	shared := s.hold("gpu-0", "shared", "shared-1", "p1", "p2")
	shared.ShareID, shared.Request = "share", "request"
	shared.Consumed = []driver.Amount{{Resource: "memory", Value: 20 * gib}}
	shared.ClaimLabels, shared.AllocatedAt = []string{"team", "x"}, s.Now.Add(-2*time.Second)
	shared.Holders[0].Meta = &podresources.PodMeta{
		OwnerKind: "Job", OwnerName: "job", WorkloadKind: "JobSet", WorkloadName: "set", Queue: "queue",
		Labels: []string{"app", "y"},
	}
	s.ticks(5, time.Second)
	plugin := s.hold("gpu-1", "", "", "p3")
	plugin.Claim = podresources.Claim{}
	s.ticks(2, time.Second)
	s.Free("a")
	s.ticks(5, time.Second)
	s.hold("gpu-0", "a", "a-2", "p0")
	s.ticks(3, time.Second)
	young := s.hold("gpu-0", "young", "young-1", "job-1")
	young.Holders[0].Meta = &podresources.PodMeta{OwnerKind: "Job", OwnerName: "job", Labels: []string{}}
	s.ticks(2, time.Second)
	s.Free("young")
	s.ticks(20, time.Second)
	s.ticks(45, 10*time.Second) // the first claim a is no longer kept
	s.Free("a")
	s.ticks(2, time.Second)
	s.hold("gpu-0", "a", "a-3", "p0")
	s.ticks(8, time.Second)
	s.Free("part") // right before the end
	s.ticks(2, time.Second)
}

func (s *saga) hold(device, claim, uid string, pods ...string) *podresources.Allocation {
	a := jointest.Allocation(device, claim, pods...)
	a.ClaimUID = uid
	s.In.View.Allocations = append(slices.Clone(s.In.View.Allocations), a)
	return &s.In.View.Allocations[len(s.In.View.Allocations)-1]
}

func (s *saga) ticks(n int, pause time.Duration) {
	for range n {
		s.n++
		for i, uuid := range []string{"gpu-0", "gpu-1", "quarter"} {
			s.ReadOf(uuid, s.readings(float64(i))...)
		}
		s.Pass(0)
		s.each()
		s.Now = s.Now.Add(pause)
	}
}

// readings returns readings that differ from device to device and from tick to tick.
func (s *saga) readings(device float64) []driver.Reading {
	swing := math.Mod(float64(s.n)*0.37+device*0.2, 1)
	seconds := s.Now.Sub(jointest.Start()).Seconds()
	read := func(q driver.Quantity, v float64, labels ...string) driver.Reading {
		r := driver.Reading{Quantity: q, Value: v}
		copy(r.Labels[:], labels)
		return r
	}
	out := []driver.Reading{
		read(driver.Utilization, swing), read(driver.MemoryUsed, (10+5*swing)*gib),
		read(driver.EngineUtilization, swing/2, "dram"), read(driver.EngineUtilization, swing/3, "copy"),
	}
	if device == 2 { // the parent has the rest
		return out
	}
	return append(out,
		read(driver.Power, 100+300*swing), read(driver.Energy, 1000+200*seconds+math.Floor(10*swing)),
		read(driver.IOBytes, 1e6*seconds, "pcie", "receive"), read(driver.IOBytes, 3e6*seconds, "nvlink", "transmit"),
		read(driver.Errors, math.Floor(seconds/15), "xid", "31"), read(driver.ThrottledSeconds, seconds/10, "power"),
	)
}

// sagaClock is the time since the saga began. That of a process that was killed is off by a
// microsecond.
func sagaClock(off time.Duration) (to func(time.Time) int64, from func(int64) time.Time) {
	to = func(t time.Time) int64 { return int64(t.Sub(jointest.Start()) + off) }
	return to, func(at int64) time.Time { return jointest.Start().Add(time.Duration(at)) }
}

// read returns the state of a folder.
func (s *saga) read(t *testing.T, path string) (k ledger.Kept) {
	copied := filepath.Join(t.TempDir(), "state") // it is written
	must.Do(t, os.CopyFS(copied, os.DirFS(path)))
	store := state.New(state.Config{
		Path: copied, Node: "node", Boot: "boot", Report: func(_ time.Duration, err error) {
			expect.OK(t, err)
		},
	})
	r := store.Restore(t.Context(), s.Now)
	must.That(t, r != nil && r.Continues && r.Former, "restored %+v", r)
	k.State, k.Changes = r.Part("ledger")
	k.Former = true
	return k
}

// account returns what the program shows after it has continued from a state: metrics, since when
// each counts, who held what, and the receipts of all claims after their end.
func (s *saga) account(t *testing.T, k ledger.Kept) string {
	s.Ledger, s.Dates, s.each = ledger.New(sagaConfig()), &exportertest.Dates{}, func() {}
	_, k.Clock = sagaClock(0)
	k.Time, k.Continues = s.Now.Add(-time.Second), true
	must.Do(t, s.Ledger.Restore(k, s.Now))
	s.Resume(k)
	s.ticks(1, time.Second)
	var b strings.Builder
	for line := range strings.Lines(exportertest.Text(t, s.Last)) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	var more []string
	for key, at := range bornOf(s.Last.Snapshot) {
		series := strings.TrimRight(key.series, ",")
		more = append(more, fmt.Sprintf("born %v %v %q %d\n", key.holder, key.pod, series, at.UnixNano()))
	}
	for p := range s.Ledger.Timeline().All() {
		at := func(t time.Time) int64 { return max(0, t.UnixMicro()) }
		more = append(more, fmt.Sprintf("period %v %v %v %v %v %v %v %v %v %d %d %v %v\n", p.Device, p.Claim, p.ClaimUID,
			p.ShareID, p.Pod, p.PodUID, p.Admin, p.Attribution, p.Older, at(p.From), at(p.To), p.FromDoubt, p.ToDoubt))
	}
	s.In.View.Allocations = nil
	for range 60 {
		s.ticks(1, time.Second)
		for _, c := range s.Last.Closed {
			more = append(more, closedText(&c))
		}
	}
	slices.Sort(more)
	return b.String() + strings.Join(more, "")
}

func labelsText(labels driver.Labels) []string {
	return strings.Fields(strings.Join(labels[:], " "))
}

func closedText(c *book.Closed) string {
	at := func(t time.Time) int64 { return max(0, t.UnixMicro()) }
	l := c.Life
	out := fmt.Sprintf("closed %v %s %d %d partial %v %s users %v held %.6f ±%.6f life", c.HolderKey, c.UID, at(c.Born),
		at(c.Ended), c.Partial, c.Attribution, c.Users, c.Held, c.HeldBound)
	for _, t := range []time.Time{l.Allocated, l.Waiting, l.Prepared, l.FirstActive, l.LastActive, l.Ended, l.Unprepared} {
		out += fmt.Sprint(" ", at(t))
	}
	for _, a := range c.Amounts {
		out += fmt.Sprintf(" %v%v=%.9g ±%.9g in %.6f", a.Quantity, labelsText(a.Labels), a.Value, a.Bound, a.Measured)
	}
	for _, v := range c.Witnessed {
		out += fmt.Sprintf(" %v%v=%.9g", v.Quantity, labelsText(v.Labels), v.Value)
	}
	return out + "\n"
}

// A process continues from a state, of this format or an earlier one, as the process that wrote it
// would have gone on, whether that ended or was killed. What it must show was written by the
// program of an earlier format, from the state that it wrote itself.
func TestFormats(t *testing.T) {
	for name, of := range map[string]struct {
		write func(s *saga, k *ledger.Kept)
		// used is how long a claim of a shared device used it. The program of format 2 did not keep that
		// of earlier claims of its name.
		used, usedOfFormat2 string
	}{
		"ended": {func(s *saga, k *ledger.Kept) {
			to, _ := sagaClock(0)
			s.each = func() { k.State = s.Ledger.AppendState(nil, to) }
		}, "485.5", "20"},
		"killed": {func(s *saga, k *ledger.Kept) {
			to, _ := sagaClock(1500 * time.Nanosecond)
			s.each = func() {
				if k.State == nil {
					k.State = s.Ledger.AppendState(nil, to)
				} else {
					k.Changes = append(k.Changes, s.Ledger.AppendChanges(nil, to))
				}
			}
		}, "485.499999", "19.999999000000003"},
	} {
		b := must.Get(os.ReadFile(filepath.Join("testdata", "format2", name+".txt")))(t)
		want := func(used string) []string { return strings.Split(strings.Replace(string(b), "USED", used, 1), "\n") }
		t.Run("of format 2 "+name, func(t *testing.T) {
			s := newSaga(t)
			s.play()
			k := s.read(t, filepath.Join("testdata", "format2", name))
			expect.Equal(t, "", want(of.usedOfFormat2), strings.Split(s.account(t, k), "\n"))
		})
		t.Run("of this format "+name, func(t *testing.T) {
			s, k := newSaga(t), ledger.Kept{}
			of.write(s, &k)
			s.play()
			expect.Equal(t, "", want(of.used), strings.Split(s.account(t, k), "\n"))
		})
	}
}
