package check

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// A socket that is absent, has no listener, or accepts connections is recognized by the kernel's
// errors.
func TestSocketTrouble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	check := func(want string) {
		t.Helper()
		failed := driver.WithReason(driver.ReasonTimeout, errors.New("late"))
		expect.Is(t, socketTrouble(t.Context(), path, failed).Text, path+": "+want, "it says")
	}
	check("there is no such socket")
	listener := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path}))(t)
	listener.SetUnlinkOnClose(false)
	check("no answer in time")
	must.Do(t, listener.Close())
	check("nothing listens on the socket")
}

// The status of a report is that of its worst finding.
func TestWorst(t *testing.T) {
	var r Report
	for _, step := range []struct {
		add  Status
		want Status
	}{{"", OK}, {Warn, Warn}, {OK, Warn}, {Fail, Fail}, {Warn, Fail}} {
		r.add(Finding{Status: step.add, What: "pods", Text: "evil \x1b[2J"})
		expect.Is(t, r.Worst(), step.want, "after %q it", step.add)
	}
	var out bytes.Buffer
	clean := func(s string) string { return strings.ReplaceAll(s, "\x1b", "?") }
	must.Do(t, r.WriteText(&out, false, clean))
	said, summary := out.String(), "\nFAIL: 1 failure, 2 warnings\n"
	expect.That(t, !strings.Contains(said, "\x1b") && strings.HasSuffix(said, summary), "the text is %q", said)
}

// If no device has telemetry, there is a failure, and one warning that names all devices. If one
// device has telemetry, there is only a warning for the other one.
func TestNoTelemetry(t *testing.T) {
	a, b := jointest.ID("gpu-0"), jointest.ID("gpu-1")
	in := join.Input{
		View: podresources.View{At: time.Unix(1000, 0)},
		Inventory: driver.Inventory{
			a: {Hardware: driver.Hardware{UUID: "gpu-0"}}, b: {Hardware: driver.Hardware{UUID: "gpu-1"}},
		},
	}
	c := New(Config{})
	c.devices(join.Join(in))
	expect.That(t, c.report.Worst() == Fail && c.report.Warnings == 1, "without telemetry: %+v", c.report)
	want := a.Driver + "/" + a.Pool + ": gpu-0, gpu-1 (2 devices): no telemetry"
	if text := c.report.Findings[0].Text; !strings.HasPrefix(text, want) {
		t.Errorf("the warning is %q", text)
	}
	in.Sources = []join.SourceSamples{{Name: "a", Samples: []driver.Sample{{
		Hardware: driver.Hardware{UUID: "gpu-0"},
		Readings: []driver.Reading{{Quantity: driver.Power, Value: 1, At: time.Unix(1000, 0)}},
	}}}}
	c = New(Config{})
	c.devices(join.Join(in))
	expect.That(t, c.report.Worst() == Warn && c.report.Warnings == 1, "with one reading: %+v", c.report)
}

// A utilization of 0 that the power contradicts is a warning.
func TestContradiction(t *testing.T) {
	in := join.Input{
		View:      podresources.View{At: time.Unix(1000, 0)},
		Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
	}
	reading := func(q driver.Quantity, label string, v float64) driver.Reading {
		return driver.Reading{Quantity: q, Labels: driver.Labels{label}, Value: v, At: time.Unix(1000, 0)}
	}
	for watts, want := range map[float64]Status{80: OK, 500: Warn} {
		in.Sources = []join.SourceSamples{{Name: "a", Samples: []driver.Sample{{
			Hardware: driver.Hardware{UUID: "gpu-0"},
			Readings: []driver.Reading{
				reading(driver.Utilization, "", 0), reading(driver.Power, "", watts), reading(driver.PowerLimit, "enforced", 700),
			},
		}}}}
		c := New(Config{IdleThreshold: 0.01})
		if c.devices(join.Join(in)); c.report.Worst() != want {
			t.Errorf("at %v W: %+v", watts, c.report)
		}
	}
}

// forbidden is a source that lacks a permission.
type forbidden struct{}

func (forbidden) Name() string { return "example" }

func (forbidden) Sample(context.Context) ([]driver.Sample, error) {
	err := driver.WithReason(driver.ReasonForbidden, errors.New("read processes: set this value in the chart"))
	return []driver.Sample{{Readings: []driver.Reading{{Quantity: driver.Power}}}}, errors.Join(err, errors.New("more"))
}

// The error of a source, with its remedy, is in the one line of the source.
func TestSourceFails(t *testing.T) {
	c := New(Config{Deadline: time.Minute})
	c.source(t.Context(), forbidden{})
	want := "1 piece of hardware, but: read processes: set this value in the chart; more"
	if f := c.report.Findings[0]; f.Status != Fail || f.Text != want || !strings.Contains(f.Do, "chart's values") {
		t.Errorf("it says %+v, want %q", f, want)
	}
}

