package dashboards

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// families reads an exposition in the text format.
func families(t *testing.T, text string) []*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName := must.Get(parser.TextToMetricFamilies(strings.NewReader(text)))(t)
	var out []*dto.MetricFamily
	for _, f := range byName {
		out = append(out, f)
	}
	return out
}

// scraped returns the samples of an exposition with the labels of their target, given as
// alternating names and values.
func scraped(all []*dto.MetricFamily, at time.Time, target ...string) []point {
	var out []point
	for _, f := range all {
		for _, m := range f.Metric {
			builder := labels.NewBuilder(labels.FromStrings(append(target, model.MetricNameLabel, f.GetName())...))
			for _, l := range m.Label {
				builder.Set(l.GetName(), l.GetValue())
			}
			out = append(out, point{
				labels: builder.Labels(), at: at,
				value: m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue(),
			})
		}
	}
	return out
}

// TestClaimsOfCluster evaluates the records of a cluster's claims, and the join of
// dashboards/README.md, over expositions of kube-state-metrics, with two scraped replicas, and of
// the exporter. testdata/README.md has the origin of the names of metrics and labels.
func TestClaimsOfCluster(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile(filepath.Join("testdata", "kube-state-metrics.txt")))(t)
	at := time.Unix(1_700_000_100, 0)
	e := newEngine(t)
	for _, replica := range []string{"10.0.0.1:8080", "10.0.0.2:8080"} {
		e.add(t, scraped(families(t, string(text)), at,
			"cluster", "c1", "job", "kube-state-metrics", "instance", replica)...)
	}
	h := exportertest.NewHistory(t)
	h.Hold("train-0-gpu", "train-0")
	h.Tick(time.Second)
	for _, node := range []string{"n1", "n2"} {
		e.add(t, scraped(families(t, exportertest.Text(t, h.Last)), at,
			"cluster", "c1", "job", "dra-exporter", "instance", node, "node", node)...)
	}
	var records []rules.Group
	for _, g := range groups(t, rules.Defaults()) {
		g.Rules = slices.DeleteFunc(g.Rules, func(r rules.Rule) bool { return !strings.Contains(r.Expr, "kube_resource") })
		records = append(records, g)
	}
	e.evaluate(t, records, at)
	for expr, want := range map[string]answers{
		"namespace:dra_pending_claims:count": {
			`{__name__="namespace:dra_pending_claims:count", cluster="c1", namespace="other"}`: 1,
			`{__name__="namespace:dra_pending_claims:count", cluster="c1", namespace="team"}`:  1,
		},
		"count by (node, resourceclaim_name) (" + documentedJoin(t) + ")": {
			`{node="n1", resourceclaim_name="train-0-gpu"}`: 1, `{node="n2", resourceclaim_name="train-0-gpu"}`: 1,
		},
	} {
		got := must.Get(e.answers(expr, at))(t)
		if diff := want.differ(spelled(got)); diff != "" {
			t.Errorf("%s: %s\ngot %v", expr, diff, got)
		}
	}
	claimPanels(t, e, at)
}

// claimPanels evaluates the panel of the Fleet dashboard that reads kube-state-metrics' own
// metrics.
func claimPanels(t *testing.T, e *engine, at time.Time) {
	t.Helper()
	want := answers{
		`{cluster="c1", namespace="other", resourceclaim_name="waiting"}`: 1.70000003e12,
		`{cluster="c1", namespace="team", resourceclaim_name="waiting"}`:  1.70000006e12,
	}
	got := must.Get(e.answers(panelQuery(t, "dra-fleet", "Pending claims", 0), at))(t)
	if diff := want.differ(spelled(got)); diff != "" {
		t.Errorf("%s\ngot %v", diff, got)
	}
}

// spelled returns answers with all labels in braces, as {__name__="x", …}.
func spelled(a answers) answers {
	out := answers{}
	for key, v := range a {
		if name, rest, ok := strings.Cut(key, "{"); ok && name != "" {
			key = `{__name__="` + name + `", ` + rest
		}
		out[key] = v
	}
	return out
}

// documentedJoin returns the join with kube-state-metrics of dashboards/README.md.
func documentedJoin(t *testing.T) string {
	t.Helper()
	readme := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "dashboards", "README.md")))(t)
	block := regexp.MustCompile("(?s)```text\n(dra_claim_info.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("dashboards/README.md has no join with dra_claim_info")
	}
	return string(block[1])
}
