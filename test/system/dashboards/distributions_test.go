package dashboards

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// distributionPanels returns the panels that show distributions.
func distributionPanels(t *testing.T) []grafana.Panel {
	t.Helper()
	for _, board := range grafana.Boards() {
		for _, row := range board.Rows {
			if row.Title == "Distribution over time" {
				return row.Panels
			}
		}
	}
	t.Fatal("no dashboard has a row of distributions")
	return nil
}

// TestDistributions evaluates the queries of the panels for a claim whose values were about 1.5 for
// a third of the time and about 6 otherwise. It compares the answers with arithmetic by hand, also
// if a node is scraped twice, and with another claim of another driver that has the same values.
func TestDistributions(t *testing.T) {
	t.Parallel()
	const claim = `{cluster="c1", node="n1", namespace="team", resourceclaim_name="a", driver="gpu.x", ` +
		`instance="n1", job="j"}`
	world := map[string]string{}
	for _, metric := range []string{
		"dra_claim_utilization_distribution_ratio", "dra_claim_memory_used_distribution_bytes",
		"dra_claim_power_distribution_watts",
	} {
		world[metric+claim] = risingHistogram
		world[metric+strings.NewReplacer("n1", "n2", "gpu.x", "gpu.y").Replace(claim)] = risingHistogram
	}
	// Within a bucket, values count as evenly distributed on the logarithmic scale.
	quantiles := []float64{4 * math.Pow(2, 10./40), 4 * math.Pow(2, 37./40), 4 * math.Pow(2, 39.4/40)}
	changes := copies()
	changes["no copies"] = nil
	for name, change := range changes {
		e := newEngine(t)
		fill(t, e, world, change)
		for _, panel := range distributionPanels(t) {
			for i, target := range panel.Targets {
				got := must.Get(e.answers(filled(target.Expr, nil), minuteOf(lastMinute)))(t)
				want := answers{}
				if panel.Kind == grafana.Heatmap {
					of := labels.EmptyLabels().String() + " of a histogram: "
					want[of+"count"], want[of+"sum"] = 1, 4.5
					want[of+"up to 2"], want[of+"up to 8"] = 20./60, 40./60
				} else {
					for _, node := range []string{"n1", "n2"} {
						driver := map[string]string{"n1": "gpu.x", "n2": "gpu.y"}[node]
						of := labels.FromStrings("cluster", "c1", "node", node, "namespace", "team", "resourceclaim_name", "a",
							"driver", driver)
						want[of.String()] = quantiles[i%len(quantiles)]
					}
				}
				expect.Is(t, want.differ(got), "", "%s: %s: %s", name, panel.Title, target.Expr)
			}
		}
	}
}
