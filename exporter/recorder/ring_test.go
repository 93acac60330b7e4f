package recorder

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// world makes snapshots by hand: of devices with gauges and counters, and their claims and pods.
type world struct {
	*book.Snapshot
	random *rand.Rand
}

func newWorld(devices, holders int) *world {
	w := &world{&book.Snapshot{Time: jointest.Start()}, rand.New(rand.NewPCG(1, 2))}
	for i := range devices {
		id := jointest.ID(fmt.Sprintf("gpu-%d", i))
		w.Devices = append(w.Devices, book.Device{
			Device: &join.Device{ID: id}, Key: &id, Up: book.UpNow, Values: w.series(15, driver.Labels{"sm"}),
		})
	}
	for i := range holders {
		id := w.Devices[i%devices].ID
		share := join.Share{Allocation: jointest.Allocation(id.Device, fmt.Sprintf("claim-%d", i), fmt.Sprintf("pod-%d", i))}
		share.Pods = []podresources.Pod{share.Holders[0].Pod}
		w.Devices[i%devices].Shares = append(w.Devices[i%devices].Shares, share)
		w.Claims = append(w.Claims, book.Holder{
			HolderKey: &book.HolderKey{Namespace: "team", Name: fmt.Sprintf("claim-%d", i), Device: id},
			Amounts:   book.Amounts{Values: w.series(9, driver.Labels{})},
		})
		w.Pods = append(w.Pods, book.Holder{
			HolderKey: &book.HolderKey{Namespace: "team", Name: fmt.Sprintf("pod-%d", i), Device: id},
			Amounts:   book.Amounts{Values: w.series(9, driver.Labels{})},
		})
	}
	return w
}

// series returns values, every third of which is of a counter.
func (w *world) series(n int, labels driver.Labels) []book.Value {
	var out []book.Value
	for i := range n {
		s := &book.Series{Quantity: driver.EngineUtilization, Labels: labels}
		s.Labels[1] = fmt.Sprint(i)
		if i%3 == 0 {
			s.Quantity = driver.Energy
		}
		out = append(out, book.Value{Series: s, Value: 100 * w.random.Float64()})
	}
	return out
}

// asGPUs gives the devices what is measured of a GPU, in place of values of their own.
func (w *world) asGPUs() {
	for i := range w.Devices {
		for n, r := range works() {
			w.Devices[i].Values[n].Series = &book.Series{Quantity: r.quantity, Labels: splitLabels(r.label)}
		}
	}
}

// tick advances a second, in which every value changes by some per cent, as measured values do.
func (w *world) tick() {
	next := *w.Snapshot
	next.Time = next.Time.Add(time.Second)
	w.Snapshot = &next
	change := func(values []book.Value) {
		for i := range values {
			v := &values[i]
			if v.Quantity == driver.Energy {
				v.Value += 300 * (1 + 0.05*w.random.NormFloat64())
			} else {
				v.Value = 50 * (1 + 0.05*w.random.NormFloat64())
			}
		}
	}
	for i := range w.Devices {
		change(w.Devices[i].Values)
	}
	for i := range w.Claims {
		change(w.Claims[i].Values)
		change(w.Pods[i].Values)
	}
}

