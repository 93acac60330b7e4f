package ledger_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
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
