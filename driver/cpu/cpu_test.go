package cpu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a source over a procfs of its own, and its clock.
type machine struct {
	*drivertest.Machine
	times  []ticks
	source *Source
}

func newMachine(tb testing.TB, times ...ticks) *machine {
	m := &machine{Machine: drivertest.NewMachine(tb), times: times}
	m.source = New(m.Root)
	m.source.now = m.Now
	if len(times) > 0 {
		m.write()
	}
	return m
}

// write writes the CPUs' times as the kernel does.
func (m *machine) write() { m.writeText(render(m.times)) }

func render(times []ticks) string {
	var stat strings.Builder
	stat.WriteString("cpu  1 2 3 4 5 6 7 8 9 10\n")
	for _, t := range times {
		fmt.Fprintf(&stat, "cpu%d %d 0 0 %d 0 0 0 0 0 0\n", t.cpu, t.busy, t.idle)
	}
	stat.WriteString("intr 1 2 3\n")
	return stat.String()
}

func (m *machine) writeText(stat string) {
	must.Do(m, os.WriteFile(m.source.path, []byte(stat), 0o644))
}

// run lets all CPUs be busy and idle for so many ticks.
func (m *machine) run(busy, idle uint64) {
	for i := range m.times {
		m.times[i].busy += busy
		m.times[i].idle += idle
	}
	m.Clock = m.Clock.Add(time.Duration(busy+idle) * time.Second / userHZ)
	m.write()
}

// sample returns the readings of the CPUs by their numbers.
func (m *machine) sample() map[int]map[driver.Quantity]driver.Reading {
	samples := must.Get(m.source.Sample(m.Context()))(m)
	all := map[int]map[driver.Quantity]driver.Reading{}
	for _, s := range samples {
		all[s.Hardware.CPUs[0]] = map[driver.Quantity]driver.Reading{}
		for _, r := range s.Readings {
			all[s.Hardware.CPUs[0]][r.Quantity] = r
		}
	}
	return all
}

// want checks a CPU's active seconds and utilization, which is absent if below 0, and the time of
// the latter.
func (m *machine) want(what string, cpu int, active, utilization float64, at time.Time) {
	m.Helper()
	got := m.sample()[cpu]
	if a := got[driver.ActiveSeconds]; a.Value != active || !a.At.Equal(m.Clock) {
		m.Errorf("%s: active %v s at %v, want %v at %v", what, a.Value, a.At, active, m.Clock)
	}
	u, ok := got[driver.Utilization]
	switch {
	case utilization < 0:
		expect.That(m, !ok, "%s: utilization %v, want none", what, u.Value)
	case !ok || u.Value != utilization || !u.At.Equal(at):
		m.Errorf("%s: utilization %v (there: %v) at %v, want %v at %v", what, u.Value, ok, u.At, utilization, at)
	}
}

func TestUtilization(t *testing.T) {
	m := newMachine(t, times(0, 1000, 9000), times(5, 50, 50))
	m.want("first", 0, 10, -1, time.Time{})
	m.run(25, 75)
	first := m.Clock
	m.want("a second later", 0, 10.25, 0.25, first)
	m.run(4, 0)
	m.want("40 ms later", 0, 10.29, 0.25, first)
	m.run(0, 1)
	m.want("50 ms later", 0, 10.29, 0.8, m.Clock)
	m.want("at the same time", 0, 10.29, 0.8, m.Clock)
	second := m.Clock
	m.Clock = m.Clock.Add(time.Minute) // and nothing was counted
	m.want("standstill", 0, 10.29, 0.8, second)
	m.run(0, 100)
	m.want("idle", 5, 0.79, 0, m.Clock)
}

// TestBackwards: the kernel's idle and iowait may fall, and all times in a reset.
func TestBackwards(t *testing.T) {
	m := newMachine(t, times(0, 1000, 9000))
	m.sample()
	m.run(50, 50)
	first := m.Clock
	m.want("before", 0, 10.5, 0.5, first)

	m.run(50, 0)
	m.times[0].idle -= 200
	m.write()
	m.want("idle fell", 0, 11, 0.5, first)
	m.run(10, 90)
	m.want("after it", 0, 11.1, 0.1, m.Clock)

	second := m.Clock
	m.Clock = m.Clock.Add(time.Second)
	m.times[0] = times(0, 7, 20000)
	m.write()
	m.want("reset", 0, 0.07, 0.1, second)
	m.run(75, 25)
	m.want("after it", 0, 0.82, 0.75, m.Clock)
}

