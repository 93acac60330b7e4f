package grafana

import "fmt"

// distributed is a quantity of claims with a distribution over time.
type distributed struct {
	name, metric string
	unit         string
	axisMin      float32 // of the heat map
	zero         string  // what the heat map's description says about zero
}

func distributions() []distributed {
	return []distributed{
		{
			// The zero bucket, up to 1/1024, is the lowest row: the axis is logarithmic.
			"Utilization", "dra_claim_utilization_distribution_ratio", "percentunit", 1.0 / 2048,
			"Below 0.1 % is the lowest row; two devices that are fully busy are 200 %.",
		},
		{
			"Memory", "dra_claim_memory_used_distribution_bytes", "bytes", 0,
			"The axis is logarithmic: none in use is not shown.",
		},
		{
			"Power", "dra_claim_power_distribution_watts", "watt", 0,
			"The axis is logarithmic: 0 W is not shown.",
		},
	}
}

// quantiles are those that are shown, by their names.
func quantiles() []struct{ name, value string } {
	return []struct{ name, value string }{{"p50", "0.5"}, {"p95", "0.95"}, {"p99", "0.99"}}
}

const noDistribution = "not measured, or Prometheus does not scrape native histograms"

// claimDistributions are heat maps and a table of the claims' distributions. Copies of a series
// from two targets count once, by their average, which equals each of them, or by the maximum of
// their quantiles. PromQL has no max of histograms.
func claimDistributions() []Panel {
	var maps []Panel
	table := Panel{
		Title: "Quantiles in the selected time", Description: "Values that the claim's part did not exceed in 50 %, 95 " +
			"% and 99 % of the time, summed over its devices of the driver. Every reading counts, not only those at scrapes.",
		Kind: Table, NoData: noDistribution, Width: 24, Height: 6,
	}
	for _, d := range distributions() {
		maps = append(maps, Panel{
			Title: d.name + " over time", Description: "The share of the time that the claim's part had each value, from " +
				"every reading. " + d.zero + " Several claims count equally.", Kind: Heatmap, Unit: "percentunit", axis: d.unit,
			axisMin: d.axisMin, NoData: noDistribution, Width: 8, Height: 8,
			Targets: []Target{{Expr: `avg(avg by (<claim driver>) (rate(` + d.metric + `{<of claims>}[$__rate_interval])))`}},
		})
		for _, q := range quantiles() {
			// Without observations a quantile is not a number.
			table.Targets = append(table.Targets,
				columnOf(d.name+" "+q.name, d.unit, fmt.Sprintf(`max by (<claim driver>) (histogram_quantile(%s, `+
					`increase(%s{<of claims>}[$__range])) >= 0)`, q.value, d.metric)))
		}
	}
	return append(maps, table)
}
