package stall_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
)

const day = 24 * time.Hour

// course is what the judge said of a job, second by second.
type course struct {
	name    string
	seconds int
	by      map[string]int // seconds by state of the verdict
	alarms  int            // seconds in which it was said to be stalled while it did not hang
	alarm   time.Duration  // the first of these

	worked, seen int // seconds of work on the device, and those with the verdict 0

	hung    time.Duration // when it began to hang; 0: never
	found   time.Duration // how much later it was found; 0: never
	missed  int           // seconds of the hang with the verdict 0, after the time in which progress counts
	reasons map[stall.Reason]int
}

// judge plays a trace.
func judge(trace stalltest.Trace) course {
	c := course{name: trace.Name, by: map[string]int{}, reasons: map[stall.Reason]int{}}
	p := newPlayer(trace)
	start := stalltest.Start()
	for s := range trace.Samples {
		v := p.play(s)
		at := s.At.Sub(start)
		c.seconds++
		state := v.State()
		c.by[state]++
		switch {
		case s.Truth != stalltest.Hangs:
			c.hung = 0
			if v.Stalled != nil {
				if c.alarms++; c.alarms == 1 {
					c.alarm = at
				}
			}
			if s.Truth == stalltest.Works {
				c.worked++
				if state == "not stalled" {
					c.seen++
				}
			}
		default:
			if c.hung == 0 {
				c.hung = at
			}
			if v.Stalled != nil && c.found == 0 {
				c.found = at - c.hung
			}
			if at-c.hung >= stall.DefaultAfter+2*p.judge.Window() {
				c.reasons[v.Unknown]++
				if state == "not stalled" {
					c.missed++
				}
			}
		}
	}
	return c
}

// often returns the three most frequent states of the verdict.
func (c *course) often() string {
	var states []string
	for state := range c.by {
		states = append(states, state)
	}
	slices.SortFunc(states, func(a, b string) int {
		if c.by[a] != c.by[b] {
			return c.by[b] - c.by[a]
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, state := range states[:min(3, len(states))] {
		out = append(out, fmt.Sprintf("%s %.1f %%", state, 100*float64(c.by[state])/float64(c.seconds)))
	}
	return strings.Join(out, ", ")
}

// verdicts judges all traces in parallel, in the order of their names.
func verdicts(t *testing.T, kinds []stalltest.Kind) []course {
	t.Helper()
	out := make([]course, len(kinds))
	t.Run("kinds", func(t *testing.T) {
		for i := range kinds {
			t.Run(kinds[i].Name, func(t *testing.T) {
				t.Parallel()
				out[i] = judge(kinds[i].Trace(1, day))
			})
		}
	})
	return out
}

// No healthy job has an alarm within a day. The table shows what the verdict is instead.
func TestHealthyJobs(t *testing.T) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "healthy job\talarms\twork that is seen\tverdicts")
	for _, c := range verdicts(t, stalltest.Healthy()) {
		_, _ = fmt.Fprintf(table, "%s\t%d s\t%.0f %%\t%s\n", c.name, c.alarms, 100*float64(c.seen)/float64(max(1, c.worked)),
			c.often())
		if c.alarms > 0 {
			t.Errorf("%s: said to be stalled for %d s, at first after %v", c.name, c.alarms, c.alarm)
		}
	}
	_ = table.Flush()
	t.Log("\n" + text.String())
}

// A hang is found, or there is a reason why not. The verdict is never 0 once no progress counts any
// more.
func TestHangs(t *testing.T) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "hang\tfound after\tverdict 0\tunknown meanwhile")
	for _, c := range verdicts(t, stalltest.Hung()) {
		found, why := "never", ""
		if c.found > 0 {
			found = c.found.String()
		}
		for _, r := range stall.Reasons() {
			if c.reasons[r] > 0 {
				why += fmt.Sprintf(" %s %v", r, time.Duration(c.reasons[r])*time.Second)
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d s\t%s\n", c.name, found, c.missed, strings.TrimSpace(why))
		if c.missed > 0 {
			t.Errorf("%s: said not to be stalled for %d s of a hang", c.name, c.missed)
		}
		if c.found == 0 && why == "" {
			t.Errorf("%s: neither found nor unknown", c.name)
		}
		if c.alarms > 0 {
			t.Errorf("%s: said to be stalled before it hung, after %v", c.name, c.alarm)
		}
	}
	_ = table.Flush()
	t.Log("\n" + text.String())
}

// Of what was recorded on real GPUs, played for two hours with and without five minutes idle
// before, no job that works has an alarm, and no hang has the verdict 0.
func TestRecordings(t *testing.T) {
	recordings, err := stalltest.Recordings(os.DirFS("stalltest/testdata"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "recording\tidle before\talarms\tfound after\tverdicts")
	for _, r := range recordings {
		for _, idle := range []time.Duration{0, 5 * time.Minute} {
			trace := r.Trace(idle, 2*time.Hour)
			trace.Pod.WorkloadKind, trace.Devices = "Job", 1 // it has no other ranks
			c := judge(trace)
			_, _ = fmt.Fprintf(table, "%s, %s\t%v\t%d s\t%v\t%s\n", r.Workload, r.Model.Name, idle, c.alarms, c.found,
				c.often())
			if c.alarms > 0 {
				t.Errorf("%s: said to be stalled for %d s, at first after %v", c.name, c.alarms, c.alarm)
			}
			if c.missed > 0 {
				t.Errorf("%s: said not to be stalled for %d s of a hang", c.name, c.missed)
			}
		}
	}
	_ = table.Flush()
	t.Log("\n" + text.String())
	if len(recordings) < 20 {
		t.Errorf("only %d recordings were played", len(recordings))
	}
}
