package grafana

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// workloads is the dashboard of what each workload held and used, and of its devices' failures.
func workloads() Board {
	return Board{
		UID: "dra-workloads", Title: "DRA / Workloads", search: "workload", recorded: true, lists: []list{heldLongest()},
		uses: []string{"cluster", "namespace", "kind", "queue", "workload", "driver"}, Description: "What each workload " +
			"(JobSet, Job, Deployment, RayCluster and so on) held and used, and what happened to its devices, in the " +
			"selected time range: those with the most device-hours. A pod that nothing controls is a workload of kind Pod.",
		Rows: []Row{
			{"Total", workloadTotal()},
			{"By workload", workloadTables()},
			{memberRow, memberTables()},
			{workRow, []Panel{energyOfWork()}},
		}, folded: []string{memberRow, workRow},
	}
}

// memberRow has what the pictures of pods and members are about.
const memberRow = "Pods, members and errors"

// workRow is empty in most clusters: it needs metrics of servers.
const workRow = "Energy of each unit of work"

// shownWorkloads is how many workloads a table has, and linesOfWorkloads
// how many workloads a graph.
const (
	shownWorkloads   = 25
	linesOfWorkloads = 10
)

// workloadSum is the sum of a recorded increase over the selected time range, by the labels if
// there are any.
func workloadSum(name, by string) string { return workloadSumOver(name, by, "$__range") }

func workloadSumOver(name, by, span string) string {
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	once := "<workload>"
	switch name {
	case "errors":
		once += ", kind"
	case "lost_share_seconds":
		once += ", cause"
	}
	return sum + ` (max by (` + once + `) (sum_over_time(workload:dra_` + name +
		`:increase$hours{<of workloads>}[` + span + `])))`
}

// topWorkloads restricts an expression to the workloads with the most device-hours.
func topWorkloads(expr string, most int) string {
	held := workloadSum("allocated_share_seconds", "<workload>")
	return strings.ReplaceAll(fmt.Sprintf(`%s and on (<workload>) topk(%d, %s)`, expr, most, held), "{<of workloads>}",
		`{<of workloads>, workload_name=~"$`+heldLongest().name+`"}`)
}

// heldLongest is the list of the names of the workloads with the most device-hours: each query
// about them reads these alone, of thousands.
func heldLongest() list {
	return list{
		name: "held_longest", label: "Workloads held longest", of: "workload_name", expr: fmt.Sprintf(`topk(%d, %s)`,
			pointsOfWorkloads, workloadSum("allocated_share_seconds", "<workload>")),
	}
}

// topOfWorkloads is a table of the workloads with the most device-hours of a kind in a day, for
// other dashboards: there are thousands, and those dashboards are opened over months.
func topOfWorkloads(title, description, record, column string, width uint32) Panel {
	return ranked(column, linesOfWorkloads, title, description, "none", width, 6,
		columnOf(column, "h",
			fmt.Sprintf(`topk(%d, %s / 3600 > 0)`, linesOfWorkloads, workloadSumOver(record, "<workload>", "1d")))).optional()
}

func workloadTotal() []Panel {
	const held = `sum_over_time(workload:dra_allocated_share_seconds:increase$hours{<of workloads>}[$__range])`
	return append([]Panel{
		fact(4, 3, "Workloads", "Workloads that held devices in the selected time range.", "none", nothingHeld,
			`count(group by (cluster, namespace, workload_kind, workload_name) (`+held+` > 0))`, step{0, blue}),
		fact(4, 3, "Device-hours of workloads", "Device-hours held by pods of the workloads in the selected time range.",
			"h", nothingHeld, workloadSum("allocated_share_seconds", "")+" / 3600", step{0, blue}),
		fact(4, 3, "Active share", "Active time divided by the time held. Devices without utilization never count as "+
			"active: select a driver to exclude them.", "percentunit", "not measured", workloadSum("active_seconds", "")+" / "+
			workloadSum("allocated_share_seconds", ""), step{0, red}, step{0.2, orange}, step{0.5, green}).precise(1),
		fact(4, 3, "Energy of workloads", "Energy used by devices for pods of the workloads in the selected time range.",
			"kwatth", "not measured", workloadSum("energy_joules", "")+" / 3.6e6", step{0, blue}).precise(3),
		fact(4, 3, "Idle device-hours", "Device-hours in which the devices were idle while pods of the workloads held "+
			"them.", "h", "nothing is known to be idle", workloadSum("idle_share_seconds", "")+" / 3600", step{0, green},
			step{1, orange}),
		fact(4, 3, "Errors of devices", "Errors of devices while the workloads held them. One that hit several "+
			"workloads counts for each.", "none", "none", "round("+workloadSum("errors", "")+")", step{0, green},
			step{0.5, red}).optional(),
	}, workloadPictures()...)
}

