package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// recording is a recording rule. Dashboards and alerts use it in place of an expensive expression
// over all devices.
type recording struct {
	name   string // level:metric:operation
	expr   string // with abbreviations, see Options.words
	labels map[string]string
	// perInterval is whether the value is the increase per evaluation interval, in unit: the rate
	// times the interval. Its sum over any time is a total in which gaps count nothing.
	perInterval bool
	unit        query.Unit // if it can't be derived from the expression
}

type recordingGroup struct {
	name       string
	recordings []recording
}

// recordings returns all recording rules, in one group, so that each uses the values of those
// before it from the same evaluation.
func recordings() recordingGroup {
	return recordingGroup{
		"dra-exporter-records",
		slices.Concat(idleDevices(), idleClaims(), deviceStates(), deviceErrors(), fleet(), prices(), namespaces(),
			workloads()),
	}
}

// idleDevices record the activity of each device of each claim within the idle window. A device
// counts only if it was held and measured for most of the window: the counters of claims do not
// increase while their device is unreadable, which must not count as idle. increase() handles the
// counter resets when the exporter restarts.
func idleDevices() []recording {
	return []recording{
		{name: "device:dra_active:ratio", expr: `
			sum by (<device>) (increase(dra_device_active_seconds_total[<idle window>]))
			  / (sum by (<device>) (increase(dra_device_allocated_seconds_total[<idle window>])) > 0)`},
		{name: "device:dra_io:rate", expr: `
			sum by (<device>) (increase(dra_device_io_bytes_total{link=~"network|rdma"}[<idle window>]))
			  / (sum by (<device>) (increase(dra_device_allocated_seconds_total[<idle window>])) > 0)`},
		{name: "device:dra_measured:ratio", expr: `
			(
			    max by (<device>) (count_over_time(dra_device_active_seconds_total[<idle window>]))
			  or
			    max by (<device>) (count_over_time(dra_device_io_bytes_total{link=~"network|rdma"}[<idle window>]))
			)
			  / (max by (<device>) (count_over_time(dra_device_allocated_seconds_total[<idle window>])) > 0)`},
		{name: "claim_device:dra_allocated_seconds:increase", expr: `
			sum by (<claim device>) (increase(dra_claim_allocated_seconds_total[<idle window>]))`},
		{name: "claim_device:dra_active:ratio", expr: `
			(
			    sum by (<claim device>) (increase(dra_claim_active_seconds_total[<idle window>]))
			      / (claim_device:dra_allocated_seconds:increase > <held seconds>)
			    and on (<claim device>) dra_claim_device_info{admin_access="false", attribution=~"exclusive|process"}
			  or
			    group by (<claim device>) (dra_claim_device_info{admin_access="false", attribution=~"equal|capacity"})
			      * on (<device>) group_left () device:dra_active:ratio
			    and on (<claim device>) (claim_device:dra_allocated_seconds:increase > <held seconds>)
			)
			and on (<device>) (device:dra_measured:ratio >= <held>)`},
		{name: "claim_device:dra_io:rate", expr: `
			(
			    sum by (<claim device>) (increase(dra_claim_io_bytes_total{link=~"network|rdma"}[<idle window>]))
			      / (claim_device:dra_allocated_seconds:increase > <held seconds>)
			    and on (<claim device>) dra_claim_device_info{admin_access="false", attribution=~"exclusive|process"}
			  or
			    group by (<claim device>) (dra_claim_device_info{admin_access="false", attribution=~"equal|capacity"})
			      * on (<device>) group_left () device:dra_io:rate
			    and on (<claim device>) (claim_device:dra_allocated_seconds:increase > <held seconds>)
			)
			unless on (<device>) dra_device_active_seconds_total
			and on (<device>) (device:dra_measured:ratio >= <held>)`},
		{name: "claim_device:dra_idle:bool", expr: `
			(claim_device:dra_active:ratio < bool <idle ratio>) or (claim_device:dra_io:rate < bool <idle bytes>)`},
	}
}