// The last ten minutes of 64 devices and 500 claims and pods, whose values all change at every
// tick, take no more than 16 MiB.
func TestRingIsSmall(t *testing.T) {
	if testmain.RaceEnabled {
		t.Skip("it has one goroutine, and make test runs it without the race detector")
	}
	w := newWorld(64, 500)
	before := heap()
	r := New(Config{Interval: time.Second})
	ticks := 20 * 60
	if testing.Short() {
		ticks = 11 * 60
	}
	for range ticks {
		w.tick()
		r.Record(w.Snapshot)
	}
	grown := float64(heap()-before) / (1 << 20)
	t.Logf("the recorder takes %.1f MiB, %.2f bytes a value", grown, grown*(1<<20)/float64(600*(64*15+500*18)))
	expect.That(t, grown <= 16, "the recorder takes %.1f MiB, want at most 16", grown)
	h := r.History(Selection{Device: "gpu-7"})
	if n := len(h.Times); n < 600 {
		t.Errorf("the ring has %d ticks, want at least 600", n)
	}
	if n := len(h.Series); n != 15+2*9*8 {
		t.Errorf("the device and its 8 claims and pods have %d series", n)
	}
	runtime.KeepAlive(r)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A claim and its only pod, which have the same values, cost the data of one of them, and each has
// its own series.
func TestSameValuesAreKeptOnce(t *testing.T) {
	sizes := map[bool]int{}
	for _, same := range []bool{false, true} {
		w := newWorld(1, 1)
		r := New(Config{Interval: time.Second})
		for range 3 * blockTicks {
			w.tick()
			for i := range w.Pods[0].Values {
				if same {
					w.Pods[0].Values[i].Value = w.Claims[0].Values[i].Value
				}
			}
			r.Record(w.Snapshot)
		}
		sizes[same] = 2 * len(r.ring.sealed[0].codes)
		if !same {
			continue
		}
		byName := map[OwnerKind][][]float64{}
		c := r.ring.cut(time.Time{}, w.Time, func(o *Owner) bool { return o.Kind != OfDevice }, nil)
		for _, l := range c.lines { // counters have no rate of the first tick
			byName[l.owner.Kind] = append(byName[l.owner.Kind], slices.Clone(c.values(&l)[1:]))
		}
		all := c.chart(c.lines, len(c.lines), r.ring.catalogue).Series
		claim, pod := all[0].Values, all[len(all)/2].Values
		expect.That(t, all[0].Of == OfClaim && all[len(all)/2].Of == OfPod && &claim[0] == &pod[0],
			"in a chart the values of the claim and of its pod are two")
		expect.That(t, len(byName[OfClaim]) == 9 && reflect.DeepEqual(byName[OfClaim], byName[OfPod]),
			"%d series of the claim, %d of the pod, and not the same values", len(byName[OfClaim]), len(byName[OfPod]))
	}
	expect.That(t, 4*sizes[true] <= 3*sizes[false]+100,
		"the data of a block is %d bytes, %d if all values differ", sizes[true], sizes[false])
}

// Readers use published data, which does not change, while the recorder continues. With the race
// detector, this test also checks that no reader needs a lock.
func TestPublicationsDoNotChange(t *testing.T) {
	w := newWorld(2, 6)
	r := New(Config{Interval: time.Second})
	for range blockTicks + blockTicks/2 {
		w.tick()
		r.Record(w.Snapshot)
	}
	p := r.published.Load()
	read := func() []ChartSeries {
		c := p.cut(time.Time{}, p.recorded, func(*Owner) bool { return true }, nil)
		return c.chart(c.lines, len(c.lines), p.catalogue).Series
	}
	before := read()
	var reading sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		reading.Go(func() {
			for ctx.Err() == nil {
				r.History(Selection{Device: "gpu-1"})
				read()
			}
		})
	}
	for n := range 2 * blockTicks {
		if n%7 == 0 { // claims and pods that come
			more := newWorld(2, n/7)
			w.Claims, w.Pods = append(w.Claims, more.Claims...), append(w.Pods, more.Pods...)
		}
		w.tick()
		r.Record(w.Snapshot)
	}
	cancel()
	reading.Wait()
	expect.That(t, reflect.DeepEqual(before, read()), "what was published has changed")
}

// A history comes in parts of so many values; together they have each series once.
func TestHistoryComesInParts(t *testing.T) {
	w := newWorld(1, 200)
	r := New(Config{Interval: time.Second})
	const ticks = 200
	for range ticks {
		w.tick()
		r.Record(w.Snapshot)
	}
	type key struct {
		of   OwnerKind
		name string
	}
	seen := map[key]int{} // series
	var of Selection
	of.Device = "gpu-0"
	parts := 0
	for again := true; again; parts++ {
		h := r.History(of)
		if n := len(h.Series) * len(h.Times); n > MaxValues {
			t.Errorf("a part has %d values, want at most %d", n, MaxValues)
		}
		if parts == 0 && h.Series[0].Of != OfDevice {
			t.Errorf("the first series is of a %s", h.Series[0].Of)
		}
		for _, s := range h.Series {
			seen[key{s.Of, s.Name}]++
		}
		of.After, again = h.Next, h.Next > 0
	}
	if want := (15*ticks + 200*18*ticks + MaxValues - 1) / MaxValues; parts != want || len(seen) != 1+2*200 {
		t.Errorf("%d parts, want %d, with the series of %d", parts, want, len(seen))
	}
	for k, n := range seen {
		if want := map[bool]int{true: 15, false: 9}[k.of == OfDevice]; n != want {
			t.Fatalf("%v has %d series, want %d", k, n, want)
		}
	}
}