func workloadTables() []Panel {
	top := func(expr string) string { return topWorkloads(expr, shownWorkloads) }
	of := func(name string) string { return workloadSum(name, "<workload>") }
	hours := func(name string) string { return top(of(name) + " / 3600") }
	ratio := func(part, whole string) string { return top(of(part) + " / (" + of(whole) + " > 0)") }
	return []Panel{
		ranked("Device-hours", shownWorkloads, "Workloads by device-hours", "The workloads with the most device-hours, "+
			"by driver. Stalled: busy without progress. FLOP utilization: the share of the tensor cores' highest rate, "+
			"where a source measures them. Goodput: the share of the hours held that was not lost; empty if nothing was. "+
			"Throttled: of each device the reason that took the longest. Peak memory: the most that one pod had of one "+
			"device. Click a workload to select it, a namespace for its showback.", nothingHeld, 24, 10,
			columnOf("Device-hours", "h", hours("allocated_share_seconds")),
			columnOf("Active", "percentunit", ratio("active_seconds", "allocated_share_seconds")),
			columnOf("FLOP utilization", "percentunit", ratio("flop_share_seconds", "flop_measured_share_seconds")),
			columnOf("Goodput", "percentunit",
				top("clamp_min(1 - "+of("lost_share_seconds")+" / "+of("allocated_share_seconds")+", 0)")),
			columnOf("Idle device-hours", "h", hours("idle_share_seconds")),
			columnOf("Stalled", "h", hours("stalled_share_seconds")),
			columnOf("Energy", "kwatth", top(of("energy_joules")+" / 3.6e6")),
			columnOf("Errors", "short", top("round("+of("errors")+")")),
			columnOf("Throttled", "h", hours("throttled_seconds")),
			columnOf("Peak memory", "bytes",
				top(`max by (<workload>) (max_over_time(workload:dra_memory_used_peak_bytes:max{<of workloads>}[$__range]))`)),
			columnOf("Devices now", "none", top(`max by (<workload>) (workload:dra_devices:count{<of workloads>})`))),
	}
}

func memberTables() []Panel {
	return []Panel{
		membersSideBySide(),
		ranked("Devices", shownWorkloads, "Pods of workloads", "Pods that hold devices now, those with the most "+
			"devices. Click a pod for the dashboard of its claim.", "no pod holds a device", 12, 7,
			columnOf("Devices", "none",
				fmt.Sprintf(
					`topk(%d,
					count by (<pod>) (group by (<pod device>) (dra_pod_claim_info{<of nodes>, driver=~"$driver", attribution!=""}))
					  * on (<pod>) group_left (workload_kind, workload_name) topk by (<pod>)
					    (1, group by (<pod>, workload_kind, workload_name) (pod:dra_workload:info{<of pods of workloads>}))
				)`, shownWorkloads))).total(),
	}
}