// Inputs can be observed concurrently: claims are fetched concurrently.
func TestInputsAtOnce(t *testing.T) {
	inputs := NewInputs()
	var observing sync.WaitGroup
	for n := range 8 {
		observing.Go(func() {
			for range 100 {
				inputs.Observe("claims", 0, errors.New("no"), time.Time{})
				inputs.ObserveReader("cdi", 0, errors.New("no"), time.Time{})
				inputs.Reject(driver.Rejection{Input: "claims", Reason: driver.ReasonMalformed, Count: n})
			}
		})
	}
	observing.Wait()
	expect.Is(t, inputs.copy().rejections["claims"][driver.ReasonMalformed], 2800, "rejections")
}

// mapped is a source with a configured list of metrics.
type mapped struct{ unmatched []string }

func (mapped) Name() string                                    { return "scrape/vendor" }
func (mapped) Sample(context.Context) ([]driver.Sample, error) { return nil, nil }
func (m mapped) Unmatched() []string                           { return m.unmatched }

// The report names the mappings that never matched.
func TestUnmatched(t *testing.T) {
	for _, test := range []struct{ unmatched, want []string }{
		{nil, []string{"no hardware here"}},
		{[]string{"busy", "watts"}, []string{"no hardware here", "metrics without a usable series: busy, watts"}},
	} {
		c := New(Config{Deadline: time.Minute})
		c.source(t.Context(), mapped{test.unmatched})
		var got []string
		for _, f := range c.report.Findings {
			got = append(got, f.Text)
		}
		expect.That(t, slices.Equal(got, test.want), "findings %q, want %q", got, test.want)
	}
}

// follower is a source that has a sample after Watch was called, and describes its inputs.
type follower struct{ found chan struct{} }

func (f *follower) Name() string { return "follower" }

func (f *follower) Watch(ctx context.Context) {
	close(f.found)
	<-ctx.Done()
}

func (f *follower) Sample(ctx context.Context) ([]driver.Sample, error) {
	select {
	case <-f.found:
		return []driver.Sample{{Driver: "d", Pool: "p", Device: "x"}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *follower) Describe() []string { return []string{"d: streams"} }

// During a check, Watch of a source runs, and the lines of its description are findings.
func TestWatcher(t *testing.T) {
	c := New(Config{Deadline: time.Minute})
	samples := c.source(t.Context(), &follower{make(chan struct{})})
	want := Finding{Status: OK, What: "follower", Text: "d: streams"}
	expect.That(t, len(samples) == 1 && slices.Contains(c.report.Findings, want),
		"%d samples, findings %+v, want %+v among them", len(samples), c.report.Findings, want)
}

// idle is a source without samples that describes its inputs.
type idle struct {
	err   error
	lines []string
}

func (idle) Name() string { return "idle" }

func (i idle) Sample(context.Context) ([]driver.Sample, error) { return nil, i.err }

func (i idle) Describe() []string { return i.lines }

// The description of a source without samples replaces "no hardware here", and is shown in addition
// to an error.
func TestDescribedWithoutSamples(t *testing.T) {
	two := []string{"/dev/kmsg is not read", "nor is another"}
	for _, c := range []struct {
		source idle
		want   []string
	}{
		{idle{lines: two}, two},
		{idle{}, []string{"no hardware here"}},
		{idle{err: errors.New("open /dev/kmsg"), lines: []string{"0 records"}}, []string{"open /dev/kmsg", "0 records"}},
	} {
		checker := New(Config{Deadline: time.Minute})
		checker.source(t.Context(), c.source)
		var got []string
		for _, f := range checker.report.Findings {
			got = append(got, f.Text)
		}
		expect.That(t, slices.Equal(got, c.want), "of %+v it says %q, want %q", c.source, got, c.want)
	}
}

// stuck is a source that returns when it is released, whatever its context.
type stuck chan struct{}

func (stuck) Name() string { return "stuck" }

func (s stuck) Sample(context.Context) ([]driver.Sample, error) {
	<-s
	return nil, nil
}

// A source that hangs is a failure, soon after its deadline.
func TestSourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, began := make(stuck), time.Now()
		c := New(Config{Deadline: time.Second})
		c.source(t.Context(), source)
		f := c.report.Findings[0]
		expect.That(t, f.Status == Fail && f.Text == "sample: no answer in time" && f.Do != "" &&
			time.Since(began) == time.Second+driver.HangAfter, "%+v after %v", f, time.Since(began))
		close(source)
	})
}
