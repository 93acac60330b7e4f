// Package dashboards tests the shipped rules and dashboards with a real Prometheus: promtool
// evaluates a story for each alert, and a server scrapes the demo.
//
// $PROMTOOL, $PROMETHEUS and $PINT are the paths of the programs; make test-e2e sets them.
package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestCheckedRules checks the shipped rules with promtool and pint.
func TestCheckedRules(t *testing.T) {
	t.Parallel()
	shipped := must.Get(filepath.Abs("../../../dashboards/out/rules.yaml"))(t)
	for _, name := range []string{"dcgm-exporter", "amd-device-metrics-exporter"} {
		file := filepath.Join(filepath.Dir(shipped), "compat", name+".yaml")
		check := exec.Command(program(t, "PROMTOOL"), "check", "rules", "--lint=all", "--lint-fatal", file)
		said, err := check.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", file, err, said)
		}
	}
	for _, tool := range [][]string{
		{program(t, "PROMTOOL"), "check", "rules", "--lint=all", "--lint-fatal", shipped},
		// Prices go by parts of the models' names, which vendors choose: promql/regexp advises
		// against it. Groups of nodes and of all nodes are apart: rule/dependency would have one
		// group. Records of hours have gaps, by group/interval: they are read by sum_over_time
		// alone.
		{
			program(t, "PINT"), "--offline", "--no-color", "--log-level=warn",
			"--disabled=promql/regexp", "--disabled=rule/dependency", "--disabled=group/interval",
			"lint", "--fail-on=info", shipped,
		},
	} {
		cmd := exec.Command(tool[0], tool[1:]...)
		cmd.Dir = t.TempDir() // pint searches a configuration and a repository
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(tool, " "), err, said)
		}
	}
}

// TestAlerts evaluates a story for each alert, in which it fires and resolves, and edge cases in
// which it must not fire.
func TestAlerts(t *testing.T) {
	t.Parallel()
	stories := slices.Concat(idleStories(), idleEdges(), sharingStories(), unclaimedStories(),
		deviceStories(),
		errorStories(), hardwareStories(), linkStories(), networkLinkStories(), exporterStories(), stragglerStories())
	var file strings.Builder
	// All stories run at the same time, each in its own cluster, but for the long ones, so that the
	// others end earlier. Stories about all clusters run alone.
	var together, long, alone []story
	var told []string
	checks := 0
	for i := range stories {
		told = append(told, stories[i].firing()...)
		checks += len(stories[i].checks)
		switch {
		case stories[i].alone:
			alone = append(alone, stories[i].labelled(""))
		case stories[i].length() > minutes:
			long = append(long, stories[i].inCluster())
		default:
			together = append(together, stories[i].inCluster())
		}
	}
	write(&file, together...)
	write(&file, long...)
	for _, s := range alone {
		write(&file, s)
	}
	testRules(t, allGroups(t), file.String())
	for _, name := range alertNames(t) {
		if !slices.Contains(told, name) {
			t.Errorf("no story makes %s fire and resolve", name)
		}
	}
	t.Logf("%d stories with %d checks", len(stories), checks)
}

// allGroups are the shipped rules and those that are off by default.
func allGroups(t *testing.T) []rules.Group {
	o := rules.Defaults()
	o.Idle.Interval = idleEvery
	return groups(t, o)
}

// promtoolEvery is the interval at which promtool evaluates the rules, regardless of the interval
// of their group.
const promtoolEvery = time.Minute

// idleEvery is the option with which sums are recorded as often.
const idleEvery = promtoolEvery / 2

// testRules runs tests in the format of promtool test rules over groups of rules, which it
// evaluates each minute, in their order.
func testRules(t *testing.T, all []rules.Group, tests string) {
	content := must.Get(rules.File(all))(t)
	names := make([]string, 0, len(all))
	for _, g := range all {
		names = append(names, g.Name)
	}
	tests = "rule_files: [rules.yaml]\nevaluation_interval: 1m\ngroup_eval_order: [" + strings.Join(names, ", ") +
		"]\ntests:\n" + tests
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": string(content), "test.yaml": tests} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	runPromtool(t, filepath.Join(dir, "test.yaml"))
}

// runPromtool runs the tests of a file.
func runPromtool(t *testing.T, path string) {
	t.Helper()
	// It computes for long, beside tests that wait for programs.
	cmd := exec.Command("nice", "-n", "10", program(t, "PROMTOOL"), "test", "rules", path)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func groups(t *testing.T, o rules.Options) []rules.Group {
	catalog := query.NewCatalog()
	out := must.Get(rules.Groups(o, catalog))(t)
	return out
}

func alertNames(t *testing.T) []string {
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

// program returns the path of a program from an environment variable.
func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run make test-e2e", variable)
	}
	return path
}

// story is the data that Prometheus scrapes each minute, and the alerts that must fire.
type story struct {
	name   string
	series []series
	checks []check
	alone  bool // about all clusters
}

// series is the value of one series by minute; false: it was not scraped.
type series struct {
	name   string
	labels string
	value  course
}

// check has the alerts that fire at a minute, each as NAME SUBJECT. The subject has the labels that
// distinguish alerts: claim, device, source and so on.
type check struct {
	minute int
	fire   []string
}

// minutes is the duration of a story that has no later check.
const minutes = 120

// length is the number of minutes for which a story has data: to its last check at least.
func (s *story) length() int {
	out := minutes
	for _, c := range s.checks {
		out = max(out, c.minute+1)
	}
	return out
}