// energyOfWork is a table of joules and device-time for each unit of work.
func energyOfWork() Panel {
	const (
		done = `sum by (<served>, model, work) (max by (<served>, model, work) ` +
			`(sum_over_time(workload:dra_work:increase$hours{cluster=~"$cluster", namespace=~"$namespace", ` +
			`workload_kind=~"$kind", workload_name=~"$workload", queue=~"$queue"}[$__range])) > 0)`
		once = `max by (<workload>) (sum_over_time(workload:dra_`
		held = once + `allocated_share_seconds:increase$hours{<of workloads>}[$__range]))`
		used = once + `energy_joules:increase$hours{<of workloads>}[$__range]))`
	)
	shown := fmt.Sprintf(` and on (<served>, model, work) topk(%d, %s)`, shownWorkloads, done)
	// For a workload that serves several models, the energy of each of them is unknown.
	one := shown + ` and on (<served>, work) count by (<served>, work) (` + done + `) == 1`
	return ranked("Units", shownWorkloads, "Energy and device-time for each unit of work", "Tokens that inference "+
		"servers generate and read, and inferences of Triton, requests of TensorRT-LLM, by their own counters, and what the "+
		"devices of the workload's pods took for each: of all its pods, and of drivers whose energy is measured. The "+
		"README of the dashboards says how to add others, such as samples of a training.", "needs metrics of vLLM, "+
		"SGLang, TGI, Triton or TensorRT-LLM with the labels namespace, pod and node, or the record "+rules.WorkRecord,
		24, 8, columnOf("Units", "short", fmt.Sprintf(`topk(%d, %s)`, shownWorkloads, done)),
		columnOf("Energy of each", "joule", `sum by (<served>) (`+used+`) / on (<served>) group_right () `+done+one),
		columnOf("Per device-second", "cps", done+` / on (<served>) group_left () sum by (<served>) (`+held+` and on `+
			`(<workload>) `+used+` > 0)`+one)).optional()
}

// membersSideBySide is a table of the members of workloads; those that differ most come first.
func membersSideBySide() Panel {
	// Members for which the others wait come first.
	shown := fmt.Sprintf(`
		and on (<member>) topk(%d,
		  1e9 + 0 * group by (<member>) (%s{<of workloads>, node=~"$node"})
		  or
		  max by (<member>) (%s{<of workloads>, node=~"$node"})
		)`, shownWorkloads, rules.StragglerRecord, rules.DeviationsRecord)
	signal := func(name, column, unit string) Target {
		return columnOf(column, unit,
			fmt.Sprintf(`max by (<member>) (%s{<of workloads>, node=~"$node", signal=%q}%s)`, rules.SignalRecord, name,
				shown))
	}
	return ranked("Deviation", shownWorkloads, "Members of workloads side by side", "Devices that one pod of a workload "+
		"has for itself, of workloads with three or more of one driver, as means over ten minutes: those first that "+
		"are farthest from the median of their workload. Deviation: in deviations, in the column that differs most. "+
		"Reason: why the others wait for it, see DRAWorkloadStraggler in the runbook; empty if nothing shows that they "+
		"wait. Select a workload to see its members.", "no workload has three members of one driver", 24, 7,
		columnOf("Deviation", "none",
			`max by (<member>) (`+rules.DeviationsRecord+`{<of workloads>, node=~"$node"}`+shown+`)`),
		labelsOf(`max by (<member>, reason) (`+rules.StragglerRecord+`{<of workloads>, node=~"$node"}`+shown+`)`),
		signal("tensor", "Tensor", "percentunit"), signal("utilization", "Utilization", "percentunit"),
		signal("clock", "Clock of its maximum", "percentunit"), signal("throttled", "Throttled", "percentunit"),
		signal("power", "Power", "watt"), signal("traffic", "Traffic", "binBps")).optional()
}

