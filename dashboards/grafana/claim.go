package grafana

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/dra-exporter/dra-exporter/driver"
)

// claim is the dashboard of one claim or a few.
func claim() Board {
	return Board{
		UID: "dra-claim", Title: "DRA / Claim", search: "claim",
		uses: []string{"cluster", "node", "namespace", "claim", "pod", "driver"}, one: []string{"namespace", "claim"},
		lists: []list{claimNodes()}, Description: "Activity of a claim's devices, the other claims that share them, and " +
			"the pods that used them over time.",
		Rows: []Row{
			{"Summary", append(claimSummary(), claimPictures()...)},
			{"Devices", []Panel{claimDevices(), claimFit()}},
			{"Activity", claimActivity()},
			{"Distribution over time", claimDistributions()},
			{"Errors and incidents", claimIncidents()},
			{"Sharing and pods", claimSharing()},
			{"Status", claimStatus()},
		}, folded: []string{"Activity", "Distribution over time", "Errors and incidents", "Sharing and pods", "Status"},
	}
}

// inLine makes graphs as wide as the dashboard, one below the other, so that their times are in
// line.
func inLine(panels ...Panel) []Panel {
	for i := range panels {
		panels[i].Width, panels[i].Height, panels[i].aligned = columns, 5, true
	}
	return panels
}

// claimNodes is the list of the nodes of the claim: the holders of all devices of a fleet take long
// to read.
func claimNodes() list {
	return list{
		name: "held_on", label: "Nodes of the claim", of: "node",
		expr: `group by (<node>) (last_over_time(dra_claim_device_info{<of claims>}[$__range]))`,
	}
}

// claimPictures are what the claim's devices did, above who held them.
func claimPictures() []Panel {
	return append(inLine(line("Utilization by device", "The claim's share of each device's utilization.", "percentunit",
		"not measured; for network devices see Traffic by link", "{{device}} {{node}}",
		`max by (<device>) (dra_claim_utilization_ratio{<of claims>})`).ofOne(),
		perDevice("Power by device", "The claim's share of each device's power.", "watt", "not measured",
			`dra_claim_power_watts{<of claims>}`),
		perDevice("Memory used", "The claim's share of each device's memory in use.", "bytes", "not measured",
			`dra_claim_memory_used_bytes{<of claims>}`)),
		heldOverTime("<its nodes>",
			` and on (<device>) group by (<device>) (last_over_time(dra_claim_device_info{<of claims>}[$__range] @ end()))`))
}

func claimSummary() []Panel {
	hours := fact(4, 4, "Device-hours",
		"Device-hours held by the claim in the selected time range. Shared devices are divided among their claims.", "h",
		"not held",
		`sum(max by (<claim device>) (increase(dra_claim_allocated_share_seconds_total{<of claims>}[$__range]))) / 3600`,
		step{0, blue}).total()
	energy := fact(4, 4, "Energy", "Energy used by the claim's devices for it in the selected time range.", "kwatth",
		"not measured",
		`sum(max by (<claim device>) (increase(dra_claim_energy_joules_total{<of claims>}[$__range]))) / 3.6e6`,
		step{0, blue}).total().precise(3)
	return []Panel{
		fact(4, 4, "Devices held", "Devices that the claim holds now, without admin access.", "none", "none held",
			`sum(max by (<claim driver>) (claim:dra_devices:count{<of claims>, resourceclaim_name!=""}))`, step{0, blue}),
		fact(4, 4, "Devices idle", "The claim's devices that were idle during the idle window.", "none", "not measured",
			`sum(max by (<claim driver>) (claim:dra_idle_devices:count{<of claims>, resourceclaim_name!=""}))`,
			step{0, green}, step{1, orange}),
		fact(4, 4, "Last active", "When one of the devices was last active. If none was, when the exporter first "+
			"saw the claim.", "dateTimeFromNow", "not measured",
			`max(dra_claim_last_active_timestamp_seconds{<of claims>}) * 1000`, step{0, blue}).total(),
		fact(4, 4, "Allocated", "When the claim was allocated.", "dateTimeFromNow",
			"unknown without the API or an inventory file",
			`max(dra_claim_allocated_timestamp_seconds{<of claims of all drivers>}) * 1000`, step{0, blue}),
		hours,
		energy,
	}
}