// BenchmarkRecord measures the processor time of a tick of the recorder, and that of the verdicts
// on stalled claims, which are a part of it.
func BenchmarkRecord(b *testing.B) {
	part := func(run func(*book.Snapshot)) func(b *testing.B) {
		return func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			w := newWorld(64, 500)
			w.asGPUs()
			var used time.Duration
			b.ReportAllocs()
			for b.Loop() {
				w.tick()
				before := threadTime(b)
				run(w.Snapshot)
				used += threadTime(b) - before
			}
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
		}
	}
	r, s := New(Config{Interval: time.Second}), newStallsOf()
	b.Run("all", part(func(of *book.Snapshot) { r.Record(of) }))
	b.Run("stalled", part(func(of *book.Snapshot) { s.observe(of) }))
}

// threadTime is the processor time of the present thread.
func threadTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	must.Do(b, unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The ring returns the values of a plain list, within its precision: also for series that appear,
// disappear and return, and at the edges of blocks.
func TestRingAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all = 4
		w := newWorld(1, 0)
		d := &w.Devices[0]
		d.Values = nil
		id := *d.Key
		series := make([]*book.Series, all)
		totals := make([]float64, all)
		for i := range series {
			series[i] = &book.Series{Quantity: driver.Temperature, Labels: driver.Labels{fmt.Sprint(i)}}
			if i%2 == 0 {
				series[i] = &book.Series{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", fmt.Sprint(i)}}
			}
		}
		r := newRing(time.Hour, 1<<20)
		type point struct {
			at     time.Time
			series int
		}
		want := map[point]float64{}
		known := make([]time.Time, all) // when each counter was there last
		var times []time.Time
		for range rapid.IntRange(1, 3*blockTicks).Draw(t, "ticks") {
			s := &book.Snapshot{Time: w.Time}
			if len(times) > 0 {
				s.Time = times[len(times)-1].Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "pause")) * 100 * time.Millisecond)
			}
			var values []book.Value
			for i := range all {
				if rapid.IntRange(0, 5).Draw(t, "absent") == 0 {
					continue
				}
				v := float64(rapid.IntRange(-50, 100).Draw(t, "value"))
				if i%2 == 0 {
					totals[i] += max(0, v)
					if !known[i].IsZero() {
						want[point{s.Time, i}] = max(0, v) / s.Time.Sub(known[i]).Seconds()
					}
					known[i] = s.Time
					v = totals[i]
				} else {
					want[point{s.Time, i}] = v
				}
				values = append(values, book.Value{Series: series[i], Value: v})
			}
			s.Devices = []book.Device{{Device: &join.Device{ID: id}, Key: d.Key, Values: values}}
			r.record(s)
			times = append(times, s.Time)
		}
		from := times[rapid.IntRange(0, len(times)-1).Draw(t, "from")]
		to := times[rapid.IntRange(0, len(times)-1).Draw(t, "to")]
		got := r.cut(from, to, func(*Owner) bool { return true }, nil)
		for _, s := range got.lines {
			codes, some := got.codes(&s)
			values := codes.Floats()
			must.That(t, some == slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }),
				"%v are some: %v", values, some)
			i := 0
			_, _ = fmt.Sscan(s.Labels[0]+s.Labels[1], &i)
			if s.Quantity == driver.IOBytes {
				_, _ = fmt.Sscan(s.Labels[1], &i)
			}
			for j, at := range got.times {
				key := point{at, i}
				v, there := want[key]
				must.That(t, there != math.IsNaN(values[j]) && (!there || math.Abs(v-values[j]) <= 2*precision*math.Abs(v)),
					"series %d at %v is %v, want %v (%v)", i, at, values[j], v, there)
				delete(want, key)
			}
		}
		n := 0
		for key := range want {
			if !key.at.Before(from) && !key.at.After(to) {
				n++
			}
		}
		must.That(t, n <= 0, "%d values are missing", n)
	})
}

