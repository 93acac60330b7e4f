package rules

import (
	"fmt"
	"slices"
	"strings"
)

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

// WorkRecord is the work of pods by the second, by its kind and model. A user's own rule may record
// more kinds of it, such as samples of a training.
const WorkRecord = "pod:dra_work:rate"

// work records what inference servers produce, by their own counters (vLLM, SGLang, TGI, Triton,
// TensorRT-LLM, which counts no tokens), and which workloads their pods are parts of: the energy of
// a workload is that of all its pods, and often one of them has the counters.
func work() []recording {
	named := func(metric, by string) string {
		return `
			  label_replace(
			    max by (<pod>, ` + by + `) (rate(` + metric + `[<rate>])),
			    "model", "$1", "model_name", "(.+)"
			  )`
	}
	unnamed := func(metric string) string {
		return `
			  label_replace(max by (<pod>) (rate(` + metric + `[<rate>])), "model", "", "pod", ".*")`
	}
	of := func(kind, expr string) recording {
		return recording{
			name: WorkRecord, labels: map[string]string{"work": kind}, expr: `
			sum by (<pod>, model) (` + expr + `
			)`,
		}
	}
	const or = "\n\t\t\t  or"
	return []recording{
		of("generated_token", named("vllm:generation_tokens_total", "model, model_name, engine")+or+
			named("sglang:generation_tokens_total", "model_name")+or+unnamed("tgi_request_generated_tokens_sum")),
		of("prompt_token", named("vllm:prompt_tokens_total", "model, model_name, engine")+or+
			named("sglang:prompt_tokens_total", "model_name")+or+unnamed("tgi_request_input_length_sum")),
		of("request", named("trtllm_request_success_total", "model_name, engine_type, finished_reason")),
		of("inference", `
			  max by (<pod>, model, version) (rate(nv_inference_count[<rate>]))`),
		{name: "node_workload:dra_work:rate", expr: `
			sum by (<served>, node, model, work) (
			  max by (<pod>, model, work) (` + WorkRecord + `)
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info
			)`},
	}
}

// The records of the members of workloads: the devices that one pod of it has for itself.
const (
	memberRecord   = "workload_device:dra_member:info"
	comparedRecord = "workload_device:dra_signal:compared"
	medianRecord   = "workload:dra_signal:median"
	spreadRecord   = "workload:dra_signal:spread"

	// DeviationsRecord is the distance of each member from the median of its workload, in spreads, by
	// the signal with the largest distance.
	DeviationsRecord = "workload_device:dra_signal_deviations:max"
	// StragglerRecord are the members for which the others of their workload wait, by reason.
	StragglerRecord = "workload_device:dra_straggler:info"
	// SignalRecord has the activity of each member, by signal.
	SignalRecord = "workload_device:dra_signal:avg"

	// excessRecord is how far members are above or, below 0, below three spreads around the median of
	// their workload. Most members have none.
	excessRecord = "workload_device:dra_signal:excess"
	// differenceRecord is how far each member is above the median of its workload, while that works.
	differenceRecord = "workload_device:dra_signal:difference"
	// quietRecord is how long each member has been quiet, and progressRecord are the members of which
	// something speaks against a hang of their workload, by reason.
	quietRecord    = "workload_device:dra_quiet:seconds"
	progressRecord = "workload_device:dra_progress:info"
)

// inStepOnly omits the kinds of workloads whose pods work on their own, or wait for requests: their
// members are not compared, and one that does nothing has nothing to do.
const inStepOnly = `workload_kind!~"Deployment|ReplicaSet|ReplicationController|Rollout|DaemonSet|Service|` +
	`InferenceService|RayService|LeaderWorkerSet|StatefulSet|Pod"`

// indexed are the kinds of workloads whose members work in step even if no traffic shows it.
const indexed = `workload_kind=~"JobSet|TrainJob|PyTorchJob|JAXJob|MPIJob|TFJob|PaddleJob|XGBoostJob"`

// lasting is for how long a member is different before the others are said to wait for it in each
// step: the means over ten minutes of a member that saves a checkpoint for ten minutes differ for
// less.
const lasting = "20m"

// leastMembers is the number of members from which on a single one can't shift the median of a
// workload.
const leastMembers = 3

