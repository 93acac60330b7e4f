package check

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