func TestHotplug(t *testing.T) {
	m := newMachine(t, times(0, 100, 100), times(1, 100, 100))
	m.sample()
	m.run(50, 50)
	m.want("before", 1, 1.5, 0.5, m.Clock)
	online := m.times
	m.times = online[:1]
	m.run(50, 50)
	got := m.sample()
	expect.That(t, len(got) == 1, "%d CPUs while one of two is offline", len(got))
	m.times = online
	m.times[1].busy += 30
	m.run(0, 100)
	m.want("back", 1, 1.8, -1, time.Time{})
	m.run(10, 90)
	m.want("later", 1, 1.9, 0.1, m.Clock)
}

func TestSuite(t *testing.T) {
	fault := func(name, line, instead string, hits func(cpu int) bool, silent bool) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{
			Name: name, Silent: silent, Hits: func(s driver.Sample, _ driver.Reading) bool { return hits(s.Hardware.CPUs[0]) },
			Break: func(m *machine) { m.writeText(regexp.MustCompile(line).ReplaceAllString(render(m.times), instead)) },
		}
	}
	one := func(cpu int) bool { return cpu == 1 }
	all := func(int) bool { return true }
	drivertest.Files[*machine]{
		Fills: Fills(),
		New: func(tb testing.TB) *machine {
			return newMachine(tb, times(0, 1000, 9000), times(1, 5, 10), times(3, 0, 0))
		},
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.run(30, 70) },
		Faults: []drivertest.FileFault[*machine]{
			fault("offline", `cpu1 .*\n`, "", one, true),
			fault("garbage", `cpu1 `, "cpu1 ? ", one, false),
			fault("number", `cpu1 `, "cpu99999 ", one, false),
			fault("nothing", `(?s).*`, "", all, false),
		},
	}.Run(t)
}

func TestUnreadable(t *testing.T) {
	m := newMachine(t)
	must.Do(t, os.Mkdir(m.source.path, 0o755))
	if samples, err := m.source.Sample(t.Context()); len(samples) > 0 || err == nil {
		t.Errorf("samples %v, error %v; want an error alone", samples, err)
	}
	m.source.path = filepath.Join(m.source.path, strings.Repeat("x", 300))
	if samples, err := m.source.Sample(t.Context()); len(samples) > 0 || err == nil {
		t.Errorf("samples %v, error %v; want an error alone", samples, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newMachine(t, times(0, 1, 1)).source.Sample(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestThisMachine reads the CPUs that are really there.
func TestThisMachine(t *testing.T) {
	source := New("/proc")
	before := must.Get(source.Sample(t.Context()))(t)
	after := must.Get(source.Sample(t.Context()))(t)
	expect.OK(t, errors.Join(drivertest.Validate(before, time.Now()), drivertest.Validate(after, time.Now())))
	if len(after) < runtime.NumCPU() { // affinity may exclude some of them
		t.Errorf("%d CPUs, of which this program may use %d", len(after), runtime.NumCPU())
	}
}

func BenchmarkSample(b *testing.B) {
	for _, n := range []int{16, 512, maxCPUs} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			all := make([]ticks, n)
			for i := range all {
				all[i] = times(i, uint64(i)*123456, 9876543)
			}
			m := newMachine(b, all...)
			benchmark(b, m.source, n)
		})
	}
}

// BenchmarkSampleOfThisMachine reads the real procfs.
func BenchmarkSampleOfThisMachine(b *testing.B) { benchmark(b, New("/proc"), 1) }

func benchmark(b *testing.B, source *Source, want int) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if samples, err := source.Sample(b.Context()); err != nil || len(samples) < want {
			b.Fatal(len(samples), err)
		}
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "cpu", Fills()) }

// times returns the times of a CPU.
func times(cpu int, busy, idle uint64) ticks { return ticks{cpu: cpu, busy: busy, idle: idle} }

func testdata(tb testing.TB, name string) []byte {
	content := must.Get(os.ReadFile(filepath.Join("testdata", name)))(tb)
	return content
}