func claimDevices() Panel {
	return tableOf("Devices of the claim", "Devices that the claim holds now, how they are divided among claims, and "+
		"how active each is. State: prepared, or allocated while the driver has yet to prepare it.",
		"the claim holds nothing now", 24, 7,
		labelsOf(`max by (<claim device>, request, share_id, device_class, admin_access, attribution, state) `+
			`(dra_claim_device_info{<of claims>})`),
		columnOf("Active", "percentunit",
			`max by (<claim device>) (rate(dra_claim_active_seconds_total{<of claims>}[$__rate_interval]))`),
		columnOf("Memory used", "bytes", `max by (<claim device>) (dra_claim_memory_used_bytes{<of claims>})`),
		columnOf("Peak memory", "bytes", `max by (<claim device>) (dra_claim_memory_used_peak_bytes{<of claims>})`),
		columnOf("Peak power", "watt", `max by (<claim device>) (dra_claim_power_peak_watts{<of claims>})`),
		columnOf("Last error", "dateTimeFromNow",
			`max by (<claim device>) (dra_claim_last_error_timestamp_seconds{<of claims>}) * 1000`))
}

func claimStalled() Panel {
	return timeline("Stalled", "When the claim kept a device busy without progress, as when a collective operation "+
		"hangs.", "it was not, or too little is measured to know", 6, "stalled", "{{device}} {{node}}",
		`max by (<claim device>) (dra_claim_stalled{<of claims>}) == 1`)
}

// claimHits are the tables of what hit the claim and its pods.
func claimHits() []Panel {
	return []Panel{
		ranked("Times", 50, "Errors that hit the claim", "Errors of the claim's devices in the selected time range "+
			"while it held them, and when the last one of any kind was.", "no error hit it", 12, 6,
			columnOf("Times", "none",
				`topk(50, max by (<claim device>, kind, code) (increase(dra_claim_errors_total{<of claims>}[$__range])) > 0)`),
			columnOf("Last one", "dateTimeFromNow",
				`max by (<claim device>) (dra_claim_last_error_timestamp_seconds{<of claims>}) * 1000`)).optional(),
		ranked("Times", 50, "Pods that were hit", "The same for each pod. An error that names a process hits only the "+
			"pod of that process. Click a pod to see it alone.", "none", 12, 6,
			columnOf("Times", "none", `topk(50, max by (<pod device>, kind, code) `+
				`(increase(dra_pod_errors_total{<of pods>}[$__range])) > 0 and on (<pod device>) `+
				`dra_pod_claim_info{<of claims>})`)).optional(),
	}
}

func claimFit() Panel {
	return tableOf("Smallest fit", "The smallest alternative on the node into which the claim would have fitted since it "+
		"began, and what the claim needs of what it holds, by its peak memory and the 99.9th percentile of its "+
		"activity, each with a margin.", "measured for less than an hour, or its use is unknown", 24, 6,
		columnOf("Memory needed", "percentunit",
			`max by (<claim device>) (dra_claim_fit_ratio{<of claims>, resource="memory"})`),
		columnOf("Activity needed", "percentunit",
			`max by (<claim device>) (dra_claim_fit_ratio{<of claims>, resource="activity"})`),
		columnOf("Unused", "percentunit",
			`max by (<claim device>, alternative) (dra_claim_fit_unused_ratio{<of claims>})`)).optional()
}

