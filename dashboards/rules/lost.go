package rules

// LostCauses are the causes of lost device-hours, in order of precedence: an hour with two causes
// is lost once, to the first of them.
func LostCauses() []string { return []string{"incident", "waiting", "idle", "throttled"} }

// lostHours record the lost device-time of each pod, by cause, and the sums by workload and node.
// The part of the time in which the device was throttled counts as lost, for the reason that took
// the longest.
func lostHours() []recording {
	const (
		lost = "pod_device:dra_lost_share_seconds:rate"
		held = "pod_device:dra_allocated_share_seconds:rate"
	)
	// The causes that hit a claim, and so the pods that use it there: an incident before waiting.
	out := []recording{{name: lost, expr: `
			max by (<pod device>, <of workload>, cluster_device, cause) (
			  ` + held + `
			    * on (<pod device>) group_left (cause) (topk by (<pod device>) (1, max by (<pod device>, cause) (
			      dra_pod_claim_info * on (<claim device>) group_left (cause) (
			        label_replace(group by (<claim device>) (dra_claim_incident_open == 1), "cause", "incident", "", "")
			        or on (<claim device>)
			        label_replace(
			          group by (<claim device>) (dra_claim_device_info{state="allocated", admin_access="false"}) - 1,
			          "cause", "waiting", "", ""
			        )
			      )
			    )) >= bool 0)
			)`}}
	earlier := "incident|waiting"
	for _, r := range []struct{ cause, expr string }{
		{"idle", held + ` and on (<device>) device:dra_state:info{state="idle"}`},
		{"throttled", held + `
			  * on (<pod device>) group_left () clamp_max(
			    max by (<pod device>) (rate(dra_pod_throttled_seconds_total{reason!="idle"}[<rate>])), 1
			  ) > 0`},
	} {
		out = append(out, recording{name: lost, labels: map[string]string{"cause": r.cause}, expr: `
			max by (<pod device>, <of workload>, cluster_device) (
			` + r.expr + `
			unless on (<pod device>) ` + lost + `{cause=~"` + earlier + `"}
			)`})
		earlier += "|" + r.cause
	}
	return append(out, recording{name: "node_workload:dra_lost_share_seconds:rate", expr: `
			sum by (<workload>, node, cluster_device, cause) (` + lost + `)`})
}

// failures are the nodes and devices that fail more often than their cluster, over a week. Counted
// are hours of a node or a device with a failure, divided by hours of devices, since one cause
// often appears many times, or on many devices, within an hour. A rate counts as its lower bound at
// three standard deviations of a Poisson distribution, (√k - 1.5)²: one or two such hours are not
// enough.
func failures() []recording {
	const (
		failedDevices, failedNodes = "device:dra_failed:info1h", "node:dra_failed:info1h"
		devices                    = "node:dra_devices:count1h"
		exposed                    = "max by (<node>) (sum_over_time(" + devices + "[7d]))"
	)
	failed := func(record, by string) string { return "max by (" + by + ") (sum_over_time(" + record + "[7d]))" }
	bound := func(record, by string) string { return "clamp_min(sqrt(" + failed(record, by) + ") - 1.5, 0) ^ 2" }
	ofCluster := func(record, by string) string {
		return `
			  / on (cluster) group_left () (
			    sum by (cluster) (` + failed(record, by) + `) / on (cluster) sum by (cluster) (` + exposed + `)
			  ) > 1`
	}
	return []recording{
		{name: failedDevices, expr: `
			group by (<device>) (
			  count_over_time(device:dra_error:timestamp_seconds{kind=~"` + hardwareErrors + `"}[1h] offset 5m)
			  or
			  count_over_time(device:dra_lost:info[1h] offset 5m)
			  or
			  count_over_time(device:dra_state:info{state="unhealthy"}[1h] offset 5m)
			)`},
		{name: failedNodes, expr: `
			group by (<node>) (` + failedDevices + `)`},
		{name: devices, expr: `
			count by (<node>) (group by (<device>) (device:dra_state:info))`},
		{name: FailingNodes, expr: `
			` + bound(failedNodes, "<node>") + `
			  / on (<node>) ` + exposed + ofCluster(failedNodes, "<node>")},
		{name: FailingDevices, expr: `
			` + bound(failedDevices, "<device>") + `
			  / on (<node>) group_left () max by (<node>) (count_over_time(` + devices + `[7d]))` +
			ofCluster(failedDevices, "<device>")},
	}
}

// hardwareErrors are the kinds of errors that a program does not cause.
const hardwareErrors = "ecc_uncorrected|ras|row_remap|page_retirement|nvlink|link_down"

// The nodes and devices that fail more often than their cluster, with how many times as often at
// least. They are recorded once an hour.
const (
	FailingNodes   = "node:dra_failing:ratio1h"
	FailingDevices = "device:dra_failing:ratio1h"
)
