package rules

import (
	"fmt"
	"strings"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
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
)

// leastMembers is the number of members from which on a single one can't shift the median of a
// workload.
const leastMembers = 3

// members record what the members of each workload do, as means over ten minutes. Units differ by
// signal.
func members() []recording {
	signal := func(name, expr string) recording {
		return recording{
			name: SignalRecord, labels: map[string]string{"signal": name}, unit: query.Unit{Unknown: true}, expr: `
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
		gauge("clock", `dra_device_clock_hertz{domain=~"sm|graphics"}`),
		gauge("power", `dra_device_power_watts`),
		signal("throttled", `max by (<device>) (
			    rate(dra_device_throttled_seconds_total{reason!="idle"}[10m])
			  )`),
		signal("traffic", `sum by (<device>) (
			    max by (<device>, link, direction) (
			      rate(dra_device_io_bytes_total{link=~"nvlink|xgmi|rdma|network"}[10m])
			    )
			  )`),
	}
}

// stragglers compare the members of each workload over all nodes, in three steps: members of
// workloads that have enough of them, the median and the spread around it, and then members that
// differ. The spread is a standard deviation by the median of the distances to the median, and not
// less than 2 % of the median.
func stragglers() []recording {
	unknown := query.Unit{Unknown: true}
	out := []recording{
		// Most pods are a workload of their own: they are left out before sums are computed.
		{name: comparedRecord, unit: unknown, expr: fmt.Sprintf(`
			max by (<member>, signal) (
			  %s
			  and on (<workload>) count by (<workload>) (group by (<member>) (%s)) >= %d
			)`, SignalRecord, memberRecord, leastMembers)},
		{name: medianRecord, unit: unknown, expr: fmt.Sprintf(`
			quantile by (<workload>, signal) (0.5, %s)
			and on (<workload>, signal) count by (<workload>, signal) (%s) >= %d`, comparedRecord,
			comparedRecord, leastMembers)},
		{name: spreadRecord, unit: unknown, expr: `
			1.4826 * quantile by (<workload>, signal) (
			  0.5, abs(` + comparedRecord + ` - on (<workload>, signal) group_left () ` + medianRecord + `)
			) > 0.02 * ` + medianRecord + `
			or
			0.02 * ` + medianRecord},
		{name: DeviationsRecord, unit: query.Unit{Scale: 1}, expr: `
			max by (<member>) (
			  abs(` + comparedRecord + ` - on (<workload>, signal) group_left () ` + medianRecord + `)
			    / on (<workload>, signal) group_left () (` + spreadRecord + ` > 0)
			)`},
	}
	var earlier []string
	of := func(name string) string { return comparedRecord + `{signal="` + name + `"}` }
	limit := func(name, sign, more string) string {
		return `max by (<workload>) (` + medianRecord + `{signal="` + name + `"} ` + sign + ` 3 * ` +
			spreadRecord + `{signal="` + name + `"})` + more
	}
	const than = ` on (<workload>) group_left () `
	above := func(name, more string) string {
		return of(name) + " >" + than + `(` + limit(name, "+", more) + `)`
	}
	below := func(name, more string) string {
		return of(name) + " <" + than + `(` + limit(name, "-", more) + `)`
	}
	// The member has as much work as the others: a device with less work lowers its clocks.
	working := "\n\t\t\tunless on (<member>) " + below("utilization", "")
	// All members have the same traffic: they exchange it in collective operations.
	collective := `
			and on (<workload>) max by (<workload>) (` + medianRecord + `{signal="traffic"}) > 1e6
			and on (<workload>) max by (<workload>) (` + spreadRecord + `{signal="traffic"})
			  < 0.1 * max by (<workload>) (` + medianRecord + `{signal="traffic"})
			unless on (<member>) ` + above("traffic", "") + `
			unless on (<member>) ` + below("traffic", "")
	for _, r := range []struct{ reason, expr string }{
		{"throttled", above("throttled", " + 0.1") + "\n\t\t\tand on (<member>) " + below("clock", "") + working},
		{"low_clock", below("clock", "") + working},
		{"busy", above("tensor", " + 0.05") + collective},
		{"starved", below("utilization", " - 0.1") + collective},
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