func claimActivity() []Panel {
	// Of devices that the claim has to itself, the claim has all.
	const alone = ` and on (<device>) ` +
		`dra_claim_device_info{<of claims>, attribution="exclusive", admin_access="false"}`
	return []Panel{
		line("Active time",
			"Share of the time in which the claim kept each device busy, from activity counters. It includes activity "+
				"between two samples.",
			"percentunit", "not measured", "{{device}} {{node}}",
			`clamp_max(sum by (<device>) (max by (<claim device>) (`+
				`rate(dra_claim_active_seconds_total{<of claims>}[$__rate_interval])))
			  / sum by (<device>) (max by (<claim device>) (`+
				`rate(dra_claim_allocated_seconds_total{<of claims>}[$__rate_interval]) > 0)),
			  1)`).ofOne(),
		line("Engines of the claim", "Share of the time in which each engine was busy, of devices that the "+
			"claim has to itself.", "percentunit", "no source reports engines, or the devices are shared",
			"{{engine}} {{device}} {{node}}", `max by (<device>, engine) (dra_device_engine_utilization_ratio{<its nodes>, `+
				`engine=~"`+strings.Join(driver.Standard().Spec(driver.EngineUtilization).SoleLabels, "|")+`"}`+alone+`)`).ofOne(),
		line("FLOP utilization", "Share of the highest rate of each device's tensor cores: the share of the "+
			"time in which they were busy, times the clock divided by its highest.", "percentunit", "no source reports "+
			"tensor cores and clocks, or the devices are shared", "{{device}} {{node}}",
			`max by (<device>) (device:dra_flop_utilization:ratio{<its nodes>}`+alone+`)`).ofOne(),
		line("Traffic by link", "The claim's share of the traffic on its devices' links.", "binBps", "not measured",
			"{{link}} {{direction}} {{device}} {{node}}",
			`sum by (<device>, link, direction) (
			  max by (<claim device>, link, direction) (rate(dra_claim_io_bytes_total{<of claims>}[$__rate_interval])))`),
	}
}

func claimIncidents() []Panel {
	return append([]Panel{
		ranked("Began", 20, "Open incidents", "Open incidents that hit the claim, and when each began. The page of the "+
			"node's exporter has the course of each, and what was recorded.", "none", 24, 4,
			columnOf("Began", "dateTimeFromNow",
				`topk(20, max by (<device>, kind) (dra_claim_incident_onset_timestamp_seconds{<of claims>})) * 1000`)).optional(),
		line("Errors of its devices", "Errors of each device while the claim held it, counted in full for each holder: "+
			"do not sum over claims.", "none", "none, or not measured", "{{kind}} {{code}} {{device}} {{node}}",
			`round(max by (<device>, kind, code) (increase(dra_claim_errors_total{<of claims>}[$__rate_interval])))`),
		line("Throttled", "Share of the time in which each device ran below its clocks while the claim held "+
			"it.", "percentunit", "none, or not measured", "{{reason}} {{device}} {{node}}",
			`max by (<device>, reason) (rate(dra_device_throttled_seconds_total{<its nodes>}[$__rate_interval]) `+
				`and on (<device>) dra_claim_device_info{<of claims>, admin_access="false"})`).ofOne(),
		claimStalled(),
	}, claimHits()...)
}

func claimSharing() []Panel {
	const same = `on (<device>) group by (<device>) (dra_claim_device_info{<of claims>, admin_access="false"})`
	shared := line("Utilization of shared devices by claim", "Utilization of this claim's devices by each claim that "+
		"shares them. The sum is the device's utilization.", "percentunit", "not measured",
		"{{namespace}}/{{resourceclaim_name}} {{device}} {{node}}",
		`max by (<claim device>) (dra_claim_utilization_ratio{<its nodes>} and `+same+`)`)
	shared.stacked = true
	return []Panel{
		tableOf("Claims on the same devices", "All claims on the devices that this claim holds, and how the device is "+
			"divided among them: exclusive, cpus, process, capacity or equal. Nothing is attributed to admin access.",
			"the claim holds nothing now", 12, 8,
			labelsOf(`max by (<claim device>, share_id, admin_access, attribution) (dra_claim_device_info{<its nodes>} `+
				`and `+same+`)`),
			columnOf("Consumed", "short",
				`max by (<claim device>, share_id) (dra_claim_consumed_capacity{<its nodes>} and `+same+`)`)),
		shared,
		tableOf("Pods of the claim", "Pods that use the claim's devices now, and how much of each. Click a pod to see "+
			"it alone.", "no pod uses it", 24, 6,
			labelsOf(`max by (<pod device>, container) (dra_pod_claim_info{<of claims>, pod=~"$pod"})`),
			columnOf("Utilization", "percentunit", `max by (<pod device>) (dra_pod_utilization_ratio{<of pods>} and on `+
				`(<pod device>) dra_pod_claim_info{<of claims>})`),
			columnOf("Memory used", "bytes", `max by (<pod device>) (dra_pod_memory_used_bytes{<of pods>} and on `+
				`(<pod device>) dra_pod_claim_info{<of claims>})`)),
		line("Utilization by pod", "Utilization by each pod that uses devices of the claim.", "percentunit",
			"not measured", "{{namespace}}/{{pod}} {{device}} {{node}}",
			`max by (<pod device>) (
				dra_pod_utilization_ratio{<of pods>}
				and on (<pod device>) dra_pod_claim_info{<of claims>})`),
	}
}

