package check

import (
	"context"
	"slices"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// follower is a source that finds something when it is watched, and describes that.
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

// A source that follows its inputs is watched while it is checked, and its own words are shown.
func TestWatcher(t *testing.T) {
	c := New(Config{Deadline: timeToReturn})
	samples := c.source(t.Context(), &follower{make(chan struct{})})
	want := Finding{Status: OK, What: "follower", Text: "d: streams"}
	if len(samples) != 1 || !slices.Contains(c.report.Findings, want) {
		t.Errorf("%d samples, findings %+v, want %+v among them", len(samples), c.report.Findings, want)
	}
}
