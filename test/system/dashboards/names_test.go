package dashboards

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestSameNames evaluates every query of the dashboards that is not about a total, for one node and
// for two nodes in each of two clusters with equal names otherwise: the answer must have four times
// as many series.
func TestSameNames(t *testing.T) {
	t.Parallel()
	catalog := query.NewCatalog()
	must.Get(rules.Groups(rules.Defaults(), catalog))(t)
	grafana.Catalog(catalog)
	world := sameNames{catalog: catalog, series: map[string]string{}}
	var tests strings.Builder
	queries := 0
	for _, board := range grafana.Boards() {
		for _, row := range board.Rows {
			for _, panel := range row.Panels {
				if panel.Total {
					continue
				}
				for _, target := range panel.Targets {
					all, one := filled(target.Expr, nil), filled(target.Expr, map[string]string{"cluster": "c1", "node": "n1"})
					if answer, err := catalog.Check(all); err != nil || !answer.Has("node") {
						continue // of no node
					}
					queries++
					world.add(t, all)
					fmt.Fprintf(&tests, "  - eval_time: 20m\n    expr: %q\n    exp_samples: [{labels: '{}', value: 1}]\n",
						fmt.Sprintf("(count(%s) == bool 4 * count(%s)) or vector(0) # %s", all, one, panel.Title))
				}
			}
		}
	}
	if queries < 50 {
		t.Errorf("only %d queries", queries)
	}
	var file strings.Builder
	file.WriteString("evaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n")
	for _, series := range slices.Sorted(maps.Keys(world.series)) {
		fmt.Fprintf(&file, "  - {series: %q, values: %q}\n", series, world.series[series])
	}
	file.WriteString("  promql_expr_test:\n" + tests.String())
	path := filepath.Join(t.TempDir(), "test.yaml")
	must.Do(t, os.WriteFile(path, []byte(file.String()), 0o600))
	runPromtool(t, path)
	t.Logf("%d queries, %d series", queries, len(world.series))
}

// filled returns a query on one line.
func filled(expr string, values map[string]string) string {
	return strings.Join(strings.Fields(grafana.Fill(grafana.Expand(expr), values, "15m", "5m", "1m")), " ")
}

// sameNames are the series that queries read, on two nodes in each of two clusters.
type sameNames struct {
	catalog query.Catalog
	series  map[string]string // the values by the series
}

// add adds the series that the selectors of a query read.
func (w *sameNames) add(t *testing.T, expr string) {
	parsed := must.Get(parser.NewParser(parser.Options{}).ParseExpr(expr))(t)
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			w.read(selector)
		}
		return nil
	})
}

func (w *sameNames) read(selector *parser.VectorSelector) {
	family := w.catalog[selector.Name]
	values := map[string]string{}
	for _, label := range family.Labels {
		values[label] = label
	}
	for _, m := range selector.LabelMatchers {
		if m.Name != model.MetricNameLabel && slices.Contains(family.Labels, m.Name) && !m.Matches(values[m.Name]) {
			values[m.Name] = matching(m)
		}
	}
	course := "1x30"
	switch {
	case family.Native:
		course = risingHistogram
	case strings.HasSuffix(selector.Name, "_total"):
		course = "0+60x30"
	case selector.Name == "dra_device_utilization_ratio":
		course = "3x30" // a panel shows only what exceeds the parts of a claim and of a pod
	case selector.Name == "dra_exporter_source_up":
		course = "0x30" // a panel shows only those that fail
	}
	for _, cluster := range []string{"c1", "c2"} {
		for _, node := range []string{"n1", "n2"} {
			values["cluster"], values["node"], values["instance"], values["job"] = cluster, node, node, "dra-exporter"
			var pairs []string
			for _, name := range slices.Sorted(maps.Keys(values)) {
				pairs = append(pairs, fmt.Sprintf("%s=%q", name, values[name]))
			}
			w.series[selector.Name+"{"+strings.Join(pairs, ", ")+"}"] = course
		}
	}
}

// risingHistogram is the course of a native histogram of 20 s of values about 1.5, and of 40 s of
// values about 6, in each minute: more minutes than any test asks.
const risingHistogram = "{{}}+{{schema:0 sum:270 count:60 offset:1 buckets:[20 0 40]}}x60"

// matching returns a value that a matcher accepts.
func matching(m *labels.Matcher) string {
	for _, value := range append(regexp.MustCompile(`[|()]`).Split(m.Value, -1), "", "other") {
		if m.Matches(value) {
			return value
		}
	}
	return m.Value
}
