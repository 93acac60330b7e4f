package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"
)

// The prefixes of the older records and alerts, and how often promtool compares.
const (
	wasRecord, wasAlert = "was_", "Was"
	compareEvery        = 20 * time.Minute
)

// compareRules compares what the rules of two trees record of a day: promtool compares each record
// and the alerts, evaluated each minute.
func compareRules(ctx context.Context, o options, older string, stdout io.Writer) (err error) {
	exposed, err := record(ctx, o.checkout, o.lasting)
	if err != nil {
		return err
	}
	t, err := parseTemplate(exposed)
	if err != nil {
		return err
	}
	end := t.at.Truncate(rulesEvery)
	f := &fleet{template: t, begin: end.Add(-o.history), churn: rulesEvery}
	was, err := loadRules(older)
	if err != nil {
		return err
	}
	now, err := loadRules(o.checkout)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return f.promtool(ctx, dir, was, now, o.history, stdout)
}

// promtool writes a test for promtool over a day of a node, and runs it.
func (f *fleet) promtool(ctx context.Context, dir string, was, now []rulefmt.RuleGroup, day time.Duration,
	stdout io.Writer,
) error {
	renamed := renamedRules(was)
	order := make([]string, 0, len(was)+len(now))
	for _, g := range slices.Concat(renamed, now) {
		order = append(order, g.Name)
	}
	for name, groups := range map[string][]rulefmt.RuleGroup{"was.yaml": renamed, "now.yaml": now} {
		text, err := yaml.Marshal(rulefmt.RuleGroups{Groups: groups})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write rules: %w", err)
		}
	}
	path := filepath.Join(dir, "test.yaml")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the test of promtool: %w", err)
	}
	w := bufio.NewWriter(file)
	_, _ = fmt.Fprintf(w, "rule_files: [was.yaml, now.yaml]\nevaluation_interval: 1m\ngroup_eval_order: [%s]\ntests:\n"+
		"- interval: 1m\n  input_series:\n", strings.Join(order, ", "))
	f.writeDay(w, day)
	exprs := inequalities(was, now)
	_, _ = fmt.Fprintln(w, "  promql_expr_test:")
	for at := compareEvery; at < day; at += compareEvery {
		for _, expr := range exprs {
			_, _ = fmt.Fprintf(w, "  - {eval_time: %s, expr: %q}\n", model.Duration(at), expr)
		}
	}
	if err := errors.Join(w.Flush(), file.Close()); err != nil {
		return fmt.Errorf("write the test of promtool: %w", err)
	}
	program := os.Getenv("PROMTOOL")
	if program == "" {
		program = "promtool"
	}
	said, err := exec.CommandContext(ctx, program, "test", "rules", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the rules differ: %w\n%s", err, said)
	}
	_, _ = fmt.Fprintf(stdout, "promtool: %d expressions, each at %d times of %s, find no difference\n", len(exprs),
		(day-1)/compareEvery, model.Duration(day))
	return nil
}

// writeDay writes the series of a node as promtool reads them, with a value each minute.
func (f *fleet) writeDay(w io.Writer, day time.Duration) {
	builder := labels.NewBuilder(labels.EmptyLabels())
	for i := range f.series {
		s := &f.series[i]
		for minute := 0; minute <= int(day.Minutes()); {
			at := func() time.Time { return f.begin.Add(time.Duration(minute) * time.Minute) }
			number, since := f.generation(0, s.unit, at())
			_, _ = fmt.Fprintf(w, "  - {series: %q, values: '", f.labelsOf(builder, s, 0, number).String())
			if minute > 0 {
				_, _ = fmt.Fprintf(w, "_x%d ", minute-1)
			}
			for ; minute <= int(day.Minutes()); minute++ {
				if next, _ := f.generation(0, s.unit, at()); next != number {
					break
				}
				_, _ = io.WriteString(w, strconv.FormatFloat(f.value(s, 0, since, at()), 'g', -1, 64)+" ")
			}
			_, _ = fmt.Fprintln(w, "stale'}")
		}
	}
}

// identifier matches names in expressions.
var identifier = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)

// renamedRules returns rules that record, read and fire under other names.
func renamedRules(groups []rulefmt.RuleGroup) []rulefmt.RuleGroup {
	names := map[string]bool{}
	for _, g := range groups {
		for _, r := range g.Rules {
			names[r.Record] = true
		}
	}
	var out []rulefmt.RuleGroup
	for _, g := range groups {
		g.Name, g.Rules = wasRecord+g.Name, slices.Clone(g.Rules)
		for i := range g.Rules {
			r := &g.Rules[i]
			r.Expr = identifier.ReplaceAllStringFunc(r.Expr, func(name string) string {
				if names[name] {
					return wasRecord + name
				}
				return name
			})
			if r.Annotations = nil; r.Alert != "" {
				r.Alert = wasAlert + r.Alert
			} else {
				r.Record = wasRecord + r.Record
			}
		}
		out = append(out, g)
	}
	return out
}

// factor matches the seconds by which an increase is recorded.
var factor = regexp.MustCompile(`\) \* (\d+)$`)

// inequalities are expressions with a result where two versions of a record, or of the alerts,
// differ. Increases are recorded by the interval of their group.
func inequalities(was, now []rulefmt.RuleGroup) []string {
	factors := func(groups []rulefmt.RuleGroup) map[string]float64 {
		out := map[string]float64{}
		for _, g := range groups {
			for _, r := range g.Rules {
				out[r.Record] = 1
				if found := factor.FindStringSubmatch(r.Expr); found != nil {
					out[r.Record], _ = strconv.ParseFloat(found[1], 64)
				}
			}
		}
		return out
	}
	before, after := factors(was), factors(now)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok || name == "" {
			continue
		}
		of := strings.TrimSuffix(name, "1h")
		a, b := "max without (by) ("+name+")", "max without (by) ("+wasRecord+name+")"
		const differs = "%[1]s unless %[2]s or %[2]s unless %[1]s or abs(%[1]s - %[2]s * %[3]g) > 1e-9 * abs(%[1]s)"
		out = append(out, fmt.Sprintf(differs, a, b, max(1, after[of])/max(1, before[of])))
	}
	alerts, old := `ALERTS{alertname!~"`+wasAlert+`.*"}`,
		`label_replace(ALERTS{alertname=~"`+wasAlert+`.*"}, "alertname", "$1", "alertname", "`+wasAlert+`(.*)")`
	return append(out, alerts+" unless "+old+" or "+old+" unless "+alerts)
}