// members record what the members of each workload do, as means over ten minutes. Units differ by
// signal.
func members() []recording {
	signal := func(name, expr string) recording {
		return recording{
			name: SignalRecord, labels: map[string]string{"signal": name}, expr: `
			` + memberRecord + `
			  * on (<device>) group_left () ` + expr,
		}
	}
	gauge := func(name, metric string) recording {
		return signal(name, `max by (<device>) (avg_over_time(`+metric+`[10m]))`)
	}
	return []recording{
		{name: memberRecord, expr: `
			group by (<member>) (
			  group by (<pod device>) (
			    dra_pod_claim_info{attribution="exclusive"}
			    and on (<claim device>) dra_claim_device_info{attribution="exclusive", admin_access="false"}
			  )
			    * on (<pod>) group_left (<of workload>) pod:dra_workload:info
			)`},
		gauge("tensor", `dra_device_engine_utilization_ratio{engine="tensor"}`),
		gauge("utilization", `dra_device_utilization_ratio`),
		// Of its own highest one: models differ, and an RTX at its full clock is not faster than an H100.
		signal("clock", `(
			    max by (<device>) (avg_over_time(dra_device_clock_hertz{domain=~"sm|graphics"}[10m]))
			      / on (<device>) (max by (<device>) (dra_device_clock_max_hertz{domain=~"sm|graphics"}) > 0)
			  )`),
		gauge("power", `dra_device_power_watts`),
		signal("throttled", `max by (<device>) (
			    rate(dra_device_throttled_seconds_total{reason!="idle"}[10m])
			  )`),
		signal("traffic", `sum by (<device>) (
			    max by (<device>, link, direction) (
			      rate(dra_device_io_bytes_total{link=~"nvlink|xgmi|rdma|network"}[10m])
			    )
			  )`),
		{name: quietRecord, expr: `
			` + memberRecord + `
			  * on (<device>) group_left () max by (<device>) (dra_claim_quiet_seconds > 0)`},
		// All but the reasons that say that it waits for another member, and members of the last hour
		// whose exporter does not answer.
		{name: progressRecord, expr: `
			group by (<member>) (
			  ` + memberRecord + ` and on (<device>) max by (<device>) (dra_claim_stalled) == 0
			  or
			  ` + memberRecord + ` and on (<device>) max by (<device>) (
			    dra_claim_stalled_unknown{reason!~"idle|ranks_elsewhere|another_rank_works|` +
			`another_rank_idles|waited_before|host_spins"}
			  )
			  or
			  last_over_time(` + memberRecord + `[1h])
			    and on (cluster, node) max by (cluster, node) (up{job=~"<job>"}) == 0
			)`},
		// The models of the members of each workload.
		{name: "workload_device:dra_member_model:info", expr: `
			group by (<workload>, node, model) (
			  ` + memberRecord + ` * on (<device>) group_left (model) device:dra_model:info
			)`},
	}
}

// stragglers compare the members of each workload over all nodes, in three steps: members of
// workloads that have enough of them, the median and the spread around it, and then members that
// differ. The spread is a standard deviation by the median of the distances to the median, and not
// less than 2 % of the median.
func stragglers() []recording {
	return append([]recording{
		// Most pods are a workload of their own: they are left out before sums are computed.
		{name: comparedRecord, expr: fmt.Sprintf(`
			max by (<member>, signal) (
			  %s{%s}
			  and on (<workload>) count by (<workload>) (group by (<member>) (%s{%s})) >= %d
			  unless on (<workload>) count by (<workload>) (
			    group by (<workload>, model) (workload_device:dra_member_model:info)
			  ) > 1
			)`, SignalRecord, inStepOnly, memberRecord, inStepOnly, leastMembers)},
		{name: medianRecord, expr: fmt.Sprintf(`
			quantile by (<workload>, signal) (0.5, %s)
			and on (<workload>, signal) count by (<workload>, signal) (%s) >= %d`, comparedRecord,
			comparedRecord, leastMembers)},
		{name: spreadRecord, expr: `
			1.4826 * quantile by (<workload>, signal) (
			  0.5, abs(` + comparedRecord + ` - on (<workload>, signal) group_left () ` + medianRecord + `)
			) > 0.02 * ` + medianRecord + `
			or
			0.02 * ` + medianRecord},
		{name: differenceRecord, expr: `
			` + comparedRecord + `{signal=~"tensor|utilization"} - on (<workload>, signal) group_left () ` + medianRecord + `
			and on (<workload>) ` + medianRecord + `{signal="utilization"} > 0.3`},
		{name: DeviationsRecord, expr: `
			max by (<member>) (
			  abs(` + comparedRecord + ` - on (<workload>, signal) group_left () ` + medianRecord + `)
			    / on (<workload>, signal) group_left () (` + spreadRecord + ` > 0)
			)`},
		{name: excessRecord, expr: `
			` + beyond(">", "+") + `
			or
			` + beyond("<", "-")},
	}, slowest()...)
}

