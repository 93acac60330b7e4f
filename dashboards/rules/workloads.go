package rules

import "github.com/dra-exporter/dra-exporter/dashboards/query"

// workloadsOfNodes are what each workload holds and uses on each node, by the second, and what
// happens to its devices, by driver: a workload is what a pod is a part of by dra_pod_info, such as
// a JobSet or a Deployment. Nothing is counted twice if an exporter is scraped twice, and of
// several series of a pod the newest says what it is a part of.
func workloadsOfNodes() []recording {
	const (
		of = `
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info`
		ofWhole = `
			    * on (<device>) group_left () device:dra_weight:ratio`
		// 1 while the claim that holds the device is busy and does nothing, 0 while it is not known to:
		// only claims that have the device for themselves can be known to be stalled.
		whileStalled = `
			    * on (<device>) group_left () max by (<device>) (dra_claim_stalled)`
		held = "pod_device:dra_allocated_share_seconds:rate"
	)
	sum := func(what, expr string) recording {
		return recording{
			name: "node_workload:dra_" + what + ":rate",
			expr: `
			sum by (<workload>, node) (
			  ` + expr + of + `
			)`,
		}
	}
	rate := func(counter string) string { return `max by (<pod device>) (rate(` + counter + `[<rate>]))` }
	return []recording{
		// A pod of which nothing is the controller is a workload by itself.
		{name: "pod:dra_workload:info", expr: `
			group by (<pod>, <of workload>) (
			  topk by (<pod>) (
			    1,
			    timestamp(dra_pod_info{workload_name!=""})
			    or
			    label_replace(
			      label_replace(timestamp(dra_pod_info{workload_name=""}), "workload_name", "$1", "pod", "(.+)"),
			      "workload_kind", "Pod", "", ""
			    )
			  )
			)`},
		{name: held, expr: `
			` + rate("dra_pod_allocated_share_seconds_total") + ofWhole},
		sum("allocated_share_seconds", held),
		sum("active_seconds", rate("dra_pod_active_seconds_total")+ofWhole),
		sum("idle_share_seconds", "("+held+` and on (<device>) device:dra_state:info{state="idle"})`),
		sum("stalled_share_seconds", held+whileStalled),
		sum("energy_joules", rate("dra_pod_energy_joules_total")),
		// What happens to a device hits all of its holders in full: it is one incident of a
		// workload, however many of its pods hold the device.
		{name: "node_workload:dra_errors:rate", expr: `
			sum by (<workload>, node, kind) (
			  max by (<workload>, node, pool, device, kind, code) (
			    max by (<pod device>, kind, code) (rate(dra_pod_errors_total[<rate>]))` + of + `
			  )
			)`},
		// Reasons overlap: of each device, that which took the longest.
		{name: "node_workload:dra_throttled_seconds:rate", expr: `
			sum by (<workload>, node) (
			  max by (<workload>, node, pool, device) (
			    max by (<pod device>) (rate(dra_pod_throttled_seconds_total[<rate>]))` + of + `
			  )
			)`},
		{name: "node_workload:dra_memory_used_peak_bytes:max", expr: `
			max by (<workload>, node) (
			  max by (<pod device>) (dra_pod_memory_used_peak_bytes)` + of + `
			)`},
		// Pods whose devices are of several NUMA nodes, also those whose links are not measured, and
		// the traffic of the others.
		{name: "node:dra_cross_numa_pods:count", expr: `
			count by (cluster, node) (group by (<pod>) (dra_pod_topology_info{farthest="across"}))`},
		{name: "pod:dra_cross_numa_io_bytes:rate", expr: `
			sum by (<pod>, link, direction) (
			  max by (<pod device>, link, direction) (rate(dra_pod_io_bytes_total[<rate>]))
			)
			and on (<pod>) dra_pod_topology_info{farthest="across"}`},
		{name: "node_workload:dra_devices:count", expr: `
			count by (<workload>, node) (
			  group by (<workload>, node, pool, device) (
			    group by (<pod device>) (dra_pod_claim_info{attribution!=""})` + of + `
			  )
			)`},
	}
}

// workloads are the workloads over all nodes.
func workloads() []recording {
	seconds := query.Unit{Seconds: 1, Scale: 1}
	sum := func(what, more string) string {
		return `
			sum by (<workload>` + more + `) (max by (<workload>, node` + more + `) (node_workload:dra_` + what + `))`
	}
	increase := func(what, more string, unit query.Unit) recording {
		return recording{
			name: "workload:dra_" + what + ":increase", perInterval: true, unit: unit, expr: sum(what+":rate", more),
		}
	}
	return []recording{
		increase("allocated_share_seconds", "", seconds),
		increase("active_seconds", "", seconds),
		increase("idle_share_seconds", "", seconds),
		increase("stalled_share_seconds", "", seconds),
		increase("energy_joules", "", query.Unit{Joules: 1, Scale: 1}),
		increase("errors", ", kind", query.Unit{Scale: 1}),
		increase("throttled_seconds", "", seconds),
		{name: "workload:dra_memory_used_peak_bytes:max", expr: `
			max by (<workload>) (node_workload:dra_memory_used_peak_bytes:max)`},
		{name: "workload:dra_devices:count", expr: sum("devices:count", "")},
	}
}
