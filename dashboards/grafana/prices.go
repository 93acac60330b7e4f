package grafana

import "strings"

// price is the price of a device-hour of a model: the default value of its variable.
type price struct {
	variable, label string
	models          string // matches the names of the model; empty: all models without a price of their own
	perHour         string
}

// prices has an entry for each model with a variable of its own. The first match applies. The
// values are dollars, in the order of cloud prices in 2026; users replace them.
func prices() []price {
	return []price{
		{"price_b300", "B300", ".*B300.*", "7"},
		{"price_b200", "B200", ".*B200.*", "5.5"},
		{"price_h200", "H200", ".*H200.*", "3.8"},
		{"price_h100", "H100", ".*H100.*", "3"},
		{"price_a100", "A100", ".*A100.*", "1.8"},
		{"price_l40s", "L40S", ".*L40S.*", "1"},
		{"price_l4", "L4", ".*L4( .*)?", "0.7"},
		{"price_t4", "T4", ".*T4( .*)?", "0.35"},
		{"price_mi355x", "MI355X", ".*MI355.*", "4"},
		{"price_mi325x", "MI325X", ".*MI325.*", "3"},
		{"price_mi300x", "MI300X", ".*MI300.*", "2.5"},
		{"price_gaudi3", "Gaudi 3", "(?i).*gaudi.?3.*", "2"},
		{"price_other", "Other models", "", "0.5"},
	}
}

// cost is the price of the device-hours in the selected time range, by model.
func cost(by string) string {
	var terms []string
	for _, p := range prices() {
		models := ""
		if p.models != "" {
			models = `, model=~"` + p.models + `"`
		}
		terms = append(terms,
			`sum_over_time(namespace:dra_allocated_share_seconds:increase{<n>`+models+`}[$__range]) / 3600 * $`+p.variable)
	}
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	return sum + " (\n  " + strings.Join(terms, "\nor\n  ") + "\n)"
}
