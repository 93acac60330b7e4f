package ledger_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Labels that are new at every tick do not make the ledger grow without limit. Of the last values
// of error codes, a number is kept beside those that were read a short time ago.
func TestNewLabelsAreForgotten(t *testing.T) {
	h := exportertest.NewHistory(t)
	for i := range 2 * ledger.MaxCodes {
		h.Read(driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: 1})
		h.Pass(time.Minute)
	}
	meters, counters, _ := h.Ledger.Sizes(jointest.ID("gpu-0"))
	recent := 2 * int(ledger.RememberFor/time.Minute)
	if bound := ledger.MaxCodes + recent; meters > bound || counters > recent {
		t.Errorf("%d meters and %d counters are kept, want no more than %d and %d", meters, counters, bound, recent)
	}
}

// full is a node with as many rows as the kubelet's answers may have: devices that claims of one
// pod each share. At each tick some claims of each device are of another name, and the processes of
// the others use other parts of it.
type full struct {
	devices, sharers int
	short            int // of the sharers
	late             int // a second counter is read at each tick that this divides; 0: there is none

	tick   int
	ledger *ledger.Ledger
	last   *book.Snapshot
}

func (f *full) now() time.Time { return jointest.Start().Add(time.Duration(f.tick) * time.Second) }

// share returns a share of a device, as of a tick. A short one ends when that tick is over.
func (f *full) share(device, n, tick int) join.Share {
	hold := &podresources.Hold{ID: jointest.HoldID(device, n), From: jointest.Start()}
	name := fmt.Sprintf("claim-%d-%d", device, n)
	if n < f.short {
		name = fmt.Sprintf("claim-%d-%d-%d", device, n, tick)
		hold.ID, hold.From = jointest.HoldID(device, n, tick), jointest.Start().Add(time.Duration(tick)*time.Second)
		if tick < f.tick {
			hold.To = hold.From.Add(time.Second)
		}
	}
	a := jointest.Allocation(fmt.Sprint("gpu-", device), name, name)
	a.Holders[0].Hold = hold
	use := join.Evenly(float64(n+tick%2) / float64(f.sharers*f.sharers))
	return join.Share{
		Allocation: a, Pods: []podresources.Pod{a.Holders[0].Pod}, Weight: 1 / float64(f.sharers),
		Uses: []join.Use{use}, ByProcess: true,
	}
}

func (f *full) pass() {
	now := f.now()
	r := join.Result{View: podresources.View{At: now}}
	for d := range f.devices {
		of := join.Device{ID: jointest.ID(fmt.Sprint("gpu-", d)), Attribution: join.AttributionProcess}
		for n := range f.sharers {
			of.Shares = append(of.Shares, f.share(d, n, f.tick))
		}
		for n := range f.short {
			if f.tick > 0 {
				r.Ended = append(r.Ended, f.share(d, n, f.tick-1))
			}
		}
		slices.SortFunc(of.Shares, func(a, b join.Share) int { return a.Compare(b.Allocation) })
		of.Readings = []join.Reading{{
			Reading: driver.Reading{Quantity: driver.Energy, Value: 100 * float64(f.tick), At: now},
		}}
		if f.late > 0 && f.tick%f.late == 0 {
			of.Readings = append(of.Readings, join.Reading{Reading: driver.Reading{
				Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: float64(f.tick),
				At: now.Add(-time.Second / 2),
			}})
		}
		r.Devices = append(r.Devices, of)
	}
	slices.SortFunc(r.Devices, func(a, b join.Device) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(r.Ended, func(a, b join.Share) int { return a.Compare(b.Allocation) })
	f.last = f.ledger.Advance(r, now)
	f.tick++
}

// play passes a number of ticks, and returns how many entries of the history were lost.
func (f *full) play(ticks int) (lost int) {
	for range ticks {
		f.pass()
		lost += f.last.Forgotten
	}
	return lost
}

// Who held what takes no more than its part of the budget, also while some readings of a device do
// not come. Without the bound it would take 218 MiB after 17 minutes in which processes share
// devices, and 2.3 kB for each claim of the last ten minutes.
func TestHistoryIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		full
		lost bool
		deep bool // not with -short
	}{
		"processes":           {full: full{devices: 32, sharers: 64}, deep: true},
		"processes and a lag": {full: full{devices: 32, sharers: 64, late: 60}, lost: true},
		"short claims":        {full: full{devices: 512, sharers: 1, short: 1}, lost: true, deep: true},
		"short and a lag":     {full: full{devices: 64, sharers: 1, short: 1, late: 60}, lost: true},
		"both and a lag":      {full: full{devices: 32, sharers: 64, short: 1, late: 60}, lost: true, deep: true},
	} {
		if test.deep && testing.Short() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f, config := &test.full, exportertest.LedgerConfig()
			config.Retention = 2 * time.Second // only the history knows what ended earlier
			f.ledger = ledger.New(config)
			for range 5 {
				f.pass()
			}
			before, lost := heap(), 0
			for range 50 {
				f.pass()
				lost += f.last.Forgotten
				n := f.ledger.History()
				expect.That(t, n <= ledger.MaxHistory, "tick %d: who held what takes %d bytes", f.tick, n)
			}
			grown, most := int64(heap())-int64(before), int64(ledger.MaxHistory)
			waits := f.late > 0 && f.short > 0 // the accounts of what ended wait for the reading
			if grown > most && !waits {
				t.Errorf("%d bytes were added to the heap, want no more than %d", grown, most)
			}
			expect.That(t, (lost > 0) == test.lost, "%d entries were lost", lost)
			runtime.KeepAlive(f)
		})
	}
}