// workloadPictures show which workloads waste what they hold, whose members leave the pack, and
// what was lost.
func workloadPictures() []Panel {
	held := workloadSum("allocated_share_seconds", "<workload>")
	active := workloadSum("active_seconds", "<workload>")
	top := func(expr string) string { return topWorkloads(expr, pointsOfWorkloads) }
	lost := line("Device-hours lost by cause", "Device-hours that were held and lost: while an incident that hit the "+
		"claim was open, the device was allocated and not prepared, idle, or throttled. An hour counts once, for the "+
		"first of these.", "h", "nothing is known to be lost", "{{cause}}", `sum by (cause) (max by (<workload>, cause) `+
		`(sum_over_time(workload:dra_lost_share_seconds:increase$hours{<of workloads>}[$__interval]))) / 3600`)
	lost.bars, lost.Width, lost.Height, lost.MayBeEmpty = true, 8, 9, true
	lost.colors = []state{
		same("incident", red), same("waiting", yellow), same("idle", orange), same("throttled", purple),
	}
	return []Panel{
		{
			Title: "Efficiency by device-hours",
			Description: "A point for each of the 50 workloads with the most device-hours: how much of the time its " +
				"devices were active. What is on the right and low wastes the most. Click a point to select the workload.",
			Kind: Points, Unit: "none", NoData: "nothing held whose activity is measured", Width: 8, Height: 9,
			Targets: []Target{
				{Expr: top(held + " / 3600 and on (<workload>) " + active), Unit: "h"},
				{Expr: top(active + " / (" + held + " > 0)"), Unit: "percentunit"},
			},
			points: &points{title: "Workload", x: "Device-hours", y: "Active", color: "Active", least: 9, most: 9},
			reshape: []dashboard.DataTransformerConfig{
				transformed("merge", map[string]any{}),
				transformed("organize", map[string]any{
					"excludeByName": map[string]bool{"Time": true},
					"renameByName":  map[string]string{"Value #A": "Device-hours", "Value #B": "Active"},
				}),
			},
			fields: []dashboard.DashboardFieldConfigSourceOverrides{
				override("Device-hours", append(soft(0, 0), property("unit", shownUnit("h")))...),
				override("Active", property("unit", "percentunit"), property("min", 0), property("max", 1),
					property("links", []map[string]any{{
						"title": "This workload", "oneClick": true, "url": "/d/dra-workloads" + carry +
							"&var-namespace=${__data.fields.namespace}&var-kind=${__data.fields.workload_kind}" +
							"&var-workload=${__data.fields.workload_name}",
					}})),
			},
			steps: []step{{0, red}, {0.2, orange}, {0.5, green}},
		},
		membersThatDiffer(), lost,
	}
}

// pointsOfWorkloads is how many workloads have a point.
const pointsOfWorkloads = 50

// membersThatDiffer are lines of the members that are farthest from the median of their workload.
func membersThatDiffer() Panel {
	of := `{<of workloads>, node=~"$node"}`
	p := line("Members that leave the pack", "How far members of workloads are from the median of their workload, in "+
		"deviations, over ten minutes: the ten members that differ most. 3 is far, and 10 stands for all more. A "+
		"workload is compared if it has three members of one driver.", "none",
		"no workload has three members of one driver", "{{pod}} {{device}} {{node}}",
		`clamp_max(max by (<member>) (`+rules.DeviationsRecord+of+`), 10) and on (<member>) topk(10, max by (<member>) (`+
			rules.DeviationsRecord+of+` @ end()))`)
	p.Width, p.Height, p.below, p.steps, p.MayBeEmpty = 8, 9, true, []step{{0, blue}, {3, red}}, true
	return p
}

// namespaces is the showback: devices held and used by each namespace, and their cost.
func namespaces() Board {
	return Board{
		UID: "dra-namespaces", Title: "DRA / Namespaces (showback)", search: "namespace", recorded: true,
		uses: []string{"cluster", "namespace", "driver", "model"}, Description: "Device-hours, active share, energy and " +
			"cost by namespace in the selected time range. Shared devices are divided among their holders, and a partition " +
			"counts by its part of its parent, so that no device-hour is counted twice. Prices are part of the rules.",
		since:  "now-30d",
		Rows:   []Row{{"Total", showbackTotal()}, {"By namespace", showbackTables()}, {pricesRow, showbackDetails()}},
		folded: []string{pricesRow},
	}
}

// sumOf is the sum of a recorded increase over the selected time range, by the labels if there are
// any.
func sumOf(name, by string) string { return sumOver(name, by, "$__range]") }

// sumOver is the same over another span, with what follows it.
func sumOver(name, by, span string) string {
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	return sum + ` (max by (<namespace>, driver, model) (sum_over_time(namespace:dra_` + name +
		`:increase$hours{<of namespaces>}[` + span + `)))`
}

