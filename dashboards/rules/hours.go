package rules

import (
	"slices"
	"strings"
)

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
