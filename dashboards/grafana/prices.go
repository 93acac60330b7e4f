package grafana

import "strings"

// price is what a device of a model costs per hour: the value that its variable has until people write another.
type price struct {
	variable, label string
	models          string // a regular expression of all of a model's names; none: the models that have no price of their own
	perHour         string
}

// prices has a line for each model that has a variable of its own, a model before those whose expression matches it too.
// The values are of the order that clouds ask in 2026, in dollars: they are there to be replaced.
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

// cost is the price of the device-hours in the time shown, each model's at its own.
func cost(by string) string {
	var terms []string
	for _, p := range prices() {
		models := ""
		if p.models != "" {
			models = `, model=~"` + p.models + `"`
		}
		terms = append(terms, `sum_over_time(namespace:dra_allocated_share_seconds:increase{<n>`+models+`}[$__range]) / 3600 * $`+p.variable)
	}
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	return sum + " (\n  " + strings.Join(terms, "\nor\n  ") + "\n)"
}
