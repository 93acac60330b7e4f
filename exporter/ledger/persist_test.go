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

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// log is what a ledger wrote.
type log struct{ ledger.Kept }

func clockOf(t time.Time) int64 { return t.UnixNano() }
func timeOf(at int64) time.Time { return time.Unix(0, at) }

// write adds the whole state at the first call, and then the changes of each tick.
func (k *log) write(l *ledger.Ledger, now time.Time) {
	k.Time, k.Clock, k.Continues = now, timeOf, true
	if k.State == nil {
		k.State = l.AppendState([]byte{}, clockOf)
		return
	}
	k.Changes = append(k.Changes, l.AppendChanges(nil, clockOf))
}

// restored returns a ledger that continues from what another one wrote.
func restored(t exportertest.TB, k ledger.Kept, now time.Time) *ledger.Ledger {
	t.Helper()
	l := ledger.New(exportertest.LedgerConfig())
	err := l.Restore(k, now)
	must.That(t, err == nil, "restore: %v", err)
	return l
}

// A restored ledger continues where the earlier one ended: no counter is lower than it was, and
// each counts since the same time.
func TestRestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewWorld(t)
		l := ledger.New(exportertest.LedgerConfig())
		var k log
		var s *book.Snapshot
		advance := func() {
			w.Step(exportertest.Pauses())
			s = l.Advance(join.Join(w.Input()), w.Now)
			k.write(l, w.Now)
		}
		for range rapid.IntRange(1, 3).Draw(t, "processes") {
			for range rapid.IntRange(2, 25).Draw(t, "ticks") {
				advance()
			}
			before := exportertest.Scrape(t, exportertest.Whole(s))
			born := bornOf(s)
			l = restored(t, k.Kept, w.Now)
			k = log{}
			advance()
			after := exportertest.Scrape(t, exportertest.Whole(s))
			checkGoesOn(t, before, after)
			for key, at := range bornOf(s) {
				if was, known := born[key]; known && !was.Equal(at) {
					t.Fatalf("%v counts since %v, and before since %v", key, at, was)
				}
			}
		}
	})
}

func checkGoesOn(t *rapid.T, before, after exportertest.Scraped) {
	for family, series := range before {
		if !strings.HasSuffix(family, "_total") {
			continue
		}
		for key, value := range series {
			if now, there := after[family][key]; there && now < value*(1-1e-12) {
				t.Fatalf("%s{%s} was %v, and goes on with %v", family, key, value, now)
			} else if !there && strings.HasPrefix(family, "dra_claim") {
				t.Logf("%s{%s} is gone", family, key)
			}
		}
	}
}

type bornKey struct {
	holder book.HolderKey
	pod    bool
	series string
}

// bornOf returns the time since which each counter of the metrics counts.
func bornOf(s *book.Snapshot) map[bornKey]time.Time {
	out := map[bornKey]time.Time{}
	add := func(key book.HolderKey, pod bool, values []book.Value) {
		for _, v := range values {
			if !v.Born.IsZero() {
				out[bornKey{key, pod, v.Quantity.String() + strings.Join(v.Labels[:], ",")}] = v.Born
			}
		}
	}
	for i := range s.Devices {
		add(book.HolderKey{Device: s.Devices[i].ID}, false, s.Devices[i].Values)
	}
	for i := range s.Claims {
		add(*s.Claims[i].HolderKey, false, s.Claims[i].Metrics().Values)
	}
	for i := range s.Pods {
		add(*s.Pods[i].HolderKey, true, s.Pods[i].Metrics().Values)
	}
	return out
}

// A state with all changes after it restores the same ledger as the whole state at the end.
func TestChangesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewWorld(t)
		l := ledger.New(exportertest.LedgerConfig())
		var k log
		for range rapid.IntRange(2, 40).Draw(t, "ticks") {
			w.Step(exportertest.Pauses())
			l.Advance(join.Join(w.Input()), w.Now)
			k.write(l, w.Now)
			if b := l.AppendUnmarked(nil, clockOf); len(b) > 0 {
				t.Fatalf("%q has changed without being marked", b)
			}
		}
		whole := ledger.Kept{State: l.AppendState(nil, clockOf), Clock: timeOf, Time: w.Now, Continues: true}
		one, other := restored(t, k.Kept, w.Now), restored(t, whole, w.Now)
		for range 3 {
			w.Step(exportertest.Pauses())
			in := w.Input()
			a, b := one.Advance(join.Join(in), w.Now), other.Advance(join.Join(in), w.Now)
			exportertest.SameText(t, exportertest.Text(t, exportertest.Whole(a)), exportertest.Text(t, exportertest.Whole(b)))
		}
	})
}

// If accounts follow each other in a circle, Restore takes each account once, and returns an error
// if one is left.
func TestCircleOfAccounts(t *testing.T) {
	for last, malformed := range map[bool]bool{false: true, true: false} { // whether a further one follows them
		var w saved.Writer
		var device, one, other, third saved.Object
		w.Begin(nil, true)
		w.Put(saved.KindDevice, &device, &saved.Device{Name: "gpu-0", Born: 1})
		w.Put(saved.KindAccount, &one, &saved.Account{Device: w.Number(&device), Earlier: w.Number(&other)})
		w.Put(saved.KindAccount, &other, &saved.Account{Device: w.Number(&device), Earlier: w.Number(&one)})
		if last {
			w.Put(saved.KindAccount, &third, &saved.Account{Device: w.Number(&device), Earlier: w.Number(&one)})
		}
		now := time.Unix(1000, 0)
		k := ledger.Kept{State: w.End(), Clock: timeOf, Time: now, Continues: true}
		err := ledger.New(exportertest.LedgerConfig()).Restore(k, now)
		expect.That(t, (err != nil) == malformed, "followed by a third one: %v, restored with %v", last, err)
	}
}

// No content of a state makes a ledger panic.
func FuzzRestore(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := ledger.New(exportertest.LedgerConfig())
		now := time.Unix(1000, 0)
		if l.Restore(ledger.Kept{State: b, Clock: timeOf, Time: now, Continues: true}, now) == nil {
			l.Advance(join.Result{}, now.Add(time.Second))
		}
	})
}

// The advice on an ended claim is kept over a restart. A claim that ended right before a restart
// gets its advice after it.
func TestAdviceForEndedClaimOutlivesRestart(t *testing.T) {
	for name, after := range map[string]int{"before it is advised": 5, "after it was": 90} {
		t.Run(name, func(t *testing.T) {
			h := fitHistory(t)
			var k log
			tick := func(seconds int, utilization, memory float64) {
				for range seconds {
					fitting(h, 1, utilization, memory)
					k.write(h.Ledger, h.Now)
				}
			}
			tick(130, 0.2, 18)
			h.Free("a")
			tick(after, 0.2, 18)
			h.Ledger, h.Dates = restored(t, k.Kept, h.Now), &exportertest.Dates{} // the end of the hold is lost
			k = log{}
			tick(90, 0.9, 79) // of no claim
			a := expectFit(t, h, fit.Advised)
			expect.That(t, a.Memory == 18*gib && a.Alternative.Name == "2g.20gb" && a.Ended != nil, "advice %+v", a)
		})
	}
}

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

func TestMain(m *testing.M) { exportertest.Main(m) }
