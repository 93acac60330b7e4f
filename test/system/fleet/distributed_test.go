package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The time and the range of the queries.
const (
	settling  = 20 * time.Second // until each group has found what the others record
	asked     = 40 * time.Second // of history
	maxDiffer = 5                // differences that are printed of one expression
)

// TestDistributed compares Thanos with one Prometheus over the same samples: two Prometheus servers
// scrape one half of the nodes each, evaluate the rules of nodes, and send everything to two
// receivers of Thanos, whose ruler evaluates the global rules. Every record and every alert must
// have the value that its rule gives in one Prometheus, over what Thanos has of other rules. Over
// the same, the expression of every rule and every query of every panel must have the same values.
func TestDistributed(t *testing.T) {
	t.Parallel() // it waits more than it computes
	started := time.Now()
	d := startDistributed(t)
	wait(t.Context(), settling+asked)
	at := time.Now().Truncate(time.Second)
	d.awaitDelivery(t, at)
	all := d.adopt(t, started.Add(-rulerOffset), at)
	t.Run("records", func(t *testing.T) { d.compareRecords(t, all, at) })
	t.Run("device of all nodes", func(t *testing.T) { d.checkClusterDevice(t, at) })
	t.Run("rules", func(t *testing.T) {
		groups := must.Get(loadRules(d.tree))(t)
		answered, count := 0, 0
		for _, group := range groups {
			for _, rule := range group.Rules {
				count++
				answered += d.compare(t, ruleName(rule), rule.Expr, at, 0, 0)
			}
		}
		if count < 50 || answered < count/3 {
			t.Errorf("%d of %d rules have a result", answered, count)
		}
	})
	boards := must.Get(loadBoards("../../.."))(t)
	for i := range boards {
		t.Run(boards[i].UID, func(t *testing.T) { d.compareBoard(t, &boards[i], at) })
	}
}

// compareBoard compares the answers for the panels of a dashboard, with All for every variable.
func (d *distributed) compareBoard(t *testing.T, b *board, at time.Time) {
	v := newView(d.one, at, asked)
	for _, of := range b.Templating.List {
		v.set(of.Name, ".*")
	}
	v.set("hours", "") // a part of names, for months
	answered, count := 0, 0
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			span := asked
			if target.Instant {
				span = 0
			}
			count++
			// Which of equal ones are among the first ten depends on the order: all are asked for.
			expr := firstOf.ReplaceAllString(v.fill(target.Expr), "topk(1000000, ")
			answered += d.compare(t, p.Title, expr, at, span, v.step)
		}
	}
	if answered < count/3 {
		t.Errorf("%d of %d queries have an answer", answered, count)
	}
}

// firstOf matches the choice of the highest values.
var firstOf = regexp.MustCompile(`topk\((\d+), *`)

// compareRecords compares the samples of all records and alerts with what their rules give.
func (d *distributed) compareRecords(t *testing.T, all evaluations, at time.Time) {
	var want []answer
	for missing := time.Duration(0); missing <= interval; missing += interval / 4 {
		want = append(want, d.expected(t, all, missing).since(at.Add(-asked)))
	}
	got := must.Get(d.thanos.answer(t.Context(), `{__name__=~".+:.+|ALERTS.*"}[1h]`, at, 0, 0))(t)
	got = got.since(at.Add(-asked))
	names := map[string]int{}
	for _, series := range got {
		names[series.labels.Get(model.MetricNameLabel)]++
	}
	_, late, values := differences(got, want)
	possible, _, _ := differences(want[len(want)-1], want[:1])
	t.Logf("%d groups, %d records, %d series of Thanos, %d of one Prometheus; of %d values %d are late, %d may be",
		len(all), len(names), len(got), len(want[0]), values, late, len(possible))
	if len(names) < 15 {
		t.Errorf("only %d metrics are recorded: %v", len(names), names)
	}
	differ(t, "records", got, want...)
	if late > maxLate(values) {
		t.Errorf("%d of %d values are late", late, values)
	}
}

