package intelgpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// fakePMU replaces the kernel's counters in tests.
type fakePMU struct {
	counts map[uint64]uint64 // by event: those that the hardware has
	opened map[uint64]int    // how often each event is open
	units  map[uint32]int    // CPUs by the number of the unit
	err    error             // of opening
	broken error             // of reading
}

func (f *fakePMU) open(pmu uint32, cpu int, events []uint64) (group, []bool, error) {
	if f.err != nil {
		return nil, nil, f.err
	}
	f.units[pmu] = cpu
	g := &fakeGroup{pmu: f}
	there := make([]bool, len(events))
	for i, event := range events {
		if _, ok := f.counts[event]; ok {
			there[i] = true
			g.events = append(g.events, event)
			f.opened[event]++
		}
	}
	return g, there, nil
}

type fakeGroup struct {
	pmu    *fakePMU
	events []uint64
}

func (g *fakeGroup) read() ([]uint64, error) {
	var counts []uint64
	for _, event := range g.events {
		counts = append(counts, g.pmu.counts[event])
	}
	return counts, g.pmu.broken
}

func (g *fakeGroup) close() {
	for _, event := range g.events {
		g.pmu.opened[event]--
	}
}

// The events of xe, with the places that testdata/server.tree gives to the terms.
func xeEvent(event, function, gt, class, instance uint64) uint64 {
	return event | instance<<12 | class<<20 | function<<44 | gt<<60
}

// withPMU returns a machine whose engines are counted: the xe GPU's, and those of its first virtual
// function; and the i915 GPU's.
func withPMU(tb testing.TB) (*machine, *fakePMU) {
	tb.Helper()
	m := newMachine(tb, server(tb))
	pmu := &fakePMU{counts: map[uint64]uint64{}, opened: map[uint64]int{}, units: map[uint32]int{}}
	for function := range uint64(2) {
		for _, engine := range [][3]uint64{{0, 0, 0}, {0, 4, 1}, {0, 4, 2}, {0, 1, 8}, {1, 2, 0}, {1, 2, 2}, {1, 3, 0}} {
			for event := range uint64(2) {
				pmu.counts[xeEvent(2+event, function, engine[0], engine[1], engine[2])] = 1000
			}
		}
	}
	pmu.counts[xeEvent(2, 0, 0, 4, 0)] = 1000                               // without ticks in all: not counted
	for _, event := range []uint64{0, 0x10000, 0x20000, 0x20010, 0x30000} { // busy, in nanoseconds
		pmu.counts[event] = 5
	}
	m.restart(Config{Sysfs: m.Root, PMU: true})
	m.source.open = pmu.open
	return m, pmu
}

// work lets the engines of the machine work for a second.
func (f *fakePMU) work(m *machine) {
	for event := range f.counts {
		if event&0xfff == 3 {
			f.counts[event] += 1000 // ticks in all
		}
	}
	f.counts[xeEvent(2, 0, 0, 4, 1)] += 900 // the second compute engine
	f.counts[xeEvent(2, 0, 0, 4, 0)] += 900
	f.counts[xeEvent(2, 0, 1, 2, 2)] += 500 // the third for video
	f.counts[xeEvent(2, 1, 0, 0, 0)] += 250 // rendering of the virtual function
	f.counts[0x20010] += 400_000_000        // i915: the second for video
	m.later(time.Second)
}

func engines(s driver.Sample) map[string]float64 {
	got := drivertest.Values(s)
	maps.DeleteFunc(got, func(name string, _ float64) bool {
		return !strings.HasPrefix(name, "engine_utilization") && name != "utilization"
	})
	return got
}

// With the PMU, a GPU's engines are distinguished, the busiest of a class counts, and virtual
// functions have engines too.
func TestPMU(t *testing.T) {
	m, pmu := withPMU(t)
	m.sample()
	pmu.work(m)
	got := m.sample()
	for address, want := range map[string]map[string]float64{
		battlemage: {
			"utilization": 0.75, "engine_utilization render": 0, "engine_utilization compute": 0.9,
			"engine_utilization copy": 0, "engine_utilization video": 0.5, "engine_utilization video_enhance": 0,
		},
		function1: {
			"utilization": 0.25, "engine_utilization render": 0.25, "engine_utilization compute": 0,
			"engine_utilization copy": 0, "engine_utilization video": 0, "engine_utilization video_enhance": 0,
		},
		function2: {},
		arc: {
			"utilization": 0.75, "engine_utilization render": 0, "engine_utilization copy": 0,
			"engine_utilization video": 0.4, "engine_utilization video_enhance": 0,
		},
		twoTiles: {"utilization": 0.75, "engine_utilization render": 0.75}, // has no PMU
	} {
		expect.Equal(t, address, want, engines(got[address]), approximately)
	}
	expect.Equal(t, "CPUs of units", map[uint32]int{21: 0, 22: 4}, pmu.units)
	for event, n := range pmu.opened {
		if n != 1 {
			t.Errorf("event %#x is open %d times", event, n)
		}
	}
}

