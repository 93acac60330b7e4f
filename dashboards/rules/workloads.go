package rules

// workloadsOfNodes are what each workload holds and uses on each node, by the second, and what
// happens to its devices, by driver: a workload is what a pod is a part of by dra_pod_info, such as
// a JobSet or a Deployment. Nothing is counted twice if an exporter is scraped twice, and the
// newest of several series of a pod determines its workload.
func workloadsOfNodes() []recording {
	const (
		of = `
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info`
		ofWhole = onDevice + "device:dra_weight:ratio"
		// 1 while the claim that holds the device is busy and does nothing, 0 while it is not known
		// to: only claims that have the device for themselves can be known to be stalled.
		whileStalled = `
			    * on (<device>) group_left () max by (<device>) (dra_claim_stalled)`
		held = "pod_device:dra_allocated_share_seconds:rate"
	)
	sum := func(what, expr string) recording {
		return recording{
			name: "node_workload:dra_" + what + ":rate",
			expr: `
			sum by (<workload>, node, cluster_device) (
			  ` + expr + `
			)`,
		}
	}
	rate := func(counter string) string { return `max by (<pod device>) (rate(` + counter + `[<rate>]))` }
	return []recording{
		workloadOfPods(), flopUtilization(),
		{name: held, expr: `
			` + rate("dra_pod_allocated_share_seconds_total") + ofWhole + of},
		sum("allocated_share_seconds", held),
		sum("active_seconds", rate("dra_pod_active_seconds_total")+ofWhole+of),
		sum("idle_share_seconds", "("+held+` and on (<device>) device:dra_state:info{state="idle"})`),
		sum("stalled_share_seconds", held+whileStalled),
		// Device-time at the highest rate, and the time held on devices for which that is measured.
		sum("flop_share_seconds", rate("dra_pod_tensor_seconds_total")+ofWhole+of),
		sum("flop_measured_share_seconds", "("+held+" and on (<device>) device:dra_flop_utilization:ratio)"),
		sum("energy_joules", rate("dra_pod_energy_joules_total")+`
			    * on (<pod device>) group_left (<of workload>, cluster_device) (`+held+` >= bool 0)`),
		// What happens to a device hits all of its holders in full: it is one incident of a
		// workload, however many of its pods hold the device.
		{name: "node_workload:dra_errors:rate", expr: `
			sum by (<workload>, node, kind) (
			  max by (<workload>, node, pool, device, kind, code) (
			    max by (<pod device>, kind, code) (rate(dra_pod_errors_total{severity!="nonfatal"}[<rate>]))` + of + `
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
		{name: "node_workload:dra_devices:count", expr: `
			count by (<workload>, node, cluster_device) (
			  group by (<workload>, node, pool, device, cluster_device) (
			    ` + held + ` and on (<pod device>) dra_pod_claim_info{attribution!=""}
			  )
			)`},
	}
}

// workloadOfPods is the workload of each pod. A pod without a controller is a workload by itself.
func workloadOfPods() recording {
	return recording{name: "pod:dra_workload:info", expr: `
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
			)`}
}

// flopUtilization is the overall FLOP utilization of each device: which share of its tensor cores'
// highest rate it reaches. Its exporter integrates the product of their busy time and the clock,
// since the product of two means is not the mean of the product.
func flopUtilization() recording {
	return recording{name: "device:dra_flop_utilization:ratio", expr: `
			max by (<device>) (rate(dra_device_tensor_seconds_total[<rate>]))`}
}

const onDevice = `
			    * on (<device>) group_left (cluster_device) `

// workloads are the workloads over all nodes. The pods of each node have the part of a device of
// the cluster that [clusterDevices] recorded last, up to an interval before.
func workloads() []recording {
	increase := func(what, expr string) recording {
		return recording{name: "workload:dra_" + what + ":increase", perInterval: true, expr: expr}
	}
	sum := func(what, more string) string {
		return `
			sum by (<workload>` + more + `) (max by (<workload>, node` + more + `) (node_workload:dra_` + what + `:rate))`
	}
	dividedBy := func(what, more string) recording {
		record := "node_workload:dra_" + what + ":rate"
		return increase(what, `
			sum by (<workload>`+more+`) (
			  max by (<workload>, node`+more+`) (`+record+`{cluster_device=""})
			  or
			  max by (<workload>, node, cluster_device`+more+`) (`+record+`{cluster_device!=""})
			    * on (cluster, node, driver, cluster_device) group_left ()
			      max by (cluster, node, driver, cluster_device) (`+clusterDevicePart+`)
			)`)
	}
	divided := func(what string) recording { return dividedBy(what, "") }
	return []recording{
		divided("allocated_share_seconds"),
		divided("active_seconds"),
		divided("idle_share_seconds"),
		divided("stalled_share_seconds"),
		divided("flop_share_seconds"),
		divided("flop_measured_share_seconds"),
		divided("energy_joules"),
		dividedBy("lost_share_seconds", ", cause"),
		increase("work", `
			sum by (<served>, model, work) (max by (<served>, node, model, work) (node_workload:dra_work:rate))`),
		increase("errors", sum("errors", ", kind")),
		increase("throttled_seconds", sum("throttled_seconds", "")),
		{name: "workload:dra_memory_used_peak_bytes:max", expr: `
			max by (<workload>) (node_workload:dra_memory_used_peak_bytes:max)`},
		{name: "workload:dra_devices:count", expr: `
			sum by (<workload>) (
			  max by (<workload>, node) (node_workload:dra_devices:count{cluster_device=""})
			  or
			  max by (<workload>, cluster_device) (node_workload:dra_devices:count{cluster_device!=""})
			)`},
	}
}
