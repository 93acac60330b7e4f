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
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const day = 24 * time.Hour

// course is what the judge said of a job, second by second: verdicts on its first device, and
// alarms on any.
type course struct {
	name    string
	seconds int
	last    string         // state of the last verdict
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
	p := play(trace)
	start := stalltest.Start()
	for s := range trace.Samples {
		verdicts := p.Play(s)
		v, stalled := verdicts[0], slices.ContainsFunc(verdicts, func(v stall.Verdict) bool { return v.Stalled != nil })
		at := s.At.Sub(start)
		c.seconds++
		state := v.State()
		c.by[state]++
		c.last = state
		switch {
		case s.Truth != stalltest.Hangs:
			c.hung = 0
			if stalled {
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
			if stalled && c.found == 0 {
				c.found = at - c.hung
			}
			if at-c.hung >= stall.DefaultAfter+2*p.Judge.Window() {
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
		expect.That(t, c.alarms <= 0, "%s: said to be stalled for %d s, at first after %v", c.name, c.alarms, c.alarm)
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
	byNode := 0
	for _, c := range verdicts(t, stalltest.Hung()) {
		found, why := "never", ""
		if c.found > 0 {
			found = c.found.String()
			byNode++
		}
		for _, r := range stall.Reasons() {
			if c.reasons[r] > 0 {
				why += fmt.Sprintf(" %s %v", r, time.Duration(c.reasons[r])*time.Second)
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d s\t%s\n", c.name, found, c.missed, strings.TrimSpace(why))
		expect.That(t, c.missed <= 0, "%s: said not to be stalled for %d s of a hang", c.name, c.missed)
		if c.found == 0 && why == "" {
			t.Errorf("%s: neither found nor unknown", c.name)
		}
		expect.That(t, c.alarms <= 0, "%s: said to be stalled before it hung, after %v", c.name, c.alarm)
	}
	_ = table.Flush()
	t.Logf("\n%sA node by itself finds %d of %d.", text.String(), byNode, len(stalltest.Hung()))
}

// Of what was recorded on real GPUs, played for two hours, no job that works has an alarm, and no
// hang has the verdict 0: at once, after five minutes idle, and after five minutes idle with a
// context open. What the recordings can prove is found.
func TestRecordings(t *testing.T) {
	recordings := must.Get(stalltest.Recordings(os.DirFS("stalltest/testdata")))(t)
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "recording\tbefore\talarms\tfound after\tverdicts")
	states := map[string]string{}
	for _, r := range recordings {
		ready := r
		ready.Idle = readySecond(recordings, &r.Model)
		for _, before := range []struct {
			name string
			of   stalltest.Recording
			idle time.Duration
		}{{"nothing", r, 0}, {"idle", r, 5 * time.Minute}, {"context", ready, 5 * time.Minute}} {
			trace := before.of.Trace(before.idle, 2*time.Hour)
			trace.Pod.WorkloadKind, trace.Devices = "Job", 1 // it has no other ranks
			c := judge(trace)
			name := r.Workload + ", " + r.Model.Name
			_, _ = fmt.Fprintf(table, "%s\t%s\t%d s\t%v\t%s\n", name, before.name, c.alarms, c.found, c.often())
			expect.That(t, c.alarms <= 0, "%s: said to be stalled for %d s, at first after %v", name, c.alarms, c.alarm)
			expect.That(t, c.missed <= 0, "%s: said not to be stalled for %d s of a hang", name, c.missed)
			states[r.Workload+" after "+before.name] = c.last
		}
	}
	_ = table.Flush()
	t.Log("\n" + text.String())
	expect.That(t, len(recordings) >= 20, "only %d recordings were played", len(recordings))
	for name, want := range recordedStates() {
		expect.Is(t, states[name], want, "%s: at last the verdict", name)
	}
}

// readySecond is a second of a device with a context open and no kernel.
func readySecond(recordings []stalltest.Recording, model *stalltest.Model) stalltest.Values {
	for _, r := range recordings {
		last := r.Seconds[len(r.Seconds)-1]
		if r.Model.Name == model.Name && last[stalltest.Busy] == 0 && last[stalltest.Clock] == last[stalltest.ClockMax] &&
			r.Workload != "memcpy_h2d" {
			return last
		}
	}
	panic("no recording of an idle context on a " + model.Name)
}

// recordedStates are the last verdicts that the recordings prove, of the workloads of the H100 and
// the H200 (which has them last): work is seen without having seen the device idle, dependent loads
// and a spin once its idle power with a context open is known.
func recordedStates() map[string]string {
	return map[string]string{
		"mc_fp32 after nothing":             "not stalled",
		"int_hash after nothing":            "not stalled",
		"one_block_fp32 after nothing":      "not stalled",
		"one_block_int after nothing":       "unknown (unclear)", // as an endless loop of one block
		"pointer_chase after idle":          "unknown (no_reference)",
		"pointer_chase after context":       "not stalled",
		"small_kernels after nothing":       "not stalled",
		"hang_spin_hostflag after context":  "unknown (unclear)", // as a kernel that reads the host's memory
		"hang_spin_nanosleep after context": "unknown (no_host)", // its memory was not recorded
		"hang_retry_loop after context":     "unknown (idle)",
		"hang_stopped after nothing":        "unknown (no_reference)",
		"hang_stopped after context":        "stalled",
		"hang_after_training after nothing": "stalled", // its process opened a context before
		"hang_after_training after context": "stalled",
		"hang_idle after context":           "unknown (idle)",
		"wait_tokenizing after context":     "unknown (host_spins)", // one thread computes, and touches no new page
		"wait_checkpoint after context":     "unknown (host_works)",
		"xid after context":                 "unknown (idle)",
		"train_bf16 after nothing":          "not stalled",
		"train_fp32 after nothing":          "not stalled",
		"train_dataloader after nothing":    "not stalled",
		"train_checkpoint after nothing":    "not stalled",
		"infer_decode after nothing":        "not stalled",
		"infer_bursty after nothing":        "not stalled",
		"matmul_fp64 after nothing":         "not stalled",
		"mc_fp64 after nothing":             "not stalled",
		"fft after nothing":                 "not stalled",
		"sort after nothing":                "not stalled",
		"memcpy_h2d after nothing":          "not stalled",
	}
}