// subject are the labels that distinguish the alerts of a check.
const subject = "alertname, cluster, namespace, resourceclaim_name, pod, device, allocated_device, action, reason, " +
	"source"

// snapshots are the times of the snapshots of an exporter that works.
func snapshots() series {
	return series{"dra_exporter_snapshot_timestamp_seconds", target, func(m int) (float64, bool) {
		return float64(m) * 60, true
	}}
}

// inCluster returns the story in a cluster with the story's name. An exporter is up, and works,
// unless the story says otherwise.
func (s *story) inCluster() story {
	label := fmt.Sprintf(", cluster=%q", s.name)
	out := story{name: s.name, series: slices.Clone(s.series)}
	for _, s := range []series{{"up", target, always(1)}, snapshots()} {
		if !slices.ContainsFunc(out.series, func(of series) bool { return of.name == s.name }) {
			out.series = append(out.series, s)
		}
	}
	for i := range out.series {
		out.series[i].labels += label
	}
	out.checks = s.labelled(label).checks
	return out
}

// labelled returns the story with its alerts as labels of series, and one more label.
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

// write writes stories that run at the same time, in the format of promtool test rules.
func write(out *strings.Builder, stories ...story) {
	out.WriteString("- interval: 1m\n  input_series:\n")
	for _, s := range stories {
		for i := range s.series {
			fmt.Fprintf(out, "  - {series: '%s{%s}', values: '%s'}\n", s.series[i].name, s.series[i].labels,
				s.series[i].values(s.length()))
		}
	}
	out.WriteString("  promql_expr_test:\n")
	for _, s := range stories {
		where := ""
		if !s.alone {
			where = fmt.Sprintf(", cluster=%q", s.name)
		}
		for _, c := range s.checks {
			fmt.Fprintf(out,
				"  - eval_time: %dm\n    expr: 'count by (%s) (ALERTS{alertstate=\"firing\"%s})'\n    exp_samples: [", c.minute,
				subject, where)
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

// alertLabels returns the labels of a series for "DRAClaimIdle namespace=a resourceclaim_name=b".
func alertLabels(alert string) string {
	name, rest, _ := strings.Cut(alert, " ")
	out := fmt.Sprintf("alertname=%q", name)
	for pair := range strings.FieldsSeq(rest) {
		label, value, _ := strings.Cut(pair, "=")
		out += fmt.Sprintf(", %s=%q", label, value)
	}
	return out
}

// firing returns the names of the alerts that fire at some time but not at the end, so that they
// have resolved.
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

// values writes the values of so many minutes. A series that is missing once is stale, as after a
// scrape that fails or does not have it.
func (s *series) values(length int) string {
	var out []string
	present := false
	for m := range length {
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

// TestSchema compiles the shipped dashboards as values of Grafana's type Dashboard: unknown keys
// and values of other types are errors.
func TestSchema(t *testing.T) {
	t.Parallel()
	tools := program(t, "SCHEMA")
	boards, err := filepath.Glob(filepath.Join("..", "..", "..", "dashboards", "out", "grafana", "*.json"))
	must.That(t, err == nil && len(boards) == 7, "%d dashboards, %v", len(boards), err)
	dir := t.TempDir()
	must.Do(t, os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")))
	args := []string{
		filepath.Join(tools, "node_modules", "typescript", "bin", "tsc"), "--noEmit", "--strict", "--skipLibCheck",
		"--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext",
	}
	for _, path := range boards {
		content := must.Get(os.ReadFile(path))(t)
		source := strings.TrimSuffix(filepath.Base(path), "json") + "ts"
		must.Do(t, os.WriteFile(filepath.Join(dir, source), typescript(t, content), 0o600))
		args = append(args, source)
	}
	cmd := exec.Command("node", args...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// typescript writes a dashboard as a value of type Dashboard. Enumerations of TypeScript do not
// accept strings, and the annotations' keys of the Prometheus data source (PrometheusAnnotation)
// are not part of the type.
func typescript(t *testing.T, content []byte) []byte {
	t.Helper()
	var dashboard map[string]any
	must.Do(t, json.Unmarshal(content, &dashboard))
	annotations, _ := dashboard["annotations"].(map[string]any)["list"].([]any) // the claims' alone
	for _, a := range annotations {
		annotation := a.(map[string]any)
		for _, key := range []string{"textFormat", "titleFormat", "tagKeys", "step", "useValueForTime"} {
			_, ok := annotation[key]
			expect.That(t, ok, "annotation %v has no %s", annotation["name"], key)
			delete(annotation, key)
		}
		delete(annotation["target"].(map[string]any), "expr")
	}
	text := must.Get(json.MarshalIndent(dashboard, "", " "))(t)
	for pattern, enum := range map[string]string{
		`"mode": "absolute"`:                `"mode": ThresholdsMode.Absolute`,
		`"mode": "thresholds"`:              `"mode": FieldColorModeId.Thresholds`,
		`"mode": "palette-classic-by-name"`: `"mode": FieldColorModeId.PaletteClassicByName`,
		`"mode": "palette-classic"`:         `"mode": FieldColorModeId.PaletteClassic`,
		`"type": "value"`:                   `"type": MappingType.ValueToText`,
	} {
		text = regexp.MustCompile(pattern).ReplaceAll(text, []byte(enum))
	}
	const head = `import { Dashboard, FieldColorModeId, MappingType, ThresholdsMode } from "@grafana/schema";` + "\n"
	return append([]byte(head+"export const dashboard: Dashboard = "), append(text, ";\n"...)...)
}
