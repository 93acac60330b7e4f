package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// exporters count the exporters, and those that answer.
func exporters() []recording {
	return []recording{
		{name: "cluster:dra_exporters:count", expr: `
			count by (cluster) (group by (cluster, node) (node:dra_exporter_up:max))`},
		{name: "cluster:dra_exporters_up:sum", expr: `
			sum by (cluster) (max by (cluster, node) (node:dra_exporter_up:max))`},
	}
}

// fleet are the devices of all nodes.
func fleet() []recording {
	return []recording{
		{name: "cluster:dra_devices:count", expr: `
			count by (cluster, driver, vendor, model, state) (
			  ` + offeredOnce(rankedStates()) + `
			)`},
	}
}

// sums are sums over all nodes.
func sums() []recording {
	// If several nodes measure a device of the cluster, the highest value counts.
	sum := func(what string) string {
		return `
			sum by (cluster, driver) (
			  max by (cluster, node, driver) (node:dra_` + what + `{cluster_device=""})
			  or
			  max by (cluster, driver, cluster_device) (node:dra_` + what + `{cluster_device!=""})
			)`
	}
	return []recording{
		{name: "cluster:dra_claimed_devices:count", expr: `
			count by (cluster, driver, vendor, model) (
			  ` + offeredOnce("\n\t\t\t    max by (<device>) (device:dra_held:max)") + `
			)`},
		{name: "cluster:dra_utilization:count", expr: `
			sum by (cluster, driver, at_most) (
			  max by (cluster, node, driver, at_most) (node:dra_utilization:count)
			  or
			  count_values by (cluster, driver) (
			    "at_most",
			    ceil(10 * max by (cluster, driver, cluster_device) (node:dra_utilization:sum{cluster_device!=""})) / 10
			  )
			)`},
		{name: "cluster:dra_utilization:sum", expr: sum("utilization:sum")},
		{name: "cluster:dra_power_watts:sum", expr: sum("power_watts:sum")},
	}
}

// rankedStates are the states of the devices, the first of book.States() with the highest value.
func rankedStates() string {
	states := slices.DeleteFunc(book.States(), func(s book.State) bool {
		return s == book.StateGuest || s == book.StateQuiet || s == book.StateUnavailable // deviceStates has none
	})
	terms := make([]string, 0, len(states))
	for i, s := range states {
		terms = append(terms, fmt.Sprintf(`%d + 0 * group by (<device>, state) (%s{state=%q})`, len(states)-i, stateRecord,
			s))
	}
	return "(\n\t\t\t      " + strings.Join(terms, "\n\t\t\t      or ") + "\n\t\t\t    )"
}

// offeredOnce leaves one series of each device, the one with the highest value, with its vendor and
// model: several nodes have a device that is offered to all of them. A device has one name in a
// cluster, unless it has no pool, as those of device plugins.
func offeredOnce(expr string) string {
	return `topk by (cluster, ` + scopeWord + `, driver, pool, device) (1,
			    ` + scoped(expr+`
			      * on (<device>) group_left (vendor, model)
			        topk by (<device>) (1, group by (<device>, vendor, model) (device:dra_model:info))`) + `
			  )`
}

const scopeWord = "scope"

// scoped adds the label scope: the node of a device without a pool, otherwise "cluster".
func scoped(expr string) string {
	return `label_replace(label_replace(
			    ` + expr + `,
			    "` + scopeWord + `", "$1", "node", "(.*)"), "` + scopeWord + `", "cluster", "pool", ".+")`
}

// clusterDevices record the part of each device of the cluster that the claims of each node have. A
// node divides the whole device among its own claims. While several nodes hold the device, its
// allocated time is that of the node that holds it longest, and is divided in proportion to what
// the claims of a node have there and to their number: equally, if the nodes divide equally. A
// claim that has just ended still has its use within the window, and the claims of its node count
// as one.
func clusterDevices() []recording {
	const held, claims = "cluster_device:dra_allocated_share_seconds:rate", "cluster_device:dra_claims:count"
	return []recording{
		{name: held, expr: `
			sum by (cluster, node, driver, cluster_device) (
			  max by (cluster, node, namespace, driver, model, cluster_device) (
			    node_namespace:dra_allocated_share_seconds:rate{cluster_device!=""}
			  )
			)`},
		{name: claims, expr: `
			sum by (cluster, node, driver, cluster_device) (
			  max by (cluster, node, namespace, driver, cluster_device) (node_namespace:dra_cluster_devices:count)
			)
			or
			1 + 0 * ` + held},
		{name: clusterDevicePart, expr: `
			` + claims + `
			  * on (cluster, driver, cluster_device) group_left ()
			    (
			      max by (cluster, driver, cluster_device) (` + held + `)
			        / on (cluster, driver, cluster_device)
			          (
			            sum by (cluster, driver, cluster_device) (
			              ` + held + `
			                * on (cluster, node, driver, cluster_device) ` + claims + `
			            ) > 0
			          )
			    )`},
	}
}

const clusterDevicePart = "cluster_device:dra_part:ratio"

// namespaces are the showback of each namespace, over all nodes. Their sums over long times are
// totals in which gaps count nothing.
func namespaces() []recording {
	const by = "namespace, driver, model"
	// Each node has its part of a device of the cluster, except for traffic, which each node measures
	// itself.
	sum := func(record, by string) string {
		if record == "network_bytes:rate" {
			return `
			sum by (cluster, ` + by + `) (max by (cluster, node, ` + by + `) (node_namespace:dra_` + record + `))`
		}
		return `
			sum by (cluster, ` + by + `) (
			  max by (cluster, node, ` + by + `) (node_namespace:dra_` + record + `{cluster_device=""})
			  or
			  max by (cluster, node, ` + by + `, cluster_device) (node_namespace:dra_` + record + `{cluster_device!=""})
			    * on (cluster, node, driver, cluster_device) group_left () ` + clusterDevicePart + `
			)`
	}
	var out []recording
	for _, what := range []string{
		"allocated_share_seconds", "unpriced_share_seconds", "active_seconds", "energy_joules", "cost",
		"idle_share_seconds", "idle_energy_joules", "idle_cost", "network_bytes",
	} {
		out = append(out, recording{
			name: "namespace:dra_" + what + ":increase", perInterval: true, expr: sum(what+":rate", by),
		})
	}
	return out
}
