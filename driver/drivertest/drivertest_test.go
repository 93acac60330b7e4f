package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a source that keeps every promise, until one of its hooks breaks it.
type fake struct {
	now    time.Time
	calls  int
	name   func(calls int) string
	change func(calls int, samples []driver.Sample) []driver.Sample
	answer func(context.Context, []driver.Sample) ([]driver.Sample, error)
}

func (f *fake) Name() string {
	if f.name != nil {
		return f.name(f.calls)
	}
	return "fake"
}

func (f *fake) Sample(ctx context.Context) ([]driver.Sample, error) {
	f.calls++
	samples := f.read()
	if f.change != nil {
		samples = f.change(f.calls, samples)
	}
	if f.answer != nil {
		return f.answer(ctx, samples)
	}
	return samples, nil
}

func (f *fake) read() []driver.Sample {
	rise := float64(f.calls)
	return []driver.Sample{
		{
			Hardware: driver.Hardware{UUID: "GPU-1", PCI: "0000:3b:00.0", DeviceNodes: []string{"/dev/nvidia0"}},
			Readings: []driver.Reading{
				{Quantity: driver.Utilization, Value: 0.5, At: f.now},
				{Quantity: driver.Energy, Value: rise, At: f.now},
				{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, Value: 1, At: f.now, Since: f.now.Add(-time.Hour)},
			},
			Processes: []driver.Process{{
				PID:      7,
				Readings: []driver.Reading{{Quantity: driver.MemoryUsed, Value: 1, At: f.now}},
			}},
		},
		{
			Hardware: driver.Hardware{CPUs: []int{1, 2}},
			Readings: []driver.Reading{{
				Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: rise,
				At: f.now,
			}},
		},
	}
}

// config returns the suite's config of sources that setup changes.
func config(setup func(*fake)) Config {
	current := &fake{}
	clock := time.Unix(1_000_000, 0)
	fakeOf := func(setup func(*fake)) driver.Source {
		current = &fake{now: clock}
		if setup != nil {
			setup(current)
		}
		return current
	}
	return Config{
		New: func(testing.TB) driver.Source { return fakeOf(setup) },
		Now: func() time.Time { return clock },
		Advance: func() {
			clock = clock.Add(time.Second)
			current.now = clock
		},
		Absent: func(testing.TB) driver.Source {
			return fakeOf(func(f *fake) {
				f.answer = func(context.Context, []driver.Sample) ([]driver.Sample, error) { return nil, nil }
			})
		},
		Hang: func(testing.TB) driver.Source {
			return fakeOf(func(f *fake) {
				f.answer = func(ctx context.Context, _ []driver.Sample) ([]driver.Sample, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			})
		},
		Faults: []Fault{energyFault(loseEnergy)},
		grace:  20 * time.Millisecond,
	}
}

var errEnergy = errors.New("read energy: input/output error")

func loseEnergy(_ context.Context, samples []driver.Sample) ([]driver.Sample, error) {
	r := samples[0].Readings
	samples[0].Readings = slices.Delete(r, 1, 2)
	return samples, errEnergy
}

// energyFault is a fault of the energy counter, to which the source answers in its own way.
func energyFault(answer func(context.Context, []driver.Sample) ([]driver.Sample, error)) Fault {
	return Fault{
		Name: "energy",
		New: func(testing.TB) (driver.Source, func()) {
			f := &fake{now: time.Unix(1_000_000, 0)}
			return f, func() { f.answer = answer }
		},
		Hits: func(_ driver.Sample, r driver.Reading) bool { return r.Quantity == driver.Energy },
	}
}

// recorder is a test that keeps its failures to itself.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// failures runs the whole suite and returns what fails, as "check: message".
func failures(t *testing.T, c Config) []string {
	var list []string
	for _, check := range c.checks() {
		r := &recorder{TB: t}
		check.run(r, c)
		for _, f := range r.failures {
			list = append(list, check.name+": "+f)
		}
	}
	return list
}

func TestGoodSourcePasses(t *testing.T) {
	Run(t, config(nil))
	minimal := Config{New: config(nil).New, Now: func() time.Time { return time.Unix(2_000_000, 0) }}
	minimal.New = func(testing.TB) driver.Source {
		return &fake{now: time.Unix(1_000_000, 0), change: func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Readings, s[1].Readings[0].Value = s[0].Readings[:1], 1
			return s
		}}
	}
	Run(t, minimal)
}