// Who held what is forgotten before it is needed for a charge: while that frees enough, everyone
// has what they have by all of the history.
func TestPeriodsAreForgottenFirst(t *testing.T) {
	played := func(history int) (charged map[string]float64, lost int) {
		config := exportertest.LedgerConfig()
		config.History = history
		f := full{devices: 2, sharers: 1, short: 2, late: 60, ledger: ledger.New(config)}
		lost = f.play(181) // the last tick has a reading
		charged = map[string]float64{}
		for i := range f.last.Claims {
			for _, v := range f.last.Claims[i].Values {
				charged[fmt.Sprint(*f.last.Claims[i].HolderKey, v.Quantity)] = v.Value
			}
		}
		return charged, lost
	}
	want, none := played(0)
	got, lost := played(535 << 10)
	must.That(t, len(want) >= 100 && none == 0 && lost > 0, "%d values, %d and %d entries lost", len(want), none, lost)
	expect.Equal(t, "charged", want, got)
}

// However short the history is, what is counted goes to those who are known to have held the device
// then, and else to nobody: no holder has more than with all of the history.
func TestForgottenTimeIsUnattributed(t *testing.T) {
	played := func(history int) (charged map[string]float64, lost int) {
		config := exportertest.LedgerConfig()
		config.History = history
		f := full{devices: 2, sharers: 5, short: 2, late: 60, ledger: ledger.New(config)}
		lost = f.play(121) // the last tick has a reading
		charged = map[string]float64{}
		sums := map[string]float64{}
		add := func(who, kind string, values []book.Value) {
			for _, v := range values {
				if v.Quantity == driver.IOBytes {
					sums[kind] += v.Value
					charged[who] = v.Value
				}
			}
		}
		for i := range f.last.Devices {
			d := &f.last.Devices[i]
			add("device "+d.ID.Device, "devices", d.Values)
			add("nobody on "+d.ID.Device, "nobody", d.Unattributed)
		}
		for i := range f.last.Claims {
			add("claim "+fmt.Sprint(*f.last.Claims[i].HolderKey), "claims", f.last.Claims[i].Values)
		}
		for i := range f.last.Pods {
			add("pod "+fmt.Sprint(*f.last.Pods[i].HolderKey), "pods", f.last.Pods[i].Values)
		}
		for _, kind := range []string{"claims", "pods"} {
			expect.That(t, exportertest.Close(sums["devices"], sums[kind]+sums["nobody"], 0), "history of %d: %v", history, sums)
		}
		return charged, lost
	}
	want, none := played(0)
	got, lost := played(1)
	must.That(t, len(want) >= 300 && none == 0 && lost > 0, "%d claims, %d and %d entries lost", len(want), none, lost)
	for name, of := range want {
		if !strings.HasPrefix(name, "nobody") {
			expect.That(t, got[name] <= of*(1+1e-9), "%s has %v, and %v by all of the history", name, got[name], of)
		}
	}
	expect.That(t, got["nobody on gpu-0"] > want["nobody on gpu-0"], "nobody has %v", got["nobody on gpu-0"])
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second frees what has finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