func claimStatus() []Panel {
	return []Panel{
		tableOf("Conditions", "Conditions of the claim's devices, as their drivers report them in the claim's status.",
			"no driver reports conditions", 12, 6,
			labelsOf(`max by (<claim device>, type, status) (dra_claim_device_condition{<of claims>} == 1)`)).optional(),
		tableOf("Network data", "Interface, IP addresses and hardware address of the claim's network devices, as their "+
			"drivers report them.", "no driver reports network data", 12, 6,
			labelsOf(`max by (<claim device>, interface, ip, hardware_address) (dra_claim_network_info{<of claims>})`),
		).optional(),
	}
}

// distributed is a quantity of claims with a distribution over time.
type distributed struct {
	name, metric string
	unit         string
	axisMin      float32 // of the heat map
	zero         string  // what the heat map's description says about zero
}

func distributions() []distributed {
	return []distributed{
		{
			// The zero bucket, up to 1/1024, is the lowest row: the axis is logarithmic.
			"Utilization", "dra_claim_utilization_distribution_ratio", "percentunit", 1.0 / 2048,
			"Below 0.1 % is the lowest row; two devices that are fully busy are 200 %.",
		},
		{
			"Memory", "dra_claim_memory_used_distribution_bytes", "bytes", 0,
			"The axis is logarithmic: none in use is not shown.",
		},
		{
			"Power", "dra_claim_power_distribution_watts", "watt", 0,
			"The axis is logarithmic: 0 W is not shown.",
		},
	}
}

// quantiles are those that are shown, by their names.
func quantiles() []struct{ name, value string } {
	return []struct{ name, value string }{{"p50", "0.5"}, {"p95", "0.95"}, {"p99", "0.99"}}
}

const noDistribution = "not measured, or Prometheus does not scrape native histograms"

// claimDistributions are heat maps and a table of the claims' distributions. Copies of a series
// from two targets count once, by their average, which equals each of them, or by the maximum of
// their quantiles. PromQL has no max of histograms.
func claimDistributions() []Panel {
	var maps []Panel
	table := Panel{
		Title: "Quantiles in the selected time", Description: "Values that the claim's part did not exceed in 50 %, 95 " +
			"% and 99 % of the time, summed over its devices of the driver. Every reading counts, not only those at scrapes.",
		Kind: Table, NoData: noDistribution, Width: 24, Height: 6,
	}
	for _, d := range distributions() {
		maps = append(maps, Panel{
			Title: d.name + " over time", Description: "The share of the time that the claim's part had each value, from " +
				"every reading. " + d.zero + " Several claims count equally.", Kind: Heatmap, Unit: "percentunit", axis: d.unit,
			axisMin: d.axisMin, NoData: noDistribution, Width: 8, Height: 8,
			Targets: []Target{{Expr: `avg(avg by (<claim driver>) (rate(` + d.metric + `{<of claims>}[$__rate_interval])))`}},
		})
		for _, q := range quantiles() {
			// Without observations a quantile is not a number.
			table.Targets = append(table.Targets,
				columnOf(d.name+" "+q.name, d.unit, fmt.Sprintf(`max by (<claim driver>) (histogram_quantile(%s, `+
					`increase(%s{<of claims>}[$__range])) >= 0)`, q.value, d.metric)))
		}
	}
	return append(maps, table)
}

