package rules

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
)

// recording is a recording rule. Dashboards and alerts use it in place of an expensive expression
// over all devices.
type recording struct {
	name   string // level:metric:operation
	expr   string // with abbreviations, see Options.words
	labels map[string]string
	// more are labels that only some of the series have.
	more []string
	// perInterval is whether the value is the increase per evaluation interval, which is <long
	// interval>: the rate times the interval. Its sum over any time is a total in which gaps count
	// nothing.
	perInterval bool
}

// ruleGroup is a group of at most 20 rules, which is what Grafana Mimir accepts by default. Each rule
// uses the values of those before it from the same evaluation.
type ruleGroup struct {
	name  string
	scope Scope
	every string // an abbreviation, see Options.words; empty: the interval of the server
	rules []definition
}

// definition is a recording or an alert.
type definition interface {
	rule(o *Options, catalog query.Catalog) (source, error)
}

// rulesOf returns the rules of a group.
func rulesOf[T definition](lists ...[]T) []definition {
	var out []definition
	for _, rule := range slices.Concat(lists...) {
		out = append(out, rule)
	}
	return out
}

// recordings returns all recording rules. Those of nodes read the exporter's metrics and each
// other; those of all nodes read only what those of nodes record, so that they can be evaluated
// elsewhere, over the records of many servers.
func recordings() []ruleGroup {
	return []ruleGroup{
		{"dra-exporter-devices", Node, "<idle interval>", rulesOf(held(), deviceErrors())},
		{"dra-exporter-nodes", Node, "<interval>", rulesOf(lostDevices(), nodes())},
		{"dra-exporter-models", Node, "<long interval>", rulesOf(
			models(), prices(), sumsOfNodes(), readings(), incidents(), capacities(),
		)},
		{"dra-exporter-idle", Node, "<long interval>", rulesOf(
			holdings(), idleDevices(), optOuts(), idleClaims(),
		)},
		{"dra-exporter-states", Node, "<idle interval>", rulesOf(deviceStates())},
		{"dra-exporter-namespaces", Node, "<long interval>", rulesOf(namespacesOfNodes())},
		{"dra-exporter-workloads", Node, "<long interval>", rulesOf(costs(), workloadsOfNodes())},
		{"dra-exporter-lost", Node, "<long interval>", rulesOf(lostHours())},
		{"dra-exporter-work", Node, "<long interval>", rulesOf(work())},
		{"dra-exporter-members", Node, "<long interval>", rulesOf(members())},
		{"dra-exporter-exporters-global", Global, "<interval>", rulesOf(exporters())},
		{"dra-exporter-global", Global, "<idle interval>", rulesOf(fleet())},
		{"dra-exporter-sums-global", Global, "<long interval>", rulesOf(sums())},
		{"dra-exporter-namespaces-global", Global, "<long interval>", rulesOf(clusterDevices(), namespaces())},
		{"dra-exporter-workloads-global", Global, "<long interval>", rulesOf(workloads())},
		{"dra-exporter-members-global", Global, "<long interval>", rulesOf(stragglers())},
		{"dra-exporter-hours-global", Global, Hourly, rulesOf(hours())},
		{"dra-exporter-failures-global", Global, Hourly, rulesOf(failures())},
	}
}