// onReading changes the first reading, a gauge, of the first hardware.
func onReading(change func(calls int, r *driver.Reading)) func(*fake) {
	return onSamples(func(calls int, s []driver.Sample) []driver.Sample {
		change(calls, &s[0].Readings[0])
		return s
	})
}

// onSamples changes all that a call returns.
func onSamples(change func(calls int, s []driver.Sample) []driver.Sample) func(*fake) {
	return func(f *fake) { f.change = change }
}

// onEnergy changes the counter among them.
func onEnergy(change func(calls int, r *driver.Reading)) func(*fake) {
	return onSamples(func(calls int, s []driver.Sample) []driver.Sample {
		change(calls, &s[0].Readings[1])
		return s
	})
}

func TestBadSourceFails(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(*fake)
		want  string // the check, and a part of its message
	}{
		{
			"name changes", func(f *fake) { f.name = func(calls int) string { return fmt.Sprintf("fake%d", calls) } },
			"name: name was",
		},
		{
			"name is no flag", func(f *fake) { f.name = func(int) string { return "Fake source" } },
			"name: name \"Fake source\" is not fit",
		},
		{"error of inputs that work", func(f *fake) {
			f.answer = func(_ context.Context, s []driver.Sample) ([]driver.Sample, error) { return s, errEnergy }
		}, "readings: sample of inputs that work: read energy"},
		{"no readings", onSamples(func(int, []driver.Sample) []driver.Sample { return nil }), "readings: no reading"},
		{
			"unknown quantity", onReading(func(_ int, r *driver.Reading) { r.Quantity = driver.NumQuantities }),
			"is not in the catalogue",
		},
		{"label too many", onReading(func(_ int, r *driver.Reading) { r.Labels[0] = "x" }), "without a label"},
		{"label not in list", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[1].Readings[0].Labels[1] = "sideways"
			return s
		}), `direction="sideways" is not in the closed list`},
		{"label not UTF-8", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Readings[2].Labels[1] = "\xff"
			return s
		}), "label code is not UTF-8"},
		{"not a number", onReading(func(_ int, r *driver.Reading) { r.Value = math.NaN() }), "not_finite"},
		{"infinite", onReading(func(_ int, r *driver.Reading) { r.Value = math.Inf(1) }), "not_finite"},
		{"negative", onReading(func(_ int, r *driver.Reading) { r.Value = -1 }), ": negative"},
		{"percent", onReading(func(_ int, r *driver.Reading) { r.Value = 50 }), "out_of_range"},
		{"time not set", onReading(func(_ int, r *driver.Reading) { r.At = time.Time{} }), "is not set"},
		{"future", onReading(func(_ int, r *driver.Reading) { r.At = r.At.Add(1) }), "in the future"},
		{"gauge since", onReading(func(_ int, r *driver.Reading) { r.Since = r.At }), "a gauge that counts"},
		{"since after at", onEnergy(func(_ int, r *driver.Reading) { r.Since = r.At.Add(1) }), "after the reading"},
		{"twice the reading", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Readings[1] = s[0].Readings[0]
			return s
		}), "reading is there twice"},
		{
			"twice the hardware", onSamples(func(_ int, s []driver.Sample) []driver.Sample { return append(s, s[0]) }),
			"hardware is there twice",
		},
		{"no identity", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[1].Hardware = driver.Hardware{}
			return s
		}), "without identity"},
		{"device without driver", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[1].Device = "gpu-1"
			return s
		}), "without its driver"},
		{"PCI address", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Hardware.PCI = "00000000:3B:00.0"
			return s
		}), "not in its normal form"},
		{"CPUs", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[1].Hardware.CPUs = []int{2, 2}
			return s
		}), "are not ascending"},
		{"process twice", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Processes = append(s[0].Processes, s[0].Processes[0])
			return s
		}), "process 7 is no process, or there twice"},
		{"process intensive", onSamples(func(_ int, s []driver.Sample) []driver.Sample {
			s[0].Processes[0].Readings[0].Quantity = driver.Temperature
			return s
		}), "is not additive"},
		{
			"hardware vanishes", onSamples(func(calls int, s []driver.Sample) []driver.Sample { return s[:2-min(calls/3, 1)] }),
			"continuity: sample 3: [1 2]: hardware vanished",
		},
		{"hardware renamed", onSamples(func(calls int, s []driver.Sample) []driver.Sample {
			s[0].Hardware.UUID = fmt.Sprintf("GPU-%d", calls)
			return s
		}), "hardware appeared"},
		{
			"time goes back",
			onReading(func(calls int, r *driver.Reading) { r.At = r.At.Add(time.Duration(-calls*calls) * time.Second) }),
			"time went back",
		},
		{"time stands", onEnergy(func(_ int, r *driver.Reading) { r.At = time.Unix(1, 0) }), "value changed"},
		{
			"counter falls", onEnergy(func(calls int, r *driver.Reading) { r.Value = float64(100 - calls) }),
			"counter fell from 99 to 98",
		},
		{
			"since goes back", onEnergy(func(calls int, r *driver.Reading) { r.Since = time.Unix(int64(100-calls), 0) }),
			"start of the count went back",
		},
		{"memory kept", keepMemory(), "ownership: a sample changed what the caller kept"},
		{"memory shared", shareMemory, "ownership: sample 0 shares memory"},
		{"ignores a context that ended", func(f *fake) {
			f.answer = func(ctx context.Context, s []driver.Sample) ([]driver.Sample, error) {
				if ctx.Err() != nil {
					<-t.Context().Done() // of the test around
				}
				return s, nil
			}
		}, "cancelled: with a context that has ended: sample did not return"},
		{"stays cancelled", stayCancelled, "cancelled: sample of inputs that work: context canceled"},
		{"goroutine left", func(f *fake) {
			f.answer = func(_ context.Context, s []driver.Sample) ([]driver.Sample, error) {
				go func() { <-t.Context().Done() }()
				return s, nil
			}
		}, "goroutines: goroutines left"},
		{"file left open", func(f *fake) {
			f.answer = func(_ context.Context, s []driver.Sample) ([]driver.Sample, error) {
				file, err := os.Open(os.DevNull)
				t.Cleanup(func() { _ = file.Close() })
				return s, err
			}
		}, "files: 5 samples left 5 files open"},
	} {
		t.Run(tc.name, func(t *testing.T) { wantFailure(t, config(tc.setup), tc.want) })
	}
}