// eachHolder has a series with the label holder for each claim that holds a device, and for each
// pod that holds one without a claim.
func eachHolder(of string) string {
	return `group by (<device>, holder) (
		  label_join(
		    dra_claim_device_info{` + of + `, admin_access="false"}, "holder", "/", "namespace", "resourceclaim_name"
		  )
		  or label_join(pod_device:dra_unclaimed:info{` + of + `}, "holder", "/", "namespace", "pod")
		)`
}

// holders has one series for each device that is held: its holder, or how many share it.
func holders(of string) string {
	shared := eachHolder(of + `, attribution!="exclusive"`)
	return eachHolder(of+`, attribution="exclusive"`) + `
		or on (<device>) label_replace(
		  count_values by (<device>) ("holder", count by (<device>) (` + shared + `) > 1),
		  "holder", "$1 holders", "holder", "(.+)"
		)
		or on (<device>) ` + shared
}

// heldOverTime is a timeline of who held each device, in line with the graphs above it. A row has
// the name of the device, or the beginning of its UUID, and of its node if there are several.
func heldOverTime(of, only string) Panel {
	held := `((` + holders(of) + `
		or on (<device>) label_replace(
		  group by (<device>) (dra_device_allocations{` + of + `}) unless on (<device>) ` + eachHolder(of) + `,
		  "holder", "free", "node", ".*"
		))` + only + `)`
	oneNode := `on () count(group by (<node>) (` + held + `)) == 1`
	return Panel{
		Title: "Who held the devices", Description: "The claim that held each device, without admin access, or the pod " +
			"that a device plugin gave it to, or how many shared it. Nothing is shown while the device was unknown.",
		Kind: Timeline, NoData: "no device was known", Width: 24, Height: 7, aligned: true,
		Targets: []Target{{
			Expr: `label_replace(
				label_join(` + held + ` and ` + oneNode + `, "held", " ", "device")
				or label_join(` + held + ` unless ` + oneNode + `, "held", " ", "node", "device"),
				"held", "$1", "held", "(.*(?:GPU|MIG)-[0-9a-f]{8})-.*")`,
			Legend: "{{holder}} {{node}}",
		}},
		reshape: []dashboard.DataTransformerConfig{
			transformed("labelsToFields", map[string]any{"mode": "columns", "keepLabels": []string{"held", "holder"}}),
			transformed("merge", map[string]any{}), sorted("Time", false),
			transformed("groupingToMatrix", map[string]any{
				"columnField": "held", "rowField": "Time", "valueField": "holder", "emptyValue": "null",
			}),
		},
		fields: []dashboard.DashboardFieldConfigSourceOverrides{overrideAll(property("mappings", holderColors()))},
	}
}

// holderColors give holders colors by the first letter of the claim and by whether its last digit
// is odd, so that those which follow each other on a device mostly differ.
func holderColors() []map[string]any {
	free := map[string]any{"color": "transparent", "index": 0}
	out := []map[string]any{{"type": "value", "options": map[string]any{"free": free}}}
	color := func(pattern, color string) {
		out = append(out, map[string]any{"type": "regex", "options": map[string]any{
			"pattern": "/" + pattern + "/", "result": map[string]any{"color": color, "index": len(out)},
		}})
	}
	color(`^[0-9]+ holders$`, grey)
	for _, of := range [][3]string{
		{"a-h", blue, "dark-blue"}, {"i-p", green, "dark-green"}, {"q-z0-9", purple, "dark-purple"},
	} {
		color(`^[^/]*/[`+of[0]+`].*[13579][^0-9]*$`, of[2])
		color(`^[^/]*/[`+of[0]+`]`, of[1])
	}
	return out
}
