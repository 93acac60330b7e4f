package rules

import "github.com/dra-exporter/dra-exporter/dashboards/query"

// workloads are what each workload held and used, and what happened to its devices, by driver: a
// workload is what a pod is a part of by dra_pod_info, such as a JobSet or a Deployment. Nothing is
// counted twice if an exporter is scraped twice, and of several series of a pod the newest says
// what it is a part of.
func workloads() []recording {
	const (
		of = `
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info`
		ofWhole = `
			    * on (<device>) group_left () (device:dra_share:ratio or group by (<device>) (dra_device_info))`
		whileIdle = `
			    * on (<device>) group_left () group by (<device>) (device:dra_state:info{state="idle"})`
	)
	increase := func(what string, unit query.Unit, expr string) recording {
		return recording{
			name: "workload:dra_" + what + ":increase", perInterval: true, unit: unit,
			expr: `
			sum by (<workload>) (
			  ` + expr + of + `
			)`,
		}
	}
	rate := func(counter string) string { return `max by (<pod device>) (rate(` + counter + `[<rate>]))` }
	seconds, joules := query.Unit{Seconds: 1, Scale: 1}, query.Unit{Joules: 1, Scale: 1}
	held := rate("dra_pod_allocated_share_seconds_total")
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
		increase("allocated_share_seconds", seconds, held+ofWhole),
		increase("active_seconds", seconds, rate("dra_pod_active_seconds_total")+ofWhole),
		increase("idle_share_seconds", seconds, held+ofWhole+whileIdle),
		increase("energy_joules", joules, rate("dra_pod_energy_joules_total")),
		// What happens to a device hits all of its holders in full: it is one incident of a workload,
		// however many of its pods hold the device.
		{name: "workload:dra_errors:increase", perInterval: true, unit: query.Unit{Scale: 1}, expr: `
			sum by (<workload>, kind) (
			  max by (<workload>, node, pool, device, kind, code) (
			    max by (<pod device>, kind, code) (rate(dra_pod_errors_total[<rate>]))` + of + `
			  )
			)`},
		// Reasons overlap: of each device, that which took the longest.
		{name: "workload:dra_throttled_seconds:increase", perInterval: true, unit: seconds, expr: `
			sum by (<workload>) (
			  max by (<workload>, node, pool, device) (
			    max by (<pod device>) (rate(dra_pod_throttled_seconds_total[<rate>]))` + of + `
			  )
			)`},
		{name: "workload:dra_memory_used_peak_bytes:max", expr: `
			max by (<workload>) (
			  max by (<pod device>) (dra_pod_memory_used_peak_bytes)` + of + `
			)`},
		{name: "workload:dra_devices:count", expr: `
			count by (<workload>) (
			  group by (<workload>, node, pool, device) (
			    group by (<pod device>) (dra_pod_claim_info{attribution!=""})` + of + `
			  )
			)`},
	}
}
