package rules

import (
	"fmt"
	"strings"
)

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
