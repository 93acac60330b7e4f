package grafana

import "strings"

// exporter is the dashboard of the exporter itself: the state of its sources and its cost.
func exporter() Board {
	return Board{
		UID: "dra-exporter", Title: "DRA / Exporter", search: "node", uses: []string{"cluster", "node"},
		Description: "State of the exporters' sources, results of the join, and cost of the exporters.",
		Rows: []Row{
			{"State", exporterState()},
			{"Sources", exporterSources()},
			{claimsRow, exporterLives()},
			{joinsRow, exporterJoins()},
			{"Cost", exporterCost()},
		}, folded: []string{claimsRow, joinsRow},
	}
}

// The rows that are for experts, or empty without failures.
const claimsRow, joinsRow = "Claims until they are active", "Joins and series"

// top restricts lines to the 20 with the highest values of the expression of, at the end of the
// time that is shown. In of, <end> follows each metric: it is evaluated once, and reads few samples
// however long that time is.
func top(by, expr, of string) string {
	return expr + ` and on (` + by + `) topk(20, max by (` + by + `) (` + strings.ReplaceAll(of, "<end>", "@ end()") + `))`
}

func exporterState() []Panel {
	return []Panel{
		fact(6, 4, "Exporters", "Number of exporters that Prometheus can scrape.", "none", "none is scraped",
			`count(group by (<node>) (dra_exporter_node_info{<of nodes>}))`, step{0, blue}),
		fact(6, 4, "Oldest snapshot", "Age of the oldest snapshot of any exporter. A few seconds plus the time since "+
			"the scrape are normal.", "s", "none is scraped",
			`time() - min(dra_exporter_snapshot_timestamp_seconds{<of nodes>})`, step{0, green}, step{60, orange},
			step{300, red}),
		fact(6, 4, "Failing sources", "Sources that fail now, of all exporters.", "none", "none is scraped",
			`count(group by (<node>, source) (node:dra_failing_source:info{<of nodes>})) or 0 * count(group by (<node>) `+
				`(node:dra_exporter_up:max{<of nodes>} == 1))`, step{0, green}, step{1, red}),
		fact(6, 4, "Devices without telemetry", "Devices that are known but cannot be measured, for any reason.", "none",
			"none known", `sum(max by (<node>, driver, reason) (dra_exporter_unresolved_devices{<of nodes>}))`,
			step{0, green}, step{1, yellow}).optional(),
		tableOf("Versions", "Number of exporters by version.", "none is scraped", 12, 7,
			columnOf("Exporters", "none", `count by (version, revision, goversion) (group by (<node>, version, revision, `+
				`goversion) (dra_exporter_build_info{<of nodes>}))`)),
		timeline("Failing sources over time", "When readings failed, of the 20 sources that failed for the longest in the "+
			"selected time range.", "no source is known to have failed", 7, "fails", "{{source}} {{node}}",
			`max by (<node>, source) (node:dra_failing_source:info{<of nodes>}) and on (<node>, source) topk(20, `+
				`max by (<node>, source) (count_over_time(node:dra_failing_source:info{<of nodes>}[$__range] @ end())))`),
	}
}

func exporterSources() []Panel {
	return []Panel{
		line("Mean duration of readings", "Mean over all nodes of how long the readings of each source take. Sources are "+
			"read concurrently: a slow source delays neither the others nor scrapes.", "s", "none is scraped", "{{source}}",
			`avg by (source) (max by (<node>, source) (node:dra_source_duration_seconds:mean{<of nodes>}))`),
		line("Slowest sources", "Mean duration of the readings of a source on a node, of the 20 that took the longest "+
			"at the end.", "s", "none is scraped", "{{source}} {{node}}",
			top("<node>, source", `max by (<node>, source) (node:dra_source_duration_seconds:mean{<of nodes>})`,
				`node:dra_source_duration_seconds:mean{<of nodes>} <end>`)),
		line("Failed readings", "Failed readings per second, by reason.", "cps",
			"none is known to have failed", "{{source}} {{reason}}",
			`sum by (source, reason) (max by (<node>, source, reason) (
					rate(dra_exporter_source_errors_total{<of nodes>}[$__rate_interval])))`).optional(),
		line("Rejected input", "Rows and readings per second that were rejected, by input and reason.", "cps",
			"nothing is known to be rejected", "{{input}} {{reason}}",
			`sum by (input, reason) (max by (<node>, input, reason) (
					rate(dra_exporter_input_rejected_total{<of nodes>}[$__rate_interval])))`).optional(),
	}
}

