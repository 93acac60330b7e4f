// Package dashboards tests the shipped rules and dashboards with a real Prometheus: promtool plays courses of events for each
// alert, and a server scrapes the demo.
//
// $PROMTOOL, $PROMETHEUS and $PINT name the programs; make test-e2e sets them.
package dashboards

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// TestCheckedRules lets promtool and pint look for mistakes in the shipped rules.
func TestCheckedRules(t *testing.T) {
	shipped, err := filepath.Abs("../../dashboards/out/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range [][]string{
		{program(t, "PROMTOOL"), "check", "rules", "--lint=all", "--lint-fatal", shipped},
		{program(t, "PINT"), "--offline", "--no-color", "--log-level=warn", "lint", "--fail-on=info", shipped},
	} {
		cmd := exec.Command(tool[0], tool[1:]...)
		cmd.Dir = t.TempDir() // pint looks for a configuration and a repository
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(tool, " "), err, said)
		}
	}
}

// TestAlerts plays a course of events for each alert, in which it fires and resolves, and the edge cases in which it must
// not fire.
func TestAlerts(t *testing.T) {
	stories := slices.Concat(idleStories(), idleEdges(), sharingStories(), deviceStories(), errorStories(), exporterStories())
	dir := t.TempDir()
	writeRules(t, dir)
	var file strings.Builder
	file.WriteString("rule_files: [rules.yaml]\nevaluation_interval: 1m\ntests:\n")
	// All stories are told at once, each in a cluster of its own; those about all clusters alone.
	var together, alone []story
	var told []string
	checks := 0
	for i := range stories {
		told = append(told, stories[i].firing()...)
		checks += len(stories[i].checks)
		if stories[i].alone {
			alone = append(alone, stories[i].labelled(""))
			continue
		}
		together = append(together, stories[i].inCluster())
	}
	write(&file, together...)
	for _, s := range alone {
		write(&file, s)
	}
	path := filepath.Join(dir, "stories.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command(program(t, "PROMTOOL"), "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	for _, name := range alertNames(t) {
		if !slices.Contains(told, name) {
			t.Errorf("no story lets %s fire and resolve", name)
		}
	}
	t.Logf("%d stories with %d checks", len(stories), checks)
}

func writeRules(t *testing.T, dir string) {
	t.Helper()
	content, err := rules.File(groups(t, rules.Defaults()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func groups(t *testing.T, o rules.Options) []rules.Group {
	t.Helper()
	catalog, err := query.NewCatalog()
	if err != nil {
		t.Fatal(err)
	}
	out, err := rules.Groups(o, catalog)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func alertNames(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, g := range groups(t, rules.Defaults()) {
		for _, r := range g.Rules {
			if r.Alert != "" && !slices.Contains(out, r.Alert) {
				out = append(out, r.Alert)
			}
		}
	}
	return out
}

// program returns the program that an environment variable names.
func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s names no program: run make test-e2e", variable)
	}
	return path
}

// story is what Prometheus scrapes each minute, and which alerts fire then.
type story struct {
	name   string
	series []series
	checks []check
	alone  bool // it is about all clusters
}

// series is what one series is worth, minute by minute; false: it was not scraped.
type series struct {
	name   string
	labels string
	value  course
}

// check says which alerts fire at a minute, each as NAME SUBJECT, of the subject's labels those that are told apart by:
// claim, device, source and so on.
type check struct {
	minute int
	fire   []string
}

// minutes is how long a story lasts.
const minutes = 120

// subject are the labels by which the alerts of a check are told apart.
const subject = "alertname, cluster, namespace, resourceclaim_name, device, action, reason, source"

// inCluster returns the story in a cluster that is named after it, in which an exporter is up unless the story has it
// otherwise.
func (s *story) inCluster() story {
	label := fmt.Sprintf(", cluster=%q", s.name)
	out := story{name: s.name, series: slices.Clone(s.series)}
	if !slices.ContainsFunc(out.series, func(s series) bool { return s.name == "up" }) {
		out.series = append(out.series, series{"up", target, always(1)})
	}
	for i := range out.series {
		out.series[i].labels += label
	}
	out.checks = s.labelled(label).checks
	return out
}

// labelled returns the story with its alerts as labels of series, and one more.
func (s *story) labelled(more string) story {
	out := *s
	out.checks = nil
	for _, c := range s.checks {
		as := check{minute: c.minute}
		for _, alert := range c.fire {
			as.fire = append(as.fire, alertLabels(alert)+more)
		}
		out.checks = append(out.checks, as)
	}
	return out
}

// write writes stories that happen at once, as promtool test rules reads them.
func write(out *strings.Builder, stories ...story) {
	out.WriteString("- interval: 1m\n  input_series:\n")
	for _, s := range stories {
		for i := range s.series {
			fmt.Fprintf(out, "  - {series: '%s{%s}', values: '%s'}\n", s.series[i].name, s.series[i].labels, s.series[i].values())
		}
	}
	out.WriteString("  promql_expr_test:\n")
	for _, s := range stories {
		where := ""
		if !s.alone {
			where = fmt.Sprintf(", cluster=%q", s.name)
		}
		for _, c := range s.checks {
			fmt.Fprintf(out, "  - eval_time: %dm\n    expr: 'count by (%s) (ALERTS{alertstate=\"firing\"%s})'\n    exp_samples: [", c.minute, subject, where)
			for i, alert := range c.fire {
				if i > 0 {
					out.WriteString(", ")
				}
				fmt.Fprintf(out, "{labels: '{%s}', value: 1}", alert)
			}
			out.WriteString("]\n")
		}
	}
}

// alertLabels turns "DRAClaimIdle namespace=a resourceclaim_name=b" into the labels of a series.
func alertLabels(alert string) string {
	name, rest, _ := strings.Cut(alert, " ")
	out := fmt.Sprintf("alertname=%q", name)
	for pair := range strings.FieldsSeq(rest) {
		label, value, _ := strings.Cut(pair, "=")
		out += fmt.Sprintf(", %s=%q", label, value)
	}
	return out
}

// firing lists the names of the alerts that fire at some time and not at the end, so that they were seen to resolve.
func (s *story) firing() []string {
	if len(s.checks) == 0 || len(s.checks[len(s.checks)-1].fire) > 0 {
		return nil
	}
	var out []string
	for _, c := range s.checks {
		for _, alert := range c.fire {
			name, _, _ := strings.Cut(alert, " ")
			out = append(out, name)
		}
	}
	return out
}

// values writes the course. A series that is missed once is stale, as after a scrape that fails or does not have it.
func (s *series) values() string {
	var out []string
	present := false
	for m := range minutes {
		v, ok := s.value(m)
		switch {
		case ok:
			out = append(out, fmt.Sprintf("%g", v))
		case present:
			out = append(out, "stale")
		default:
			out = append(out, "_")
		}
		present = ok
	}
	return strings.Join(out, " ")
}
