package rules

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// read returns the metrics that a rule reads.
func read(t *testing.T, expr string) []string {
	parsed := must.Get(parser.NewParser(parser.Options{}).ParseExpr(expr))(t)
	var out []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok && !slices.Contains(out, selector.Name) {
			out = append(out, selector.Name)
		}
		return nil
	})
	return out
}

// TestGroups checks that no group has more rules than Grafana Mimir accepts by default, that a rule
// comes after those of its group whose values it uses, and that rules over all nodes read nothing
// that only a server that scrapes nodes has.
func TestGroups(t *testing.T) {
	const most = 20
	groups := newGroups(t)
	recordedBy := map[string][]string{} // the groups by the record
	for _, g := range groups {
		expect.That(t, len(g.Rules) != 0 && len(g.Rules) <= most,
			"%s has %d rules, and %d are the most", g.Name, len(g.Rules), most)
		for _, r := range g.Rules {
			if r.Record != "" && !slices.Contains(recordedBy[r.Record], g.Name) {
				recordedBy[r.Record] = append(recordedBy[r.Record], g.Name)
			}
		}
	}
	for name, by := range recordedBy {
		expect.That(t, len(by) <= 1, "%s is recorded by the groups %v", name, by)
	}
	if local, global := Of(Node, groups), Of(Global, groups); len(local)+len(global) != len(groups) || len(global) < 2 {
		t.Errorf("%d groups are %d of nodes and %d of all nodes", len(groups), len(local), len(global))
	}
	for _, g := range groups {
		var before []string
		for _, r := range g.Rules {
			for _, metric := range read(t, r.Expr) {
				by := recordedBy[metric]
				if slices.Contains(by, g.Name) && !slices.Contains(before, metric) {
					t.Errorf("%s: %s%s comes before %s, which it uses", g.Name, r.Record, r.Alert, metric)
				}
				if g.Scope == Global && by == nil {
					t.Errorf("%s: %s%s reads %s, which only nodes have", g.Name, r.Record, r.Alert, metric)
				}
				global := func(o Group) bool { return o.Scope == Global && slices.Contains(by, o.Name) }
				if g.Scope == Node && slices.ContainsFunc(groups, global) {
					t.Errorf("%s: %s%s reads %s, which a server of nodes has not", g.Name, r.Record, r.Alert, metric)
				}
			}
			before = append(before, r.Record)
		}
	}
}

// TestExpectedClusters checks that the clusters in the options, and no others, must have exporters.
func TestExpectedClusters(t *testing.T) {
	o := Defaults()
	o.Clusters = []string{"east", `w"est`}
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	const want = `absent(cluster:dra_exporters:count{cluster="east"})` + "\nor\n" +
		`absent(cluster:dra_exporters:count{cluster="w\"est"})`
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Alert == "DRAExporterAbsent" && r.Expr != want {
				t.Errorf("got %s, want %s", r.Expr, want)
			}
		}
	}
}

// TestReplacements checks that the records of other exporters' series are in groups that Grafana
// Mimir accepts, that each name is recorded once, and that no rule but these reads them.
func TestReplacements(t *testing.T) {
	catalog := newCatalog(t)
	groups, err := Groups(Defaults(), catalog)
	must.Do(t, err)
	all, err := Replacements(Defaults(), catalog)
	must.That(t, err == nil && len(all) == 2, "%d exporters, %v", len(all), err)
	records := map[string]bool{}
	for i := range all {
		for _, g := range all[i].Groups() {
			expect.That(t, len(g.Rules) != 0 && len(g.Rules) <= 20 && g.Every == "30s",
				"%s has %d rules, each %s", g.Name, len(g.Rules), g.Every)
			for _, r := range g.Rules {
				expect.That(t, !records[r.Record] && !strings.Contains(r.Record+r.Expr, "<"),
					"%s is recorded twice, or has abbreviations: %s", r.Record, r.Expr)
				records[r.Record] = true
			}
		}
	}
	for _, name := range []string{
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_XID_ERRORS", "gpu_gfx_activity",
	} {
		expect.That(t, records[name], "%s is not recorded", name)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			for _, metric := range read(t, r.Expr) {
				expect.That(t, !records[metric], "%s%s reads %s, which is not there by default", r.Record, r.Alert, metric)
			}
		}
	}
}