// exporterLives are the panels of how long claims stay in a state, by driver.
func exporterLives() []Panel {
	quantile := func(q, family string) string {
		return `histogram_quantile(` + q + `, sum by (driver) (avg by (<node>, driver) (` + family + `{<of nodes>}))) ` +
			`or histogram_quantile(` + q + `, sum by (driver, le) (max by (<node>, driver, le) (` + family +
			`_bucket{<of nodes>}))) >= 0`
	}
	mean := func(family string) string {
		of := func(part string) string {
			return `sum by (driver) (max by (<node>, driver) (` + family + part + `{<of nodes>}))`
		}
		return `histogram_avg(sum by (driver) (avg by (<node>, driver) (` + family + `{<of nodes>}))) or ` +
			of("_sum") + ` / ` + of("_count") + ` >= 0`
	}
	const (
		preparation   = "dra_claim_preparation_seconds"
		firstActivity = "dra_claim_first_activity_seconds"
	)
	return []Panel{
		ranked("Wait, mean", 0, "Claims until they are prepared, and until they are active", "How long the claims of a "+
			"driver waited until they were prepared, and from then until their use was first above the idle thresholds: "+
			"how long pods wait for drivers, and how long jobs take until they compute. Of all claims since each "+
			"exporter, or its state folder, was new.", "no claim was prepared", 24, 7,
			columnOf("Wait, mean", "s", mean(preparation)), columnOf("Wait, median", "s", quantile("0.5", preparation)),
			columnOf("Wait, p95", "s", quantile("0.95", preparation)),
			columnOf("Until active, mean", "s", mean(firstActivity)),
			columnOf("Until active, median", "s", quantile("0.5", firstActivity)),
			columnOf("Until active, p95", "s", quantile("0.95", firstActivity))).optional(),
	}
}

func exporterJoins() []Panel {
	return []Panel{
		line("Devices without telemetry by reason", "Devices that are not measured, by reason. The reasons no_source "+
			"and not_instantiated are not failures.", "none", "none", "{{driver}} {{reason}}",
			`sum by (driver, reason) (max by (<node>, driver, reason) (dra_exporter_unresolved_devices{<of nodes>}))`).
			optional(),
		line("Pods whose devices are unknown", "Pods with claims for which it is unknown what they hold, by reason. "+
			"Their devices count as free, and nothing is charged to them. See DRAExporterUnresolvedPods in the runbook.",
			"none", "none", "{{reason}} {{node}}",
			`topk(20, max by (<node>, reason) (dra_exporter_unresolved_pods{<of nodes>}) > 0)`).optional(),
		line("Conflicts of kubelet and API server", "Rows of the kubelet that the API server's claims contradict, by "+
			"kind. They last for seconds after a force delete. See DRAExporterConflicts in the runbook.", "none", "none",
			"{{kind}} {{node}}", `topk(20, max by (<node>, kind) (dra_exporter_conflicts{<of nodes>}) > 0)`).optional(),
		line("Series", "Series of devices, claims and pods, of the 20 exporters with the most at the end.", "none",
			"none is scraped", "{{node}}",
			top("<node>", `max by (<node>) (dra_exporter_series{<of nodes>})`, `dra_exporter_series{<of nodes>} <end>`)),
		line("Series dropped", "Series that are dropped because of --max-series.", "none", "none", "{{node}}",
			`topk(20, max by (<node>) (dra_exporter_series_dropped{<of nodes>}) > 0)`).optional(),
	}
}

func exporterCost() []Panel {
	const (
		own      = `and on (cluster, instance, job) dra_exporter_build_info`
		ownAtEnd = own + ` <end>`
	)
	return []Panel{
		line("CPU", "Processors that the exporters take, of the 20 with the most at the end.", "short",
			"no process metrics", "{{node}}", top("<node>",
				`sum by (<node>) (max by (<node>) (rate(process_cpu_seconds_total{<of nodes>}[$__rate_interval]) `+own+`))`,
				`rate(process_cpu_seconds_total{<of nodes>}[$__rate_interval] <end>) `+ownAtEnd)),
		line("Resident memory", "Resident memory of the 20 exporters with the most at the end.", "bytes",
			"no process metrics", "{{node}}",
			top("<node>", `max by (<node>) (process_resident_memory_bytes{<of nodes>} `+own+`)`,
				`process_resident_memory_bytes{<of nodes>} <end> `+ownAtEnd)),
		line("Duration of scrapes", "Duration of Prometheus' scrapes, of the 20 exporters with the longest at the end.",
			"s", "none is scraped", "{{node}}",
			top("<node>", `max by (<node>) (scrape_duration_seconds{<of nodes>} `+own+`)`,
				`avg_over_time(scrape_duration_seconds{<of nodes>}[$__rate_interval] <end>) `+ownAtEnd)),
	}
}