// idleClaims count, by claim and driver, the devices held and those of them that are idle. A claim
// is idle if all devices are, of each of its drivers that have a measured one: not while its GPU is
// busy and its network device is quiet, nor the other way round. What can't be measured by its
// nature, such as a channel, does not matter.
func idleClaims() []recording {
	return []recording{
		{name: "claim:dra_devices:count", expr: `
			count by (<claim driver>) (group by (<claim device>) (dra_claim_device_info{admin_access="false"}))`},
		{name: "claim:dra_idle_devices:count", expr: `
			sum by (<claim driver>) (claim_device:dra_idle:bool)`},
		{name: "claim:dra_idle:bool", expr: `
			min by (<claim>) (claim:dra_idle_devices:count == bool claim:dra_devices:count)`},
		{name: "claim:dra_network_only:bool", expr: `
			group by (<claim>) (claim_device:dra_io:rate) unless on (<claim>) claim_device:dra_active:ratio`},
		{name: "claim:dra_idle_alerts:off", expr: `
			group by (<claim>) (dra_claim_info{label_<opt out>="off"})
			or
			group by (<claim>) (
			  dra_pod_claim_info * on (cluster, node, namespace, pod) group_left () dra_pod_info{annotation_<opt out>="off"}
			)`},
	}
}

// deviceStates give each device one state: the first of ledger.States() that applies. Rules can't
// see which devices are guests or unavailable. The former are unmeasured here, the latter are not
// counted.
func deviceStates() []recording {
	const (
		name  = "device:dra_state:info"
		free  = `group by (<device>) (dra_device_allocations == 0)`
		ready = "\n\t\t\tand on (<device>) dra_device_up"
		// The parents of partitions that are held, or exist, and those that no slice lists.
		whole = `label_replace(
			  group by (cluster, node, driver, pool, parent) (
			    dra_device_info{parent!=""} and on (<device>) (dra_device_allocations > 0 or dra_device_up == 1)
			    or
			    dra_device_info{parent!=""} and on (cluster, node, driver, pool, parent)
			      label_replace(dra_device_info{listed="false"}, "parent", "$1", "device", "(.+)")
			  ), "device", "$1", "parent", "(.+)"
			)`
	)
	var out []recording
	var before []string
	state := func(s ledger.State, expr string) {
		expr = "\n\t\t\t" + expr
		if len(before) > 0 {
			expr += "\n\t\t\tunless on (<device>) " + name + `{state=~"` + strings.Join(before, "|") + `"}`
		}
		before = append(before, string(s))
		out = append(out, recording{name: name, labels: map[string]string{"state": string(s)}, expr: expr})
	}
	state(ledger.StateUnhealthy, `group by (<device>) (dra_device_health{status="unhealthy"} == 1 or dra_device_up == 0)`)
	state(ledger.StateUnmeasured, `group by (<device>) (dra_device_allocations > 0)
			unless on (<device>) dra_device_active_seconds_total
			unless on (<device>) dra_device_io_bytes_total{link=~"network|rdma"}`)
	state(ledger.StateIdle, `(min by (<device>) (claim_device:dra_idle:bool) == 1)`)
	state(ledger.StateActive, `group by (<device>) (dra_device_allocations > 0)`)
	state(ledger.StatePartitioned, free+`
			and on (<device>) `+whole)
	state(ledger.StateTainted, free+`
			and on (<device>) dra_device_tainted{effect=~"NoSchedule|NoExecute"}`+ready)
	state(ledger.StateFree, free+ready)
	return out
}

// deviceErrors record the time while a device's errors of a kind increase, and nothing else: what
// was its last error is cheap to find in a day's few values.
func deviceErrors() []recording {
	return []recording{{
		name: "device:dra_error:timestamp_seconds", unit: query.Unit{Seconds: 1, Scale: 1, Point: true},
		expr: `
			time() * group by (<device>, kind, code) (increase(dra_device_errors_total[<rate>]) > 0)`,
	}}
}

// fleet are sums over all devices.
func fleet() []recording {
	out := []recording{
		{name: "cluster:dra_devices:count", expr: `
			count by (cluster, driver, vendor, model, state) (
			  device:dra_state:info * on (<device>) group_left (vendor, model) dra_device_info
			)`},
		{name: "cluster:dra_claimed_devices:count", expr: `
			count by (cluster, driver, vendor, model) (
			  (dra_device_allocations > 0) * on (<device>) group_left (vendor, model) dra_device_info
			)`},
		{name: "cluster:dra_utilization:avg", expr: `
			avg by (cluster, driver) (dra_device_utilization_ratio and on (<device>) (dra_device_allocations > 0))`},
		{name: "cluster:dra_power_watts:sum", expr: `
			sum by (cluster, driver) (dra_device_power_watts)`},
	}
	return append(out, utilizationBuckets()...)
}