// Without the switch nothing is opened; without the permission that is an error, and all else is
// read; where the kernel has no such events it is none.
func TestPMUUnavailable(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*machine, *fakePMU)
		reason driver.Reason
	}{
		"off": {change: func(m *machine, _ *fakePMU) { m.source.PMU = false }},
		"no permission": {
			change: func(_ *machine, p *fakePMU) { p.err = fmt.Errorf("open: %w", fs.ErrPermission) },
			reason: driver.ReasonForbidden,
		},
		"no such events": {change: func(m *machine, _ *fakePMU) {
			for _, unit := range []string{"xe_0000_03_00.0/events/engine-active-ticks", "i915_0000_0b_00.0"} {
				must.Do(m, os.RemoveAll(filepath.Join(m.Root, "bus", "event_source", "devices", unit)))
			}
		}},
		"a format of the future": {change: func(m *machine, _ *fakePMU) {
			m.Write("bus/event_source/devices/xe_0000_03_00.0/format/gt: config1:0-3\n")
		}, reason: driver.ReasonOther},
		"unreadable": {change: func(_ *machine, p *fakePMU) { p.broken = errShortRead }, reason: driver.ReasonOther},
	} {
		t.Run(name, func(t *testing.T) {
			m, pmu := withPMU(t)
			tc.change(m, pmu)
			for range 2 {
				pmu.work(m)
				samples, err := m.source.Sample(t.Context())
				if got := driver.ReasonOf(err); got != tc.reason {
					t.Fatalf("reason %q, want %q: %v", got, tc.reason, err)
				}
				if err := drivertest.Validate(samples, m.Clock); err != nil {
					t.Error(err)
				}
			}
			m.later(time.Second)
			samples, _ := m.source.Sample(t.Context())
			for _, s := range samples {
				if s.Hardware.PCI == battlemage {
					want := map[string]float64{"utilization": 0.75, "engine_utilization render": 0.75, "engine_utilization video": 0}
					expect.Equal(t, "", want, engines(s), approximately)
				}
			}
		})
	}
}

// Counters are closed when the GPU is gone. They are opened again when its virtual functions
// change, or the permission is granted.
func TestPMULifetime(t *testing.T) {
	m, pmu := withPMU(t)
	sum := func() (n int) {
		for _, opened := range pmu.opened {
			n += opened
		}
		return n
	}
	pmu.err = fs.ErrPermission
	if _, err := m.source.Sample(t.Context()); err == nil || sum() != 0 {
		t.Errorf("%d counters are open, error %v", sum(), err)
	}
	pmu.err = nil
	m.later(slowEvery)
	m.sample()
	m.later(slowEvery)
	m.sample()
	if want := 2*14 + 6; sum() != want {
		t.Errorf("%d counters are open, want %d", sum(), want)
	}
	for _, link := range []string{"virtfn0", "virtfn1"} {
		must.Do(t, os.Remove(filepath.Join(m.Root, battlemageFolder, link)))
	}
	m.later(slowEvery)
	m.sample()
	if want := 15 + 5; sum() != want {
		t.Errorf("%d counters are open without virtual functions, want %d", sum(), want)
	}
	must.Do(t, os.RemoveAll(filepath.Join(m.Root, "class", "drm")))
	m.later(time.Second)
	m.sample()
	if sum() != 0 {
		t.Errorf("%d counters are open without GPUs", sum())
	}
}

// The kernel's own counters: missing events are left out, and the others rise. Without permission,
// the error says so.
func TestPerf(t *testing.T) {
	const software, cpuClock, noSuchEvent = unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_CLOCK, 1 << 20
	g, there, err := openPerf(software, 0, []uint64{noSuchEvent, cpuClock, noSuchEvent, cpuClock})
	if err != nil {
		isExpected := errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOSYS)
		if !isExpected || !strings.HasPrefix(err.Error(), "perf_event_open") {
			t.Errorf("%v, which is neither a missing permission nor a missing system call", err)
		}
		return
	}
	defer g.close()
	if !slices.Equal(there, []bool{false, true, false, true}) {
		t.Errorf("events that are there: %v", there)
	}
	counts, err := g.read()
	if err != nil || len(counts) != 2 {
		t.Errorf("%v, %v", counts, err)
	}
}

// For a group, the kernel returns its size and a count for each counter.
func TestPerfGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		words []uint64
		ok    bool
	}{
		"two":   {[]uint64{2, 7, 9}, true},
		"short": {[]uint64{2, 7}, false},
		"other": {[]uint64{3, 7, 9}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var content bytes.Buffer
			must.Do(t, binary.Write(&content, binary.NativeEndian, tc.words))
			path := filepath.Join(t.TempDir(), "counter")
			must.Do(t, os.WriteFile(path, content.Bytes(), 0o600))
			var g perfGroup
			for range 2 {
				fd := must.Get(unix.Open(path, unix.O_RDONLY, 0))(t)
				g.counters = append(g.counters, fd)
			}
			defer g.close()
			g.prepare()
			counts, err := g.read()
			if ok := err == nil; ok != tc.ok || ok && !slices.Equal(counts, []uint64{7, 9}) {
				t.Errorf("%v, %v", counts, err)
			}
		})
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{
		"event=0x02,gt=1", "config=0x20010", "config:12-19", "config:3", "config1:0-3", "-", "=",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		place, err := parseBits(value)
		if err == nil && (place.width < 1 || place.shift+place.width > 64 || place.mask() == 0) {
			t.Errorf("format %q is %+v", value, place)
		}
		terms, err := parseTerms(value)
		if err != nil && terms != nil {
			t.Errorf("event %q has terms and an error", value)
		}
		u := perfUnit{events: map[string][]term{"event": terms}, format: map[string]bits{"event": {0, 12}, "gt": {60, 4}}}
		if config, err := u.config("event", nil); err != nil && config != 0 {
			t.Errorf("event %q is %x with error %v", value, config, err)
		}
	})
}
