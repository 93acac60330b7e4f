package stalltest_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestWorkloads checks that workloads are what their truth says: shares are from 0 to 1, counters
// do not fall, no two series are the same, each straggler is a member, and a slow member makes the
// others wait: their tensor activity is below that before.
func TestWorkloads(t *testing.T) {
	slow, names := 0, map[string]bool{}
	for _, w := range stalltest.Workloads() {
		expect.That(t, !names[w.Name] && w.Why != "" && w.Source != "" && w.Kind != "" && len(w.Members) >= 3,
			"%s: twice, or without a reason, a source, a kind or three members", w.Name)
		names[w.Name] = true
		seen := map[string]bool{}
		for _, s := range w.Series("a") {
			if key := s.Metric + s.Labels; seen[key] {
				t.Errorf("%s: %s{%s} twice", w.Name, s.Metric, s.Labels)
			} else {
				seen[key] = true
			}
			checkSeries(t, w.Name, s)
		}
		for _, s := range w.Stragglers {
			slow++
			other := w.Members[(s.Member+1)%len(w.Members)]
			if s.From == 0 {
				continue
			}
			before, after := other.At(s.From-1).Tensor, other.At(s.From+1).Tensor
			expect.That(t, after <= 0.9*before, "%s: the others compute as much as before, %v and %v", w.Name, before, after)
		}
	}
	expect.That(t, slow >= 5 && len(names)-slow >= 15, "%d workloads with a straggler of %d", slow, len(names))
}

// TestPresence checks that a member has samples only while it is a member, and that its counters
// start at 0.
func TestPresence(t *testing.T) {
	for _, w := range stalltest.Workloads() {
		series := w.Series("a")
		perMember := len(series) / len(w.Members)
		for i, s := range series {
			m := w.Members[i/perMember]
			last := m.Last
			if last == 0 {
				last = stalltest.WorkloadMinutes
			}
			for minute := range stalltest.WorkloadMinutes {
				v, ok := s.Value(minute)
				must.That(t, ok == (minute >= m.First && minute < last),
					"%s: %s of %s in minute %d: %v", w.Name, s.Metric, m.Name, minute, ok)
				if minute == m.First && strings.HasSuffix(s.Metric, "_total") && v != 0 {
					t.Errorf("%s: %s of %s starts at %v", w.Name, s.Metric, m.Name, v)
				}
			}
		}
	}
}

func checkSeries(t *testing.T, workload string, s stalltest.Series) {
	t.Helper()
	last, samples := 0.0, 0
	for minute := range stalltest.WorkloadMinutes + 5 {
		v, ok := s.Value(minute)
		if !ok {
			continue
		}
		samples++
		switch {
		case math.IsNaN(v) || v < 0:
			t.Fatalf("%s: %s is %v in minute %d", workload, s.Metric, v, minute)
		case strings.HasSuffix(s.Metric, "_ratio") && v > 1:
			t.Fatalf("%s: a share of %v", workload, v)
		case strings.HasSuffix(s.Metric, "_total") && v < last:
			t.Fatalf("%s: %s fell from %v to %v", workload, s.Metric, last, v)
		}
		last = v
	}
	expect.That(t, samples >= stalltest.WorkloadMinutes/3 && samples <= stalltest.WorkloadMinutes,
		"%s: %d samples of %s", workload, samples, s.Metric)
}

// TestGroups checks that the members of a job are in step, and that a job hangs if and only if its
// truth says so: from some second on, no member works.
func TestGroups(t *testing.T) {
	names, hung := map[string]bool{}, 0
	for _, g := range stalltest.Groups() {
		expect.That(t, !names[g.Name] && g.Why != "" && g.Source != "" && len(g.Members) >= 2,
			"%s: twice, or without a reason, a source or two members", g.Name)
		names[g.Name] = true
		if g.Hangs {
			hung++
		}
		worked := make([]bool, int((8 * time.Hour).Seconds())) // some member works, or is idle and not hung
		hangs := make([]bool, len(worked))
		for _, k := range g.Members {
			expect.That(t, k.Pod.Members == len(g.Members) || k.Pod.Members >= 2, "%s: %+v", k.Name, k.Pod)
			i := 0
			for s := range k.Trace(1, 8*time.Hour).Samples {
				worked[i] = worked[i] || s.Truth == stalltest.Works
				hangs[i] = hangs[i] || s.Truth == stalltest.Hangs
				i++
			}
		}
		last := len(worked) - 1
		expect.That(t, hangs[last] == g.Hangs && (!g.Hangs || !worked[last]),
			"%s: hangs %v, works %v at the end, want hangs %v", g.Name, hangs[last], worked[last], g.Hangs)
		for i := range worked {
			if hangs[i] && worked[i] {
				t.Errorf("%s: in second %d a member works and another hangs", g.Name, i)
				break
			}
		}
	}
	expect.That(t, hung >= 8 && len(names)-hung >= 8, "%d groups hang of %d", hung, len(names))
}
