package dashboards

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// copies are the changes of labels for series that are scraped or recorded twice.
func copies() map[string]func(*labels.Builder) {
	return map[string]func(*labels.Builder){
		"another instance": func(b *labels.Builder) { b.Set("instance", "10.0.0.1:10985") },
		"another job":      func(b *labels.Builder) { b.Set("job", "monitoring/dra-exporter") },
		"another replica":  func(b *labels.Builder) { b.Set("prometheus_replica", "b") },
	}
}

// minuteOf is the time of a minute of the series.
func minuteOf(m int) time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(m) * time.Minute)
}

// lastMinute is the minute at which queries are evaluated.
const lastMinute = 40

// fill appends the series of a world until the present. With a change of labels, it also appends
// copies of the series of one node.
func fill(t testing.TB, e *engine, world map[string]string, change func(*labels.Builder)) {
	t.Helper()
	_, histograms, err := parser.NewParser(parser.Options{}).ParseSeriesDesc("x " + risingHistogram)
	if err != nil {
		t.Fatal(err)
	}
	for series, course := range world {
		all := []labels.Labels{parsed(series)}
		if strings.Contains(series, `node="n1"`) && change != nil {
			b := labels.NewBuilder(all[0])
			if all[0].Get("prometheus_replica") == "" {
				b.Set("prometheus_replica", "a")
			}
			change(b)
			all = append(all, b.Labels())
		}
		for _, l := range all {
			var points []point
			for m := range lastMinute + 1 {
				p := point{labels: l, at: minuteOf(m), value: 1}
				switch {
				case strings.HasPrefix(course, "0+60"):
					p.value = 60 * float64(m)
				case strings.HasPrefix(course, "0x"):
					p.value = 0
				case course == risingHistogram:
					p.histogram = histograms[m].Histogram
				}
				points = append(points, p)
			}
			e.add(t, points...)
		}
	}
}

// TestDuplicates evaluates all rules and panels if one node of four is
// scraped twice, and if a pair of Prometheus servers records everything twice. The answers must be
// those without copies.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	catalog := query.NewCatalog()
	scraped := sameNames{catalog: catalog, series: map[string]string{}}
	all := groups(t, rules.Defaults())
	scraped.addScraped(t, all)
	must.Get(rules.Groups(rules.Defaults(), catalog))(t)
	grafana.Catalog(catalog)
	recorded := sameNames{catalog: catalog, series: map[string]string{}}
	queries := map[string]string{}
	for _, board := range grafana.Boards() {
		for _, row := range board.Rows {
			for _, panel := range row.Panels {
				for _, target := range panel.Targets {
					q := filled(target.Expr, nil)
					recorded.add(t, q)
					queries[q] = board.UID + ": " + panel.Title
				}
			}
		}
	}
	evaluated := func(t *testing.T, change func(*labels.Builder)) (byRule, byQuery map[string]answers) {
		t.Helper()
		once := newEngine(t)
		fill(t, once, scraped.series, change)
		byRule = once.evaluate(t, all, minuteOf(lastMinute))
		pair := newEngine(t)
		fill(t, pair, recorded.series, change)
		byQuery = map[string]answers{}
		for _, q := range slices.Sorted(maps.Keys(queries)) {
			got, err := pair.answers(q, minuteOf(lastMinute))
			if err != nil {
				t.Errorf("%s: %v", queries[q], err)
			}
			byQuery[q] = got
		}
		return byRule, byQuery
	}
	wantRules, wantQueries := evaluated(t, nil)
	for name, change := range copies() {
		t.Run(name, func(t *testing.T) {
			gotRules, gotQueries := evaluated(t, change)
			for rule, want := range wantRules {
				if difference := want.differ(gotRules[rule]); difference != "" {
					t.Errorf("%s: %s", rule, difference)
				}
			}
			for q, want := range wantQueries {
				if difference := want.differ(gotQueries[q]); difference != "" {
					t.Errorf("%s: %s: %s", queries[q], q, difference)
				}
			}
		})
	}
	t.Logf("%d rules, %d of them empty; %d queries, %d of them empty", len(wantRules), empty(wantRules), len(queries),
		empty(wantQueries))
}

// addScraped adds the series that rules read and that no rule records.
func (w *sameNames) addScraped(t *testing.T, groups []rules.Group) {
	t.Helper()
	for _, g := range groups {
		for i := range g.Rules {
			w.add(t, g.Rules[i].Expr)
		}
	}
	for name := range w.series {
		if metric, _, _ := strings.Cut(name, "{"); w.catalog[metric].Name == "" {
			delete(w.series, name)
		}
	}
}

func empty(all map[string]answers) int {
	n := 0
	for _, a := range all {
		if len(a) == 0 {
			n++
		}
	}
	return n
}