func showbackTotal() []Panel {
	return append([]Panel{
		fact(6, 4, "Total device-hours", "Device-hours held by claims and pods in the selected time range.", "h",
			nothingHeld, sumOf("allocated_share_seconds", "")+" / 3600", step{0, blue}),
		fact(6, 4, "Active share of measured time", "Active time of all devices divided by the time held. Devices "+
			"without utilization never count as active: select a driver to exclude them.", "percentunit", "not measured",
			sumOf("active_seconds", "")+" / "+sumOf("allocated_share_seconds", ""), step{0, red}, step{0.2, orange},
			step{0.5, green}).precise(1),
		fact(6, 4, "Total energy", "Energy used by devices for their holders in the selected time range.", "kwatth",
			"not measured", sumOf("energy_joules", "")+" / 3.6e6", step{0, blue}).precise(3),
		fact(6, 4, "Total cost", "Price of the device-hours, in the currency of the rules' prices. Hours without a "+
			"price cost nothing.", "currency:¤", "nothing held has a price", sumOf("cost", ""), step{0, blue}),
	}, showbackTime()...)
}

// pricesRow has what explains the sums.
const pricesRow = "Workloads, and what has no price"

func showbackTables() []Panel {
	const by = "<namespace>, driver, model"
	return []Panel{
		ranked("Device-hours", 0, "Namespaces by driver and model", "Devices held and used by namespace, driver and "+
			"model, which determines the price. Click a column title to sort, a namespace to select it.", nothingHeld, 24, 9,
			columnOf("Device-hours", "h", sumOf("allocated_share_seconds", by)+" / 3600"),
			columnOf("Active", "percentunit", sumOf("active_seconds", by)+" / "+sumOf("allocated_share_seconds", by)),
			columnOf("Idle device-hours", "h", sumOf("idle_share_seconds", by)+" / 3600"),
			columnOf("Energy", "kwatth", sumOf("energy_joules", by)+" / 3.6e6"),
			columnOf("Network traffic", "bytes", sumOf("network_bytes", by)),
			columnOf("Cost", "currency:¤", sumOf("cost", by)), columnOf("Wasted", "currency:¤", sumOf("idle_cost", by))),
	}
}

func showbackDetails() []Panel {
	return []Panel{
		topOfWorkloads("Top workloads", "The workloads with the most device-hours in the day before the end of the "+
			"selected time range. Click a workload for its dashboard.", "allocated_share_seconds", "Device-hours", 12),
		ranked("Device-hours", 0, "Without a price", "Device-hours that cost nothing here, because the rules have no "+
			"price for the model, or because it is unknown which part of its parent a partition is.",
			"everything has a price", 12, 6,
			columnOf("Device-hours", "h", sumOf("unpriced_share_seconds", "<namespace>, driver, model")+" / 3600 > 0")),
	}
}

// namespaceBars are bars of an increase by namespace, of those with the most of another increase in
// the last day: not in months, which takes long.
func namespaceBars(title, description, unit, noData, record, scaled string, most int, of, above string) Panel {
	by := func(record, span string) string { return sumOver(record, "<namespace>", span) }
	p := line(title, description, unit, noData, "{{namespace}} {{cluster}}", fmt.Sprintf(
		`%s%s and on (<namespace>) topk(%d, %s%s)`, by(record, "$__interval]"), scaled, most, by(of, "1d] @ end()"), above))
	p.bars = true
	return p
}

// showbackTime are bars of what each namespace held, used and cost: in a month, of each day.
func showbackTime() []Panel {
	bars := func(title, description, unit, noData, record, scaled string) Panel {
		return namespaceBars(title, description+" Over a month, each bar is a day; over an hour, four minutes. The 20 "+
			"namespaces with the most device-hours in the last day.", unit, noData, record, scaled, 20,
			"allocated_share_seconds", "")
	}
	return []Panel{
		bars("Device-hours held", "Device-hours that the namespace held.", "h", nothingHeld, "allocated_share_seconds",
			" / 3600"),
		bars("Device-hours of activity", "Device-hours in which the devices were active for the namespace.", "h",
			"not measured", "active_seconds", " / 3600"),
		bars("Cost by namespace", "Price of the device-hours.", "currency:¤", "nothing held has a price", "cost", ""),
		bars("Energy by namespace", "Energy that the devices used for the namespace.", "kwatth", "not measured",
			"energy_joules", " / 3.6e6"),
	}
}