// checkClusterDevice checks that the claims of all nodes of a cluster hold its device of all nodes
// for as long together as a record of hours covers: twice the interval of idleness.
func (d *distributed) checkClusterDevice(t *testing.T, at time.Time) {
	got, err := d.thanos.answer(t.Context(),
		`sum by (cluster) (namespace:dra_allocated_share_seconds:increase{namespace="fabric"})`, at.Add(-rulerOffset), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	clusters := map[string]bool{}
	for node := range shards * perShard {
		clusters[target(node)["cluster"]] = true
	}
	if len(got) != len(clusters) {
		t.Errorf("%d clusters have the device, want %d", len(got), len(clusters))
	}
	for labels, series := range got {
		for _, seconds := range series.values {
			if want := 2 * interval.Seconds(); math.Abs(seconds-want) > 0.1*want {
				t.Errorf("%s: %v s, want %v", labels, seconds, want)
			}
		}
	}
}

// compare compares the answers to an expression, and returns 1 if there is any.
func (d *distributed) compare(t *testing.T, name, expr string, at time.Time, span, step time.Duration) int {
	t.Helper()
	want, err := d.one.answer(t.Context(), expr, at, span, step)
	if err != nil {
		t.Errorf("%s: one Prometheus: %v", name, err)
		return 0
	}
	got, err := d.thanos.answer(t.Context(), expr, at, span, step)
	if err != nil {
		t.Errorf("%s: Thanos: %v", name, err)
		return 0
	}
	differ(t, name+": "+expr, got, want)
	return min(len(want), 1)
}

// answer is the result of a query, by labels.
type answer map[string]answered

type answered struct {
	labels labels.Labels
	values map[int64]float64 // by time in milliseconds
}

// add adds a sample.
func (a answer) add(s promql.Sample) {
	key := s.Metric.String()
	if a[key].values == nil {
		a[key] = answered{s.Metric, map[int64]float64{}}
	}
	a[key].values[s.T] = s.F
}

// since returns the series that have samples after a time, with these samples.
func (a answer) since(after time.Time) answer {
	out := answer{}
	for _, series := range a {
		for ms, v := range series.values {
			if ms > after.UnixMilli() {
				out.add(promql.Sample{Metric: series.labels, T: ms, F: v})
			}
		}
	}
	return out
}

// times returns when there is a sample of any series, in order.
func (a answer) times() (out []time.Time) {
	all := map[int64]bool{}
	for _, series := range a {
		for ms := range series.values {
			all[ms] = true
		}
	}
	for _, ms := range slices.Sorted(maps.Keys(all)) {
		out = append(out, time.UnixMilli(ms))
	}
	return out
}

// maxLate is how many values may be as if a group had not found what others of its server recorded
// just before: of a hundred values one, and a few of any.
func maxLate(values int) int { return 4 + values/100 }

// differ fails the test if an answer has values that are not among the possible ones.
func differ(t *testing.T, what string, got answer, want ...answer) {
	t.Helper()
	found, _, values := differences(got, want)
	slices.Sort(found)
	if len(found) > 0 {
		t.Errorf("%s: %d differences of %d values:\n  %s", what, len(found), values,
			strings.Join(found[:min(len(found), maxDiffer)], "\n  "))
	}
}

// differences returns the values that are not among the possible ones, the number of values that
// are not the expected ones, and the number of all values.
func differences(got answer, want []answer) (found []string, late, values int) {
	at := map[string]map[int64]bool{}
	for _, a := range append([]answer{got}, want...) {
		for key, series := range a {
			if at[key] == nil {
				at[key] = map[int64]bool{}
			}
			for ms := range series.values {
				at[key][ms] = true
			}
		}
	}
	for key, all := range at {
		for ms := range all {
			values++
			is := func(a answer) bool {
				v, ok := a[key].values[ms]
				value, there := got[key].values[ms]
				return ok == there && (!ok || same(v, value))
			}
			switch i := slices.IndexFunc(want, is); {
			case i < 0:
				value, there := got[key].values[ms]
				expected, ok := want[0][key].values[ms]
				found = append(found, fmt.Sprintf("%s at %d: %v (%v), want %v (%v)", key, ms, value, there, expected, ok))
			case i > 0:
				late++
			}
		}
	}
	return found, late, values
}

// same reports whether two values are equal, apart from the order in which floats were added.
func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || a == b || math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b))
}

func TestSame(t *testing.T) {
	third := 0.1 + 0.2
	if !same(third, 0.3) || !same(math.NaN(), math.NaN()) || same(1, 1.0001) || same(0, 1e-9) || same(math.NaN(), 1) {
		t.Error("values are not told apart")
	}
}