func wantFailure(t *testing.T, c Config, want string) {
	got := failures(t, c)
	expect.That(t, strings.Contains(strings.Join(got, "\n"), want), "failures %q lack %q", got, want)
}

// keepMemory writes each sample where the one before is.
func keepMemory() func(*fake) {
	return func(f *fake) {
		var buffer []driver.Sample
		f.answer = func(_ context.Context, s []driver.Sample) ([]driver.Sample, error) {
			buffer = append(buffer[:0], s...)
			return buffer, nil
		}
	}
}

// shareMemory cuts the readings of all hardware from one slice, without a bound.
func shareMemory(f *fake) {
	f.change = func(_ int, s []driver.Sample) []driver.Sample {
		all := append(append([]driver.Reading{}, s[0].Readings...), s[1].Readings...)
		s[0].Readings, s[1].Readings = all[:3], all[3:]
		return s
	}
}

func stayCancelled(f *fake) {
	var first error
	f.answer = func(ctx context.Context, s []driver.Sample) ([]driver.Sample, error) {
		if first == nil {
			first = ctx.Err()
		}
		return s, first
	}
}

func TestBadSourceFailsWithBadInputs(t *testing.T) {
	whole := func(_ context.Context, s []driver.Sample) ([]driver.Sample, error) { return s, errEnergy }
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"absent is there", func(c *Config) { c.Absent = c.New }, "absent: sample 1 without hardware: 2 samples"},
		{"absent is an error", func(c *Config) { c.Absent = failing }, "absent: sample 1 without hardware: read energy"},
		{"hangs", func(c *Config) { c.Hang = hanging }, "hang: with an input that hangs: sample did not return"},
		{"hang is no error", func(c *Config) { c.Hang = c.New }, "hang: with an input that hangs: no error"},
		{
			"zero for unread", func(c *Config) { c.Faults[0] = energyFault(whole) },
			"fault later/energy: there though it can't be read",
		},
		{"all lost", func(c *Config) {
			c.Faults[0] = energyFault(func(context.Context, []driver.Sample) ([]driver.Sample, error) { return nil, errEnergy })
		}, "fault from the start/energy: lost though the fault does not hit it"},
		{"fault in silence", func(c *Config) {
			c.Faults[0] = energyFault(func(ctx context.Context, s []driver.Sample) ([]driver.Sample, error) {
				s, _ = loseEnergy(ctx, s)
				return s, nil
			})
		}, "no error of what can't be read"},
		{
			"hang for another reason", func(c *Config) { c.Hang = patient },
			`hang: reason "other" of "read energy: input/output error" is none of`,
		},
		{
			"error of what is unsupported", func(c *Config) { c.Faults[0].Silent = true },
			"fault later/energy: sample: read energy",
		},
		{"fault that hits nothing", func(c *Config) {
			c.Faults[0].Hits = func(driver.Sample, driver.Reading) bool { return false }
		}, "hits none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := config(nil)
			tc.change(&c)
			wantFailure(t, c, tc.want)
		})
	}
}