func TestParseStat(t *testing.T) {
	var tooMany strings.Builder
	tooMany.WriteString("cpu  1 2 3 4 5 6 7 8\n")
	all := make([]ticks, maxCPUs)
	for n := range all {
		fmt.Fprintf(&tooMany, "cpu%d 1 0 0 0 0 0 0 0\n", n)
		all[n] = times(n, 1, 0)
	}
	for _, tc := range []struct {
		name, stat string
		want       []ticks
		err        error
	}{
		{
			"offline", string(testdata(t, "stat-offline")),
			[]ticks{times(0, 180, 4400), times(1, 340, 3300), times(3, 610, 2200)},
			nil,
		},
		{"no guests yet", "cpu0 1 2 3 4 5 6 7 8\n", []ticks{times(0, 27, 9)}, nil},
		{"columns to come", "cpu0 1 2 3 4 5 6 7 8 9 10 11 12\n", []ticks{times(0, 27, 9)}, nil},
		{"no end of line", "cpu0 1 2 3 4 5 6 7 8", []ticks{times(0, 27, 9)}, nil},
		{"stops at the rest", "cpu0 1 2 3 4 5 6 7 8\nintr 1\ncpu1 1 2 3 4 5 6 7 8\n", []ticks{times(0, 27, 9)}, nil},
		{
			"long rest", "cpu0 1 2 3 4 5 6 7 8\nintr" + strings.Repeat(" 0", bufio.MaxScanTokenSize),
			[]ticks{times(0, 27, 9)},
			nil,
		},
		{
			"too few columns", "cpu0 1 2 3 4 5 6 7\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			errColumns,
		},
		{"twice", "cpu1 1 2 3 4 5 6 7 8\ncpu1 2 2 3 4 5 6 7 8\n", []ticks{times(1, 27, 9)}, errTwice},
		{"no number", "cpux 1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n", []ticks{times(1, 27, 9)}, errNumber},
		{"CPU too high", "cpu8192 1 2 3 4 5 6 7 8\ncpu8191 1 2 3 4 5 6 7 8\n", []ticks{times(8191, 27, 9)}, errNumber},
		{
			"garbage", "cpu0 1 2 3 ? 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrSyntax,
		},
		{
			"negative", "cpu0 -1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrSyntax,
		},
		{
			"time too high", "cpu0 1 2 3 4 5 6 7 9007199254740993\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrRange,
		},
		{"as many as can be", tooMany.String(), all, nil},
		{"none", "intr 1 2 3\n", nil, errNone},
		{"the sum alone", "cpu  1 2 3 4 5 6 7 8 9 10\n", nil, errNone},
		{"empty", "", nil, errNone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseStat(strings.NewReader(tc.stat))
			diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(ticks{}))
			expect.That(t, diff == "" && errors.Is(err, tc.err), "error %v, want %v; CPUs (-want +got):\n%s", err, tc.err, diff)
		})
	}
}

func TestParseStatOfReaderThatFails(t *testing.T) {
	errRead := errors.New("input/output error")
	for _, head := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu0 1 2"} {
		r := io.MultiReader(strings.NewReader(head), iotest.ErrReader(errRead))
		got, err := parseStat(r)
		expect.That(t, errors.Is(err, errRead) && got == nil, "after %.30q: %v, %v", head, got, err)
	}
}

func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"stat", "stat-offline"} {
		f.Add(testdata(f, name))
	}
	f.Add([]byte("cpu 1\ncpu\ncpu0\ncpu00 1 2 3 4 5 6 7 8\ncpu0 1 2 3 4 5 6 7 8"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		all, err := parseStat(bytes.NewReader(stat))
		if len(all) == 0 && err == nil {
			t.Error("neither CPUs nor an error")
		}
		seen := map[int]bool{}
		for _, c := range all {
			expect.That(t, c.cpu >= 0 && c.cpu < maxCPUs && !seen[c.cpu] && c.busy <= 6*maxTicks && c.idle <= 2*maxTicks,
				"CPU %+v, seen before: %v", c, seen[c.cpu])
			seen[c.cpu] = true
		}
		again, _ := parseStat(iotest.OneByteReader(bytes.NewReader(stat)))
		if diff := cmp.Diff(all, again, cmp.AllowUnexported(ticks{})); diff != "" {
			t.Errorf("read byte by byte (-whole +bytes):\n%s", diff)
		}
	})
}
