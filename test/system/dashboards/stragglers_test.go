package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestStragglers compares the stragglers of the rules with the truth of generated workloads, each
// fifth minute: slow members that others wait for are named with their reason, and nobody else is,
// whether members differ by design, have nothing to do with each other, wait for one that saves a
// checkpoint, or are all as slow.
func TestStragglers(t *testing.T) {
	t.Parallel()
	var stories []story
	var checks strings.Builder
	for _, w := range stalltest.Workloads() {
		s := story{name: w.Name, checks: []check{{minute: stalltest.WorkloadMinutes - 1}}}
		for _, of := range w.Series("a") {
			s.series = append(s.series, series{of.Metric, of.Labels, course(of.Value)})
		}
		stories = append(stories, s.inCluster())
		for minute := 30; minute < stalltest.WorkloadMinutes; minute += 5 {
			if want, certain := stragglersAt(&w, minute); certain {
				fmt.Fprintf(&checks, "  - {eval_time: %dm, expr: 'sum by (cluster, device, reason) (%s{cluster=\"%s\"})', "+
					"exp_samples: [%s]}\n", minute, rules.StragglerRecord, w.Name, want)
			}
		}
	}
	var file strings.Builder
	write(&file, stories...)
	file.WriteString(checks.String())
	testRules(t, stragglerGroups(t), file.String())
	t.Logf("%d workloads, %d checks", len(stories), strings.Count(checks.String(), "\n"))
}

// stragglerGroups are the rules that compare members, with the records that they read: promtool
// evaluates all others in minutes.
func stragglerGroups(t *testing.T) []rules.Group {
	t.Helper()
	read := []string{"pod:dra_workload:info", "device:dra_model:info"}
	var out []rules.Group
	for _, g := range allGroups(t) {
		if !strings.Contains(g.Name, "members") {
			g.Rules = slices.DeleteFunc(slices.Clone(g.Rules), func(r rules.Rule) bool {
				return !slices.Contains(read, r.Record)
			})
		}
		if len(g.Rules) > 0 {
			out = append(out, g)
		}
	}
	must.That(t, len(out) >= 3, "only %d groups compare members", len(out))
	return out
}

// stragglersAt returns the samples of the stragglers at a minute. It is not certain while the
// rules' windows have both times before and times after a change.
func stragglersAt(w *stalltest.Workload, minute int) (samples string, certain bool) {
	var all []string
	for _, s := range w.Stragglers {
		window := 15
		if s.Reason == "busy" || s.Reason == "starved" {
			window = 30
		}
		switch {
		case s.From == 0 && minute < s.To, minute >= s.From+window && minute < s.To:
			all = append(all, fmt.Sprintf(`{labels: '{cluster=%q, device="gpu-%d", reason=%q}', value: 1}`, w.Name, s.Member,
				s.Reason))
		case minute >= s.From && minute < s.To+window:
			return "", false
		}
	}
	return strings.Join(all, ", "), true
}