// beyond is the distance of the members that are beyond three spreads around the median of their
// workload, from there.
func beyond(is, sign string) string {
	limit := `(` + medianRecord + ` ` + sign + ` 3 * ` + spreadRecord + `)`
	return `(` + comparedRecord + ` ` + is + ` on (<workload>, signal) group_left () ` + limit + `)
			  - on (<workload>, signal) group_left () ` + limit
}

// slowest are the members that differ, by the first reason that applies to them.
func slowest() []recording {
	var earlier []string
	var out []recording
	of := func(name, limit string) string { return excessRecord + `{signal="` + name + `"} ` + limit }
	below := func(name string) string { return of(name, "< 0") }
	// The member has as much work as the others: a device with less work lowers its clocks.
	working := "\n\t\t\tunless on (<member>) " + below("utilization")
	// All members have the same traffic, and have had some for as long: they exchange it in collective
	// operations, and go on with their steps. While one saves a checkpoint, the others wait.
	collective := `
			and on (<workload>) max by (<workload>) (
			  min_over_time(` + medianRecord + `{signal="traffic"}[` + lasting + `])
			) > 1e6
			and on (<workload>) max by (<workload>) (` + spreadRecord + `{signal="traffic"})
			  < 0.1 * max by (<workload>) (` + medianRecord + `{signal="traffic"})
			unless on (<member>) ` + excessRecord + `{signal="traffic"}`
	inStep := `
			and on (<workload>) (` + memberRecord + `{` + indexed + `} or on (<workload>) (
			    max by (<workload>) (` + medianRecord + `{signal="traffic"}) > 1e6
			    and on (<workload>) max by (<workload>) (` + spreadRecord + `{signal="traffic"})
			      < 0.1 * max by (<workload>) (` + medianRecord + `{signal="traffic"})
			  ))`
	// The member has become different, in each minute: the last stage of a pipeline is so by design.
	became := func(signal, past, least, sign string) string {
		difference := differenceRecord + `{signal="` + signal + `"}`
		return `
			and on (<member>) (
			  max by (<member>) (` + least + `_over_time(` + difference + `[` + lasting + `]))
			    - on (<member>) max by (<member>) (quantile_over_time(` + past + `, ` + difference + `[6h])) ` + sign + `
			)`
	}
	for _, r := range []struct{ reason, expr string }{
		{"throttled", of("throttled", "> 0.1") + "\n\t\t\tand on (<member>) " + below("clock") + working + inStep},
		{"low_clock", below("clock") + working + inStep},
		{"busy", of("tensor", "> 0.05") + collective + became("tensor", "0.25", "min", "> 0.05")},
		{"starved", of("utilization", "< -0.1") + collective + became("utilization", "0.75", "max", "< -0.1")},
	} {
		expr := "\n\t\t\tgroup by (<member>) (" + r.expr + "\n\t\t\t)"
		if len(earlier) > 0 {
			expr += "\n\t\t\tunless on (<member>) " + StragglerRecord + `{reason=~"` + strings.Join(earlier, "|") + `"}`
		}
		earlier = append(earlier, r.reason)
		out = append(out, recording{name: StragglerRecord, labels: map[string]string{"reason": r.reason}, expr: expr})
	}
	return out
}

// lostHours record the lost device-time of each pod, by cause, and the sums by workload and node.
// The causes have an order of precedence (incident, waiting, idle, throttled): an hour with two
// causes is lost once, to the first of them. The part of the time in which the device was throttled
// counts as lost, for the reason that took the longest.
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

// hours are the hourly increases by namespace and by workload: over months, a server reads 30 times
// fewer samples of them. They are evaluated once an hour, for the hour that ended five minutes ago:
// by then its last samples have arrived, even from other servers. If the server is down at that
// time, the hour is lost.
func hours() []recording {
	var out []recording
	for _, r := range slices.Concat(namespaces(), workloads()) {
		of, isIncrease := strings.CutSuffix(r.name, ":increase")
		if !isIncrease {
			continue
		}
		by := "<workload>"
		switch {
		case strings.HasPrefix(of, "namespace:"):
			by = "cluster, namespace, driver, model"
		case of == "workload:dra_errors":
			by += ", kind"
		case of == "workload:dra_work":
			by = "<served>, model, work"
		case of == "workload:dra_lost_share_seconds":
			by += ", cause"
		}
		out = append(out, recording{name: r.name + Hourly, expr: `
			max by (` + by + `) (sum_over_time(` + r.name + `[1h] offset 5m))`})
	}
	return out
}

// Hourly is the suffix of the names of records that are the sum of an hour.
const Hourly = "1h"

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
