package rules

import (
	"slices"
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

// recordingGroup is a group of at most 20 rules, which is what Grafana Mimir accepts by default.
// Each rule uses the values of those before it from the same evaluation.
type recordingGroup struct {
	name       string
	scope      Scope
	every      string // an abbreviation, see Options.words
	recordings []recording
}

// recordings returns all recording rules. Those of nodes read the exporter's metrics and each
// other; those of all nodes read only what those of nodes record, so that they can be evaluated
// elsewhere, over the records of many servers.
func recordings() []recordingGroup {
	return []recordingGroup{
		{"dra-exporter-devices", Node, "<idle interval>", slices.Concat(held(), deviceErrors())},
		{"dra-exporter-nodes", Node, "<interval>", slices.Concat(lostDevices(), nodes())},
		{"dra-exporter-models", Node, "<long interval>", slices.Concat(
			models(), prices(), sumsOfNodes(), readings(), incidents(), capacities(),
		)},
		{"dra-exporter-idle", Node, "<long interval>", slices.Concat(
			holdings(), idleDevices(), optOuts(), idleClaims(),
		)},
		{"dra-exporter-states", Node, "<idle interval>", deviceStates()},
		{"dra-exporter-namespaces", Node, "<long interval>", namespacesOfNodes()},
		{"dra-exporter-workloads", Node, "<long interval>", slices.Concat(costs(), workloadsOfNodes())},
		{"dra-exporter-lost", Node, "<long interval>", lostHours()},
		{"dra-exporter-work", Node, "<long interval>", work()},
		{"dra-exporter-members", Node, "<long interval>", members()},
		{"dra-exporter-exporters-global", Global, "<interval>", exporters()},
		{"dra-exporter-global", Global, "<idle interval>", fleet()},
		{"dra-exporter-sums-global", Global, "<long interval>", sums()},
		{"dra-exporter-namespaces-global", Global, "<long interval>", slices.Concat(clusterDevices(), namespaces())},
		{"dra-exporter-workloads-global", Global, "<long interval>", workloads()},
		{"dra-exporter-members-global", Global, "<long interval>", stragglers()},
		{"dra-exporter-hours-global", Global, Hourly, hours()},
		{"dra-exporter-failures-global", Global, Hourly, failures()},
	}
}