func TestDifferences(t *testing.T) {
	of := func(values ...float64) answer {
		a := answered{values: map[int64]float64{}}
		for i, v := range values {
			if v >= 0 {
				a.values[int64(i)] = v
			}
		}
		return answer{"a": a}
	}
	for _, tt := range []struct {
		got         answer
		found, late int
	}{
		{of(1, 2, 3), 0, 0},
		{of(1, 2, 2), 0, 1},
		{of(1, 2, 4), 1, 0},
		{of(1, 2), 1, 0},
		{of(1, -1, 3), 0, 1},
		{of(1, 2, 3, 4), 1, 0},
		{answer{}, 2, 1},
		{answer{"b": of(1)["a"]}, 3, 1},
	} {
		found, late, _ := differences(tt.got, []answer{of(1, 2, 3), of(1, -1, 2)})
		if len(found) != tt.found || late != tt.late {
			t.Errorf("%v: %q and %d late, want %d and %d", tt.got, found, late, tt.found, tt.late)
		}
	}
}

// remote is a server with Prometheus's API.
type remote struct{ live.Prometheus }

func (r remote) answer(ctx context.Context, expr string, at time.Time, span, step time.Duration) (answer, error) {
	var series []live.Series
	var err error
	if span == 0 {
		series, err = r.Query(ctx, expr, at)
	} else {
		series, err = r.QueryRange(ctx, expr, at.Add(-span), at, step)
	}
	if err != nil {
		return nil, err
	}
	out := answer{}
	for _, s := range series {
		a := answered{labels.FromMap(s.Labels), map[int64]float64{}}
		for _, sample := range s.Samples {
			a.values[sample.At.UnixMilli()] = sample.Value
		}
		out[a.labels.String()] = a
	}
	return out, nil
}

// answer is the answer of the engine.
func (e engine) answer(ctx context.Context, expr string, at time.Time, span, step time.Duration) (answer, error) {
	var query promql.Query
	var err error
	if span == 0 {
		query, err = e.NewInstantQuery(ctx, e.store, nil, expr, at)
	} else {
		query, err = e.NewRangeQuery(ctx, e.store, nil, expr, at.Add(-span), at, step)
	}
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	out := answer{}
	switch v := result.Value.(type) {
	case promql.Vector:
		for _, s := range v {
			out.add(s)
		}
	case promql.Scalar:
		out["{}"] = answered{values: map[int64]float64{v.T: v.V}}
	case promql.Matrix:
		for _, s := range v {
			a := answered{s.Metric, map[int64]float64{}}
			for _, p := range s.Floats {
				a.values[p.T] = p.F
			}
			out[s.Metric.String()] = a
		}
	}
	return out, nil
}

// generateRules writes the rules with windows of seconds into a folder, as a tree that loadRules
// reads.
func generateRules(t *testing.T) (tree string) {
	t.Helper()
	tree = t.TempDir()
	out := filepath.Join(tree, "dashboards", "out")
	values := filepath.Join(tree, "values.yaml")
	must.Do(t, os.WriteFile(values, []byte(`prometheusRule:
  {interval: 4s, rateWindow: 16s, idle: {interval: 4s, window: 20s, held: 0.5, for: 4s}, errorWindow: 20s, for: 4s,
  keepFiringFor: 8s, prices: [{models: .*H100.*, perHour: 3}]}`), 0o600))
	generate := exec.CommandContext(t.Context(), "go", "run", "./generate", "-out="+out, "-values="+values)
	generate.Dir = "../../../dashboards"
	if said, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generate rules: %v\n%s", err, said)
	}
	return tree
}

// ruleFile writes a file of rules and returns its path. It writes the groups with an interval of at
// most this number of seconds, each with the record of its evaluation.
func ruleFile(t *testing.T, tree, name string) string {
	t.Helper()
	path := filepath.Join(tree, "dashboards", "out", name)
	content := must.Get(os.ReadFile(path))(t)
	short := regexp.MustCompile(`(?m)^ *- name: (.*)\n(?: *interval: .*\n)? *rules:\n`).ReplaceAll(content,
		fmt.Appendf(nil, `  - name: $1
    interval: %v
    rules:
      - {record: %s, expr: 'group by (cluster, node) (up)', labels: {rule_group: $1}}
`, interval, evaluated))
	must.Do(t, os.WriteFile(path, short, 0o600))
	return path
}