// Rates are those between readings, and valid until the next: a source that is not read for a
// while, or rarely, makes no spikes.
func TestRatesAreBetweenReadings(t *testing.T) {
	d := book.Device{
		Device: &join.Device{ID: jointest.ID("gpu-0")}, Key: new(driver.ID),
		Values: []book.Value{{Series: &book.Series{Quantity: driver.Energy}}}, Ages: []time.Duration{0},
	}
	s := &book.Snapshot{
		Time: jointest.Start(), Devices: []book.Device{d},
		Claims: []book.Holder{{HolderKey: &book.HolderKey{Name: "a", Device: d.ID}, Amounts: book.Amounts{
			Values: []book.Value{{Series: &book.Series{Quantity: driver.Energy}}},
		}}},
	}
	r := newRing(time.Hour, 1<<20)
	for second := range 60 {
		s.Devices[0].Ages[0] += time.Second
		if second < 20 || second > 30 {
			s.Devices[0].Ages[0] = 300 * time.Millisecond
		}
		now := s.Time.Sub(jointest.Start()) - s.Devices[0].Ages[0]
		s.Devices[0].Values[0].Value, s.Claims[0].Values[0].Value = 100*now.Seconds(), 50*now.Seconds()
		r.record(s)
		s.Time = s.Time.Add(time.Second)
	}
	c := r.cut(jointest.Start(), s.Time, func(*Owner) bool { return true }, nil)
	for i, l := range c.lines {
		for n, v := range c.values(&l)[1:] {
			want := []float64{100, 50}[i]
			expect.That(t, math.Abs(v-want) <= 2*precision*want, "series %d is %v W at second %d, want %v", i, v, n+1, want)
		}
	}
}

// A device that fails all the time does not push out the incidents of the others.
func TestIncidentsAreBounded(t *testing.T) {
	var all []*Incident
	for n := range 3 * MaxIncidents {
		i := &Incident{Device: jointest.ID("gpu-0"), Count: n}
		if n == 5 {
			i.Device = jointest.ID("gpu-1")
		}
		all = bounded(append(all, i))
	}
	expect.That(t, len(all) == MaxIncidents && all[0].Count == 5 && all[1].Count == 2*MaxIncidents+1,
		"%d incidents, of which the first are %d and %d", len(all), all[0].Count, all[1].Count)
}

// precision is the largest relative error of a value.
const precision = 1.0 / (1 << (mantissaBits + 1))

// Values are kept within the precision, smaller ones than a millionth as 0, and are absent where
// they are no numbers; a document has them with four digits.
func TestEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(
			rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), 0, 1, 0.5, -40, 300, 8e10, 1e-5, -1e12, 0x1p-20, 8.9e12}),
			rapid.Float64Range(-1e13, 1e13),
		)
		values := rapid.SliceOfN(value, 0, 200).Draw(t, "values")
		var kept Values
		for _, v := range values {
			kept = append(kept, codeOf(v))
		}
		var again Values
		must.Do(t, json.Unmarshal(must.Get(json.Marshal(kept))(t), &again))
		for most, got := range map[float64][]float64{precision: kept.Floats(), 2 * precision: again.Floats()} {
			must.That(t, len(got) == len(values), "%d values became %d", len(values), len(got))
			for i, v := range values {
				absent := math.IsNaN(v) || math.IsInf(v, 0)
				near := math.Abs(got[i]-v) <= most*math.Abs(v) || got[i] == 0 && math.Abs(v) < 1e-6
				must.That(t, absent == math.IsNaN(got[i]) && (absent || near), "value %d is %v, was %v", i, got[i], v)
			}
		}
	})
}