// patient returns a source that fails when its context ends, with an error that does not wrap the
// context's.
func patient(testing.TB) driver.Source {
	return &fake{answer: func(ctx context.Context, _ []driver.Sample) ([]driver.Sample, error) {
		<-ctx.Done()
		return nil, errEnergy
	}}
}

func failing(testing.TB) driver.Source {
	return &fake{answer: func(context.Context, []driver.Sample) ([]driver.Sample, error) { return nil, errEnergy }}
}

// hanging returns a source that outlasts its context, but not the test.
func hanging(tb testing.TB) driver.Source {
	end := make(chan struct{})
	tb.Cleanup(func() { close(end) })
	return &fake{answer: func(context.Context, []driver.Sample) ([]driver.Sample, error) {
		<-end
		return nil, nil
	}}
}

func TestFollowsAcceptsMarkedReset(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	sample := func(r driver.Reading) []driver.Sample {
		return []driver.Sample{{Hardware: driver.Hardware{UUID: "GPU-1"}, Readings: []driver.Reading{r}}}
	}
	before := sample(driver.Reading{Quantity: driver.Energy, Value: 100, At: at(10)})
	after := sample(driver.Reading{Quantity: driver.Energy, Value: 1, At: at(20), Since: at(15)})
	err := Follows(before, after)
	expect.That(t, err == nil, "a reset after the reading before: %v", err)
	after[0].Readings[0].Since = at(10)
	expect.That(t, Follows(before, after) != nil, "a fall, with a start before the reading before, is accepted")
}

// counting is a source that counts rejections.
type counting struct {
	driver.Source
	rejected func() driver.Rejections
}

func (c *counting) Rejected() driver.Rejections { return c.rejected() }

// miscounting counts rejections in a way of its own.
type miscounting struct{ driver.Source }

func (*miscounting) Rejected() map[string]uint64 { return nil }

func TestRejections(t *testing.T) {
	newCounting := func(rejected func() driver.Rejections) Config {
		c := config(nil)
		inner := c.New
		c.New = func(tb testing.TB) driver.Source {
			return &counting{inner(tb), rejected}
		}
		return c
	}
	count := 0
	got := failures(t, newCounting(func() driver.Rejections {
		count++
		return driver.Rejections{driver.ReasonStale: count}
	}))
	expect.That(t, len(got) == 0, "a source that counts well fails: %q", got)
	kept := driver.Rejections{driver.ReasonStale: 1}
	for name, tc := range map[string]struct {
		rejected func() driver.Rejections
		want     string
	}{
		"none": {
			func() driver.Rejections { return driver.Rejections{driver.ReasonStale: 0} },
			"rejections: sample 1: 0 rejected",
		},
		"falls": {func() driver.Rejections {
			count--
			return driver.Rejections{driver.ReasonStale: 100 + count}
		}, `rejections: sample 2: rejections for reason "stale" fell`},
		"keeps the map": {func() driver.Rejections { return kept }, `fell from 1 to 0`},
	} {
		t.Run(name, func(t *testing.T) { wantFailure(t, newCounting(tc.rejected), tc.want) })
	}
	c := config(nil)
	inner := c.New
	c.New = func(tb testing.TB) driver.Source {
		return &miscounting{inner(tb)}
	}
	wantFailure(t, c, "rejections: method Rejected is not that of driver.RejectionCounter")
}

func TestWriteTree(t *testing.T) {
	folder := t.TempDir()
	WriteTree(t, folder, `# two files and a link

devices/0000:3b:00.0/vendor: 0x15b3
class/net/eth0/device -> ../../../devices/0000:3b:00.0
devices/0000:3b:00.0/vendor: 0x8086
`)
	got, err := os.ReadFile(filepath.Join(folder, "class", "net", "eth0", "device", "vendor"))
	expect.That(t, err == nil && string(got) == "0x8086\n", "read through the link: %q, %v", got, err)
	for _, line := range []string{"no content", "class/net/eth0: a file where a folder is"} {
		expect.That(t, writeNode(folder, line) != nil, "%q was written", line)
	}
}