// utilizationBuckets are a histogram of the claimed devices by their utilization, with cumulative
// buckets like those of Prometheus.
func utilizationBuckets() []recording {
	var out []recording
	for _, le := range []string{"0.01", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1", "+Inf"} {
		out = append(out, recording{
			name: "cluster:dra_utilization:bucket", labels: map[string]string{"le": le},
			expr: fmt.Sprintf(`
			sum by (cluster, driver) (
			  (dra_device_utilization_ratio and on (<device>) (dra_device_allocations > 0)) <= bool %s
			)`, le),
		})
	}
	return out
}

// perHour is the unit of prices.
func perHour() query.Unit { return query.Unit{Money: 1, Seconds: -1, Scale: 1.0 / 3600} }

// prices are how much of a whole device each device is, and what an hour of it costs. A partition
// whose part is unknown, and a device of a model without a price, have none. CPUs and memory have
// none either: claims of them count in the pods' requests too (KEP-5517), for which pods pay.
func prices() []recording {
	out := []recording{
		{name: "device:dra_share:ratio", expr: `
			max by (<device>) (dra_device_parent_share_ratio) or group by (<device>) (dra_device_info{parent=""})`},
	}
	return append(out, recording{
		name: "device:dra_price:per_hour", unit: perHour(),
		expr: `
			(
			    <prices>
			)
			  * on (<device>) group_left () device:dra_share:ratio
			  unless on (<device>) dra_device_info{driver=~"dra[.](cpu|memory)"}`,
	}, recording{
		name: "claim:dra_cost:per_day", unit: query.Unit{Money: 1, Scale: 1},
		expr: `
			sum by (<claim>) (
			  group by (<claim device>) (dra_claim_device_info{admin_access="false"})
			    * on (<device>) group_left () (device:dra_price:per_hour / on (<device>) (dra_device_allocations > 0))
			) * 24`,
	})
}

// namespaces are the showback of each namespace. Shared devices are divided among their claims, and
// the hours of a partition count by its part of its parent, so that no device-second is counted
// twice. A partition whose part is unknown counts as a device.
func namespaces() []recording {
	seconds, joules, bytes := query.Unit{
		Seconds: 1,
		Scale:   1,
	}, query.Unit{Joules: 1, Scale: 1}, query.Unit{Bytes: 1, Scale: 1}
	byModel := func(rate string) string {
		return `
			sum by (cluster, namespace, driver, model) (
			  ` + rate + `
			    * on (<device>) group_left (model) dra_device_info
			)`
	}
	const (
		held    = `rate(dra_claim_allocated_share_seconds_total[<rate>])`
		whileOf = `
			    * on (<claim device>) group_left () (claim_device:dra_idle:bool == 1)`
		ofWhole = `
			    * on (<device>) group_left () (device:dra_share:ratio or group by (<device>) (dra_device_info))`
		priced = `
			    * on (<device>) group_left () (device:dra_price:per_hour / 3600)`
	)
	money := query.Unit{Money: 1, Scale: 1}
	of := func(what string, unit query.Unit, expr string) recording {
		return recording{name: "namespace:dra_" + what + ":increase", perInterval: true, unit: unit, expr: byModel(expr)}
	}
	return []recording{
		of("allocated_share_seconds", seconds, held+ofWhole),
		of("unpriced_share_seconds", seconds, `(`+held+` unless on (<device>) device:dra_price:per_hour)`+ofWhole),
		of("active_seconds", seconds, `rate(dra_claim_active_seconds_total[<rate>])`+ofWhole),
		of("energy_joules", joules, `rate(dra_claim_energy_joules_total[<rate>])`),
		of("cost", money, held+priced),
		of("idle_share_seconds", seconds, held+whileOf+ofWhole),
		of("idle_energy_joules", joules, `rate(dra_claim_energy_joules_total[<rate>])`+whileOf),
		of("idle_cost", money, held+whileOf+priced),
		of("network_bytes", bytes, `rate(dra_claim_io_bytes_total{link=~"network|rdma"}[<rate>])`),
	}
}
