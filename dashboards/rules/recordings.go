package rules

import (
	"fmt"
	"slices"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
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
	unit        query.Unit
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
		slices.Concat(idleDevices(), idleClaims(), deviceStates(), fleet(), namespaces()),
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

// idleClaims count, by claim and driver, the devices held and those of them that are idle.
func idleClaims() []recording {
	return []recording{
		{name: "claim:dra_devices:count", expr: `
			count by (<claim driver>) (group by (<claim device>) (dra_claim_device_info{admin_access="false"}))`},
		{name: "claim:dra_idle_devices:count", expr: `
			sum by (<claim driver>) (claim_device:dra_idle:bool)`},
		{name: "claim:dra_idle_alerts:off", expr: `
			group by (<claim>) (dra_claim_info{label_<opt out>="off"})
			or
			group by (<claim>) (
			  dra_pod_claim_info * on (cluster, node, namespace, pod) group_left () dra_pod_info{annotation_<opt out>="off"}
			)`},
	}
}

// deviceStates give each device one state, the first that applies. A device to which none applies
// (a partitioned parent, a partition that was never created) is not counted.
func deviceStates() []recording {
	const name = "device:dra_state:info"
	state := func(s string) map[string]string { return map[string]string{"state": s} }
	return []recording{
		{name: name, labels: state("unhealthy"), expr: `
			group by (<device>) (dra_device_health{status="unhealthy"} == 1 or dra_device_up == 0)`},
		{name: name, labels: state("idle"), expr: `
			(min by (<device>) (claim_device:dra_idle:bool) == 1)
			unless on (<device>) device:dra_state:info{state="unhealthy"}`},
		{name: name, labels: state("unmeasured"), expr: `
			group by (<device>) (dra_device_allocations > 0)
			unless on (<device>) device:dra_state:info{state=~"unhealthy|idle"}
			unless on (<device>) dra_device_active_seconds_total
			unless on (<device>) dra_device_io_bytes_total{link=~"network|rdma"}`},
		{name: name, labels: state("active"), expr: `
			group by (<device>) (dra_device_allocations > 0)
			unless on (<device>) device:dra_state:info{state=~"unhealthy|idle|unmeasured"}`},
		{name: name, labels: state("tainted"), expr: `
			group by (<device>) (dra_device_allocations == 0)
			and on (<device>) dra_device_tainted{effect=~"NoSchedule|NoExecute"}
			and on (<device>) dra_device_up
			unless on (<device>) device:dra_state:info{state="unhealthy"}
			unless on (<device>) label_replace(
			  group by (cluster, node, driver, pool, parent) (dra_device_info{parent!=""}), "device", "$1", "parent", "(.+)"
			)`},
		{name: name, labels: state("free"), expr: `
			group by (<device>) (dra_device_allocations == 0)
			and on (<device>) dra_device_up
			unless on (<device>) device:dra_state:info{state=~"unhealthy|tainted"}
			unless on (<device>) label_replace(
			  group by (cluster, node, driver, pool, parent) (dra_device_info{parent!=""}), "device", "$1", "parent", "(.+)"
			)`},
	}
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

// namespaces are the showback of each namespace. Shared devices are divided among their claims, so
// that no device-second is counted twice.
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
	idle := func(rate string) string {
		return byModel(rate + `
			    * on (<claim device>) group_left () (claim_device:dra_idle:bool == 1)`)
	}
	return []recording{
		{
			name: "namespace:dra_allocated_share_seconds:increase", perInterval: true, unit: seconds,
			expr: byModel(`rate(dra_claim_allocated_share_seconds_total[<rate>])`),
		},
		{
			name: "namespace:dra_active_seconds:increase", perInterval: true, unit: seconds,
			expr: byModel(`rate(dra_claim_active_seconds_total[<rate>])`),
		},
		{
			name: "namespace:dra_energy_joules:increase", perInterval: true, unit: joules,
			expr: byModel(`rate(dra_claim_energy_joules_total[<rate>])`),
		},
		{
			name: "namespace:dra_idle_share_seconds:increase", perInterval: true, unit: seconds,
			expr: idle(`rate(dra_claim_allocated_share_seconds_total[<rate>])`),
		},
		{
			name: "namespace:dra_idle_energy_joules:increase", perInterval: true, unit: joules,
			expr: idle(`rate(dra_claim_energy_joules_total[<rate>])`),
		},
		{
			name: "namespace:dra_network_bytes:increase", perInterval: true, unit: bytes,
			expr: byModel(`rate(dra_claim_io_bytes_total{link=~"network|rdma"}[<rate>])`),
		},
	}
}
