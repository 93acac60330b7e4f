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
	"time"

	"github.com/prometheus/common/model"
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

// sameNames are the series that queries read, on two nodes in each of two clusters.
type sameNames struct {
	catalog query.Catalog
	series  map[string]string // the values by the series
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

// add adds the series that the selectors of a query read.
func (w *sameNames) add(t *testing.T, expr string) {
	t.Helper()
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

// TestShards evaluates the rules of nodes on two servers, each of which scrapes one node of each
// cluster, and on one without targets. Then it evaluates the rules over all nodes on a server that
// has nothing but what the others recorded. All values are those of one
// server that evaluates all rules over all nodes.
func TestShards(t *testing.T) {
	t.Parallel()
	catalog := query.NewCatalog()
	all := groups(t, rules.Defaults())
	scraped := sameNames{catalog: catalog, series: map[string]string{}}
	scraped.addScraped(t, all)
	maps.Copy(scraped.series, sharedDevices())
	of := func(keep func(series string) bool) *engine {
		e := newEngine(t)
		some := maps.Clone(scraped.series)
		maps.DeleteFunc(some, func(series, _ string) bool { return !keep(series) })
		fill(t, e, some, nil)
		return e
	}
	one := of(func(string) bool { return true })
	want := one.evaluate(t, all, minuteOf(lastMinute))

	union := newEngine(t)
	got := map[string]answers{}
	for shard, scraper := range map[string]*engine{
		"a": of(func(series string) bool { return strings.Contains(series, `node="n1"`) }),
		"b": of(func(series string) bool { return strings.Contains(series, `node="n2"`) }),
		"c": newEngine(t),
	} {
		for rule, a := range scraper.evaluate(t, rules.Of(rules.Node, all), minuteOf(lastMinute)) {
			if got[rule] == nil {
				got[rule] = answers{}
			}
			if shard == "c" && len(a) > 0 {
				t.Errorf("a server without targets has an answer for %s: %v", rule, a)
			}
			maps.Copy(got[rule], a)
		}
		for _, p := range scraper.recorded {
			p.labels = labels.NewBuilder(p.labels).Set("prometheus", shard).Labels()
			union.add(t, p)
		}
	}
	maps.Copy(got, union.evaluate(t, rules.Of(rules.Global, all), minuteOf(lastMinute)))
	for rule, a := range want {
		if difference := a.differ(got[rule]); difference != "" {
			t.Errorf("%s: %s", rule, difference)
		}
	}
	if len(got) != len(want) || empty(want) > len(want)/2 {
		t.Errorf("%d rules in two parts, %d together, %d of them without an answer", len(got), len(want), empty(want))
	}
	checkSharedDevices(t, union)
}

// sharedDevices has a device that both nodes of a cluster can use and one of them holds, such a
// device without a holder, and on each node a device of a plugin, which has no pool.
func sharedDevices() map[string]string {
	out := map[string]string{}
	for node, held := range map[string]string{"n1": "0x30", "n2": "1x30"} {
		for device, claims := range map[string]string{
			`driver="fabric.x", pool="all", device="fabric-0"`: held,
			`driver="fabric.x", pool="all", device="fabric-1"`: "0x30",
			`driver="plugin.x", pool="", device="fuse0"`:       "0x30",
		} {
			in := device + `, cluster="c1", node="` + node + `", instance="` + node + `", job="dra-exporter"`
			out["dra_device_allocations{"+in+"}"] = claims
			state := "free"
			if claims == "1x30" {
				state = "unmeasured"
			}
			out["dra_device_state{"+in+`, state="`+state+`", reason=""}`] = "1x30"
			out["dra_device_info{"+in+`, vendor="x", model="F", parent="", listed="true"}`] = "1x30"
		}
	}
	return out
}

// checkSharedDevices compares the numbers of these devices with those by hand.
func checkSharedDevices(t *testing.T, e *engine) {
	t.Helper()
	for expr, want := range map[string]float64{
		`cluster:dra_devices:count{driver="fabric.x", state="unmeasured"}`: 1,
		`cluster:dra_devices:count{driver="fabric.x", state="free"}`:       1,
		`sum(cluster:dra_devices:count{driver="fabric.x"})`:                2,
		`cluster:dra_claimed_devices:count{driver="fabric.x"}`:             1,
		`cluster:dra_devices:count{driver="plugin.x", state="free"}`:       2,
		`cluster:dra_exporters:count{cluster="c1"}`:                        2,
	} {
		got, err := e.query(expr, minuteOf(lastMinute))
		if err != nil || len(got) != 1 || got[0].F != want {
			t.Errorf("%s is %v, want %v, error %v", expr, got, want, err)
		}
	}
}

// TestClusterDevices compares sums over nodes with arithmetic by hand, where claims of two nodes
// have devices that are offered to both: each device counts once, and its claims divide it.
func TestClusterDevices(t *testing.T) {
	t.Parallel()
	o := rules.Defaults()
	o.Prices, o.Idle.Interval = []rules.Price{{Models: "F", PerHour: 3}}, idleEvery
	all := groups(t, o)
	for i := range all {
		all[i].Rules = slices.DeleteFunc(all[i].Rules, func(r rules.Rule) bool { return r.Record == "" })
	}
	all = slices.DeleteFunc(all, func(g rules.Group) bool { return len(g.Rules) == 0 })
	var file strings.Builder
	for _, twice := range []bool{false, true} {
		fmt.Fprintf(&file, "- name: 'scraped twice: %v'\n  interval: 1m\n  input_series:\n", twice)
		for _, node := range []string{"n1", "n2"} {
			writeClusterDevices(&file, node, node)
			if twice {
				writeClusterDevices(&file, node, "10.0.0.1:10985")
			}
		}
		file.WriteString("  promql_expr_test:\n")
		for expr, want := range clusterDevicesByHand() {
			fmt.Fprintf(&file, "  - eval_time: 3h\n    expr: 'round(sum without (model) (%s), 0.001)'\n    exp_samples:\n", expr)
			for _, labels := range slices.Sorted(maps.Keys(want)) {
				fmt.Fprintf(&file, "    - {labels: '{cluster=\"c\", driver=\"fabric\", %s}', value: %v}\n", labels, want[labels])
			}
		}
	}
	testRules(t, all, file.String())
}

// writeClusterDevices writes the series of a node. fabric-0 has the claims a/a and b/b on n1, which
// share it, and b/c on n2. a/d has fabric-1 for pods on both nodes. b/e has fabric-2 on n2.
// fabric-3 has a/f on n1, and after two hours b/g on n2. Each node has a device of its own of the
// same name, own-0, of a/h.
func writeClusterDevices(file *strings.Builder, node, instance string) {
	scraped := fmt.Sprintf(`cluster="c", node=%q, instance=%q, job="dra-exporter"`, node, instance)
	series := func(name, labels, values string) {
		fmt.Fprintf(file, "  - {series: '%s{%s, %s}', values: '%s'}\n", name, labels, scraped, values)
	}
	device := func(name string) string {
		pool := "rack"
		if name == "own-0" {
			pool = node
		}
		return fmt.Sprintf(`driver="fabric", pool=%q, device=%q`, pool, name)
	}
	utilization := map[string]string{"n1": "0.35x180", "n2": "0.45x180"}[node]
	for _, name := range []string{"fabric-0", "fabric-1", "fabric-2", "fabric-3", "own-0"} {
		series("dra_device_info", device(name)+fmt.Sprintf(
			`, vendor="x", model="F", parent="", listed="true", node_local="%v"`, name == "own-0"), "1x180")
		series("dra_device_up", device(name), "1x180")
		allocations, state := "1x180", "held"
		if name == "fabric-2" && node == "n1" {
			allocations, state = "0x180", "free"
		}
		series("dra_device_state", device(name)+fmt.Sprintf(`, state=%q, reason=""`, state), "1x180")
		series("dra_device_allocations", device(name), allocations)
		series("dra_device_utilization_ratio", device(name), utilization)
		series("dra_device_power_watts", device(name), "60x180")
	}
	// The claim is there after a time without values, and until a number of minutes later.
	held := func(claim, on string, seconds int, from, until string) {
		namespace, name, _ := strings.Cut(claim, "/")
		of := fmt.Sprintf("namespace=%q, resourceclaim_name=%q, %s", namespace, name, device(on))
		course := func(first, rise int) string { return fmt.Sprintf("%s%d+%d%s", from, first, rise, until) }
		series("dra_claim_allocated_share_seconds_total", of, course(0, seconds))
		series("dra_claim_energy_joules_total", of, course(0, 60*seconds))
		series("dra_claim_power_watts", of, course(seconds, 0))
		pod := fmt.Sprintf("namespace=%q, pod=%q", namespace, name)
		series("dra_pod_info", pod+`, uid="u", workload_kind="Job", workload_name="all"`, course(1, 0))
		series("dra_pod_allocated_share_seconds_total", pod+", "+device(on), course(0, seconds))
		series("dra_pod_energy_joules_total", pod+", "+device(on), course(0, 60*seconds))
		series("dra_pod_claim_info", pod+", "+device(on)+`, attribution="equal"`, course(1, 0))
		series("dra_claim_device_info", of+`, admin_access="false", attribution="equal"`, course(1, 0))
	}
	const always = "x180"
	held("a/d", "fabric-1", 60, "", always)
	held("a/h", "own-0", 60, "", always)
	if node == "n1" {
		held("a/a", "fabric-0", 30, "", always)
		held("b/b", "fabric-0", 30, "", always)
		held("a/f", "fabric-3", 60, "", "x119")
		return
	}
	held("b/c", "fabric-0", 60, "", always)
	held("b/e", "fabric-2", 60, "", always)
	held("b/g", "fabric-3", 60, "_x120 ", "x59")
}

// clusterDevicesByHand are the values of expressions by their labels. Sums are over the hour before
// fabric-3 changes hands, but for the last one.
func clusterDevicesByHand() map[string]map[string]float64 {
	const a, b = `namespace="a"`, `namespace="b"`
	const ofJob = `, workload_kind="Job", workload_name="all"`
	const total = `sum by (cluster, driver) (sum_over_time(namespace:dra_allocated_share_seconds:increase[2h]))`
	return map[string]map[string]float64{
		// Each of three claims has a third of fabric-0.
		"sum_over_time(namespace:dra_allocated_share_seconds:increase[1h] offset 65m)": {
			a: 1200 + 3600 + 3600*2 + 3600, b: 2400 + 3600,
		},
		"sum_over_time(namespace:dra_cost:increase[1h] offset 65m)": {a: 3 * (1./3 + 1 + 2 + 1), b: 3 * (2./3 + 1)},
		"sum_over_time(namespace:dra_energy_joules:increase[1h] offset 65m)": {
			a: 60 * (1200 + 3600 + 3600*2 + 3600), b: 60 * (2400 + 3600),
		},
		"sum_over_time(workload:dra_allocated_share_seconds:increase[1h] offset 65m)": {
			a + ofJob: 1200 + 3600 + 3600*2 + 3600, b + ofJob: 2400 + 3600,
		},
		"sum_over_time(workload:dra_energy_joules:increase[1h] offset 65m)": {
			a + ofJob: 60 * (1200 + 3600 + 3600*2 + 3600), b + ofJob: 60 * (2400 + 3600),
		},
		"workload:dra_devices:count": {a + ofJob: 1 + 1 + 2, b + ofJob: 1 + 1 + 1},
		// The higher one of two readings, of fabric-3 also; own-0 counts twice.
		`cluster:dra_utilization:sum`:                          {"": 0.45*4 + 0.45 + 0.35},
		`cluster:dra_utilization:count`:                        {"": 1 + 4 + 1},
		`cluster:dra_power_watts:sum`:                          {"": 60 * (4 + 2)},
		`sum by (cluster, driver) (cluster:dra_devices:count)`: {"": 4 + 2},
		// Six devices for two hours. While the holder of one changes, a part of its time is not
		// seen.
		"(" + total + " > bool 6 * 7200 - 100) * (" + total + " <= bool 6 * 7200)": {"": 1},
	}
}
