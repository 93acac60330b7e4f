package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
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

// ruleGroup is a group of at most 20 rules, which is what Grafana Mimir accepts by default. Each
// rule uses the values of those before it from the same evaluation.
type ruleGroup struct {
	name  string
	scope Scope
	every string // an abbreviation, see Options.words; empty: the interval of the server
	rules []definition
}

// definition is a recording or an alert.
type definition interface {
	rule(o *Options, catalog query.Catalog) (Rule, error)
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

// unclaimed are the pods that hold a device by a device plugin, without a claim.
const unclaimed = "pod_device:dra_unclaimed:info"

// ofHolders is a value of each device of each holder; value returns that of a kind of holders. Pods
// without a claim have families of their own, which are empty in a cluster of claims.
func ofHolders(value func(kind string) string) string {
	return `(
			  max by (<claim device>) (` + value("claim") + `)
			  or
			  max by (<pod device>) (` + value("pod_unclaimed") + `)
			)`
}

// deeper indents the lines of an expression but the first by one more step.
func deeper(expr string) string { return strings.ReplaceAll(expr, "\n\t\t\t", "\n\t\t\t  ") }

// heldLong are the devices that their holder has had for its share of the window, and that were
// measured for it. Others are left out.
const heldLong = "claim_device:dra_allocated_seconds:increase"

// measuredRecord is the share of the idle window in which each device was measured, by what: its
// label by is "utilization", or "traffic" of devices that have nothing else.
const measuredRecord = "device:dra_measured:ratio"

// holdings record the devices that are held for most of the idle window. A device counts only if it
// was measured meanwhile: the counters of holders do not increase while their device is unreadable,
// which must not count as idle.
func holdings() []recording {
	return []recording{
		{name: measuredRecord, more: []string{"by"}, expr: `
			(
			    label_replace(max by (<device>) (
			      count_over_time(dra_device_active_seconds_total[<idle window>])
			    ), "by", "utilization", "", "")
			  or on (<device>)
			    label_replace(max by (<device>) (
			      count_over_time(dra_device_io_bytes_total{link=~"network|rdma"}[<idle window>])
			    ), "by", "traffic", "", "")
			)
			  / on (<node>) group_left ()
			    (max by (<node>) (count_over_time(dra_exporter_snapshot_timestamp_seconds[<idle window>])) > 0)`},
		{name: heldLong, expr: `
			` + ofHolders(func(kind string) string {
			return "increase(dra_" + kind + "_allocated_seconds_total[<idle window>]) > <held seconds>"
		}) + `
			and on (<device>) (` + measuredRecord + ` >= <held>)`},
	}
}

// idleDevices record which share of the idle window each device of each holder was used: of a
// claim, or of a pod without one, whose series have the label pod and no resourceclaim_name. Those
// that have ended, and those of CPUs, are left out. increase() handles the counter resets when the
// exporter restarts.
func idleDevices() []recording {
	return []recording{
		// Above the thresholds of the exporter.
		{name: "claim_device:dra_used:ratio", expr: `
			(
			    max by (<claim device>) (increase(dra_claim_used_seconds_total[<idle window>]))
			    and on (<claim device>) dra_claim_device_info{admin_access="false", attribution!="cpus"}
			  or
			    max by (<pod device>) (increase(dra_pod_unclaimed_used_seconds_total[<idle window>]))
			    and on (<pod device>) ` + unclaimed + `{attribution!="cpus"}
			) / (` + heldLong + ` > 0)`},
		// A device without a link can do nothing: that is an error, and not idleness.
		{name: "claim_device:dra_idle:bool", expr: `
			(claim_device:dra_used:ratio < bool 0 and on (<device>) ` + linkDown + `)
			or
			(claim_device:dra_used:ratio < bool <used share>)`},
	}
}

// optOuts are the holders that may be idle.
func optOuts() []recording {
	return []recording{
		{name: "claim:dra_idle_alerts:off", expr: `
			group by (<claim>) (dra_claim_info{label_<opt out>="off"})
			or
			group by (<claim>) (
			  dra_pod_claim_info and on (<pod>) dra_pod_info{annotation_<opt out>="off"}
			)
			or
			group by (<pod>) (` + unclaimed + ` and on (<pod>) dra_pod_info{annotation_<opt out>="off"})`},
	}
}

// linkDown are the held devices with links none of which is up.
const linkDown = `dra_device_state{state="unhealthy", reason="link_down"}`

// idleClaims count, by holder and driver, the devices held and those of them that are idle. A
// holder is idle if all devices are, of each of its drivers that have a measured one: not while its
// GPU is busy and its network device is quiet, nor the other way round. What can't be measured by
// its nature, such as a channel, does not matter.
func idleClaims() []recording {
	return []recording{
		{name: "claim:dra_devices:count", expr: `
			count by (<claim driver>) (group by (<claim device>) (dra_claim_device_info{admin_access="false"}))
			or
			count by (<pod>, driver) (` + unclaimed + `)`},
		{name: "claim:dra_idle_devices:count", expr: `
			sum by (<holder driver>) (claim_device:dra_idle:bool)`},
		{name: "claim:dra_idle:bool", expr: `
			min by (<holder>) (claim:dra_idle_devices:count == bool claim:dra_devices:count)`},
		{name: "claim:dra_network_only:bool", expr: `
			group by (<holder>) (claim_device:dra_used:ratio and on (<device>) ` + measuredRecord + `{by="traffic"})
			unless on (<holder>) (claim_device:dra_used:ratio and on (<device>) ` + measuredRecord + `{by="utilization"})`},
		// The devices of the holders that are idle as a whole and whose devices have a utilization: many
		// workloads have a quiet network device.
		{name: "claim:dra_wasted_devices:count", expr: `
			sum by (<holder>) (claim:dra_devices:count)
			and on (<holder>) (claim:dra_idle:bool == 1)
			unless on (<holder>) claim:dra_network_only:bool
			unless on (<holder>) claim:dra_idle_alerts:off`},
		// The memory that these have in use.
		{name: "claim:dra_wasted_memory_bytes:sum", expr: `
			sum by (<claim>) (
			  max by (<claim device>) (dra_claim_memory_used_bytes and on (<claim>) claim:dra_wasted_devices:count)
			)`},
	}
}

// held record who holds what now.
func held() []recording {
	return []recording{
		{name: "device:dra_held:max", expr: `
			max by (<device>) (dra_device_allocations) > 0`},
		{name: unclaimed, expr: `
			group by (<pod device>, attribution) (
			  dra_pod_claim_info{resourceclaim_name=""} and on (<pod device>) dra_pod_unclaimed_allocated_seconds_total
			)`},
	}
}

// lostDevices are those that are claimed and can't be read.
func lostDevices() []recording {
	return []recording{
		{name: "device:dra_lost:info", expr: `
			group by (<device>) (dra_device_state{state="unhealthy", reason="lost"})`},
	}
}

// models record what many other rules need of each device, once for each device.
func models() []recording {
	return []recording{
		// While two scrapes differ, one of them is taken. A device of the cluster, which other nodes can
		// use too, has its name there as cluster_device: sums over nodes count it once by that.
		{name: "device:dra_model:info", more: []string{clusterDevice}, expr: `
			topk by (<device>) (
			  1,
			  group by (<device>, vendor, model, cluster_device) (
			    label_join(dra_device_info{node_local="false"}, "cluster_device", "/", "pool", "device")
			  )
			  or
			  group by (<device>, vendor, model) (dra_device_info{node_local!="false"})
			)`},
	}
}

// capacities are how much of the capacity of devices is consumed.
func capacities() []recording {
	return []recording{
		// How much of its capacity the claims of the node consume.
		{name: "device:dra_consumed_capacity:ratio", expr: `
			sum by (<device>, resource) (max by (<claim device>, share_id, resource) (dra_claim_consumed_capacity))
			  / on (<device>, resource) (max by (<device>, resource) (dra_device_capacity) > 0)`},
		// The same of each claim that has a device of the cluster: pods on several nodes may use it.
		{name: "claim_device:dra_consumed_capacity:ratio", expr: `
			sum by (<claim device>, cluster_device, resource) (
			  max by (<claim device>, share_id, resource) (dra_claim_consumed_capacity)
			    * on (<device>) group_left (cluster_device) device:dra_model:info{cluster_device!=""}
			)
			  / on (<device>, resource) group_left () (max by (<device>, resource) (dra_device_capacity) > 0)`},
	}
}

// clusterDevice is a label of records: POOL/DEVICE of a device of the cluster, which nodes other
// than this one can use too.
const clusterDevice = "cluster_device"

// deviceStates are the states of devices, as their exporters know them. Only whether a device that
// is held is idle needs a longer history. Devices that are guests are unmeasured here, and those
// without telemetry are not counted as free.
func deviceStates() []recording {
	const held = `dra_device_state{state="held"}`
	state := func(s book.State, expr string) recording {
		return recording{name: stateRecord, labels: map[string]string{"state": string(s)}, expr: expr}
	}
	return []recording{
		{name: stateRecord, expr: `
			group by (<device>, state) (dra_device_state{state!~"held|guest", reason!="no_telemetry"})`},
		state(book.StateUnmeasured, `
			group by (<device>) (dra_device_state{state="guest"})`),
		// What is idle is recorded less often than who holds what.
		state(book.StateIdle, `
			(min by (<device>) (claim_device:dra_idle:bool) == 1) and on (<device>) `+held),
		state(book.StateActive, `
			group by (<device>) (`+held+`)
			unless on (<device>) `+stateRecord+`{state="idle"}`),
	}
}

const stateRecord = "device:dra_state:info"

// deviceErrors record the time while a device's errors of a kind increase, and nothing else: what
// was its last error is cheap to find in a day's few values.
func deviceErrors() []recording {
	return []recording{{name: "device:dra_error:timestamp_seconds", expr: `
			time() * group by (<device>, kind, code) (increase(dra_device_errors_total[<rate>]) > 0)`}}
}

// prices are how much of a whole device each device is, and what an hour of it costs. A partition
// whose part is unknown counts as a device and has no price; nor has a device of a model without
// one. CPUs and memory have none either: claims of them count in the pods' requests too (KEP-5517),
// for which pods pay.
func prices() []recording {
	return []recording{
		{name: "device:dra_share:ratio", expr: `
			max by (<device>) (dra_device_parent_share_ratio) or group by (<device>) (dra_device_info{parent=""})`},
		// The share with the model, for sums by model.
		{name: "device:dra_weight:ratio", expr: `
			(device:dra_share:ratio or group by (<device>) (device:dra_model:info))
			  * on (<device>) group_left (model, cluster_device) device:dra_model:info`},
		{name: "device:dra_price:per_hour", expr: `
			(
			    <prices>
			)
			  * on (<device>) group_left () device:dra_share:ratio
			  unless on (<device>) dra_device_info{driver=~"dra[.](cpu|memory)"}`},
	}
}

// costs are the costs of a day of each holder. They change only when the holder's devices do.
func costs() []recording {
	return []recording{
		{name: "claim:dra_cost:per_day", expr: `
			sum by (<holder>) (
			  group by (<holder device>) (dra_claim_device_info{admin_access="false"} or ` + unclaimed + `)
			    * on (<device>) group_left () (device:dra_price:per_hour / on (<device>) device:dra_held:max)
			) * 24`},
		// Of the holders that are idle as a whole.
		{name: "claim:dra_idle_cost:per_day", expr: `
			claim:dra_cost:per_day and on (<holder>) (claim:dra_idle:bool == 1)`},
	}
}

// sumsOfNodes are sums over the devices of each node.
func sumsOfNodes() []recording {
	const held = `
			  max by (<device>) (dra_device_utilization_ratio) and on (<device>) device:dra_held:max`
	const named = `
			    * on (<device>) group_left (cluster_device) device:dra_model:info`
	return []recording{
		{name: "node:dra_devices:count", expr: `
			count by (<node>, driver) (device:dra_model:info)`},
		{name: "node:dra_utilization:count", expr: `
			count by (cluster, node, driver, cluster_device) (
			  (` + held + `
			  )` + named + `
			)`},
		{name: "node:dra_utilization:sum", expr: `
			sum by (cluster, node, driver, cluster_device) (
			  (` + held + `
			  )` + named + `
			)`},
		{name: "node:dra_power_watts:sum", expr: `
			sum by (cluster, node, driver, cluster_device) (
			  max by (<device>) (dra_device_power_watts)` + named + `
			)`},
	}
}

// nodes are about the exporter of each node.
func nodes() []recording {
	return []recording{
		{name: "node:dra_exporter_up:max", expr: `
			max by (cluster, node) (up{job=~"<job>"})`},
		// Only the sources that fail have a series.
		{name: "node:dra_failing_source:info", expr: `
			group by (cluster, node, source) (max by (cluster, node, source) (dra_exporter_source_up) == 0)`},
	}
}

// readings are how long the readings of each source take, from native histograms or from classic
// ones.
func readings() []recording {
	return []recording{{name: "node:dra_source_duration_seconds:mean", expr: `
			max by (cluster, node, source) (
			  histogram_avg(rate(dra_exporter_source_duration_seconds[<rate>]))
			  or
			  rate(dra_exporter_source_duration_seconds_sum[<rate>]) / rate(dra_exporter_source_duration_seconds_count[<rate>])
			) >= 0`}}
}

// incidents are how many each node had, for dashboards of months. Nodes without one have no series.
func incidents() []recording {
	return []recording{{
		name: "node:dra_incidents:increase", perInterval: true,
		expr: "\n\t\t\tmax by (cluster, node, kind) (rate(dra_exporter_incidents_total[<rate>])) > 0",
	}}
}

// namespacesOfNodes are the showback of each namespace on each node, by the second. Shared devices
// are divided among their holders, and the hours of a partition count by its part of its parent, so
// that no device-second is counted twice.
func namespacesOfNodes() []recording {
	const (
		shares = "claim_device:dra_allocated_share_seconds:rate"
		joules = "claim_device:dra_energy_joules:rate"
		idle   = ` and on (<holder device>) (claim_device:dra_idle:bool == 1)`
		weight = "device:dra_weight:ratio"
		price  = "(device:dra_price:per_hour / 3600)"
		plain  = "device:dra_model:info"
	)
	of := func(what, expr, factor string) recording {
		return recording{name: "node_namespace:dra_" + what, expr: `
			sum by (cluster, node, namespace, driver, model, cluster_device) (
			  ` + expr + `
			    * on (<device>) group_left (model, cluster_device) ` + factor + `
			)`}
	}
	rate := func(counter string) string {
		return ofHolders(func(kind string) string { return "rate(dra_" + kind + "_" + counter + "[<rate>])" })
	}
	return []recording{
		{name: shares, expr: "\n\t\t\t" + rate("allocated_share_seconds_total")},
		{name: joules, expr: "\n\t\t\t" + rate("energy_joules_total")},
		of("allocated_share_seconds:rate", shares, weight),
		of("unpriced_share_seconds:rate", "("+shares+" unless on (<device>) device:dra_price:per_hour)", weight),
		of("active_seconds:rate", deeper(rate("active_seconds_total")), weight),
		of("energy_joules:rate", joules, plain),
		of("cost:rate", shares, price),
		of("idle_share_seconds:rate", "("+shares+idle+")", weight),
		of("idle_energy_joules:rate", "("+joules+idle+")", plain),
		of("idle_cost:rate", "("+shares+idle+")", price),
		// Each node measures its own traffic, that of the devices of the cluster too.
		{name: "node_namespace:dra_network_bytes:rate", expr: `
			sum by (cluster, node, namespace, driver, model) (
			  (
			    max by (<claim device>, link, direction) (rate(dra_claim_io_bytes_total{link=~"network|rdma"}[<rate>]))
			    or
			    max by (<pod device>, link, direction) (
			      rate(dra_pod_unclaimed_io_bytes_total{link=~"network|rdma"}[<rate>])
			    )
			  )
			    * on (<device>) group_left (model) device:dra_model:info
			)`},
		// A device of several holders without a claim counts once, and not beside a claim.
		{name: "node_namespace:dra_devices:count", expr: `
			count by (cluster, node, namespace, driver) (
			  group by (<claim device>) (dra_claim_device_info{admin_access="false"})
			  or
			  group by (<device>, namespace) (` + unclaimed + `)
			    unless on (<device>, namespace) dra_claim_device_info{admin_access="false"}
			)`},
		// How many of its claims have each device of the cluster.
		{name: "node_namespace:dra_cluster_devices:count", expr: `
			count by (cluster, node, namespace, driver, cluster_device) (
			  group by (<claim device>) (dra_claim_device_info{admin_access="false"})
			    * on (<device>) group_left (cluster_device) device:dra_model:info{cluster_device!=""}
			)`},
	}
}

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
		{name: "cluster:dra_utilization:count", expr: sum("utilization:count")},
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
