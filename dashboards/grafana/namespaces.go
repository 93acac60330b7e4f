package grafana

// namespaces is the showback: devices held and used by each namespace, and their cost.
func namespaces() Board {
	return Board{
		UID: "dra-namespaces", Title: "DRA / Namespaces (showback)",
		search: "namespace", recorded: true,
		uses: []string{"cluster", "namespace", "driver", "model"},
		Description: "Device-hours, active share, energy and cost by namespace in the selected time range. Shared devices " +
			"are divided among their holders, and a partition counts by its part of its parent, so that no device-hour is " +
			"counted " +
			"twice. Prices are part of the rules.",
		since:  "now-30d",
		Rows:   []Row{{"Total", showbackTotal()}, {"By namespace", showbackTables()}, {pricesRow, showbackDetails()}},
		folded: []string{pricesRow},
	}
}

// sumOf is the sum of a recorded increase over the selected time range, by the labels if there are
// any.
func sumOf(name, by string) string {
	sum := "sum"
	if by != "" {
		sum += " by (" + by + ")"
	}
	return sum + ` (max by (<namespace>, driver, model) (` +
		`sum_over_time(namespace:dra_` + name + `:increase$hours{<of namespaces>}[$__range])))`
}

func showbackTotal() []Panel {
	of := func(title, description, unit, expr string, decimals int, steps ...step) Panel {
		return Panel{
			Title: title, Description: description, Kind: Stat, Unit: unit, NoData: "nothing was held",
			Targets: []Target{{Expr: expr}},
			Width:   6, Height: 4, steps: steps, decimals: decimals,
		}
	}
	return append([]Panel{
		of("Total device-hours", "Device-hours held by claims and pods in the selected time range.", "h",
			sumOf("allocated_share_seconds", "")+" / 3600", 2, step{0, blue}),
		of("Active share of measured time",
			"Active time of all devices divided by the time held. Devices without utilization never count as active: select a "+
				"driver to exclude them.",
			"percentunit",
			sumOf("active_seconds", "")+" / "+sumOf("allocated_share_seconds", ""), 1, step{0, red}, step{0.2, orange},
			step{0.5, green}),
		of("Total energy", "Energy used by devices for their holders in the selected time range.", "kwatth",
			sumOf("energy_joules", "")+" / 3.6e6", 3, step{0, blue}),
		of("Total cost", "Price of the device-hours, in the currency of the rules' prices. Hours without a price cost "+
			"nothing.",
			"currency:¤", sumOf("cost", ""), 2, step{0, blue}),
	}, showbackTime()...)
}

// pricesRow has what explains the sums.
const pricesRow = "Workloads, and what has no price"

func showbackTables() []Panel {
	const by = "<namespace>, driver, model"
	return []Panel{{
		Title: "Namespaces by driver and model",
		Description: "Devices held and used by namespace, driver and model, which determines the price. Click a column " +
			"title to sort, a namespace to select it.",
		Kind: Table, NoData: "nothing was held", Width: 24, Height: 9, sort: "Device-hours",
		Targets: []Target{
			{Expr: sumOf("allocated_share_seconds", by) + " / 3600", Column: "Device-hours", Unit: "h"},
			{
				Expr: sumOf("active_seconds", by) + " / " + sumOf("allocated_share_seconds", by), Column: "Active",
				Unit: "percentunit",
			},
			{Expr: sumOf("idle_share_seconds", by) + " / 3600", Column: "Idle device-hours", Unit: "h"},
			{Expr: sumOf("energy_joules", by) + " / 3.6e6", Column: "Energy", Unit: "kwatth"},
			{Expr: sumOf("network_bytes", by), Column: "Network traffic", Unit: "bytes"},
			{Expr: sumOf("cost", by), Column: "Cost", Unit: "currency:¤"},
			{Expr: sumOf("idle_cost", by), Column: "Wasted", Unit: "currency:¤"},
		},
	}}
}

func showbackDetails() []Panel {
	return []Panel{
		topOfWorkloads("Top workloads", "The workloads with the most device-hours in the day before the end of the selected "+
			"time range. Click a workload for its dashboard.",
			"allocated_share_seconds", "Device-hours", 12),
		{
			Title: "Without a price",
			Description: "Device-hours that cost nothing here, because the rules have no price for the model, or because it " +
				"is unknown which part of its parent a partition is.",
			Kind: Table, NoData: "everything has a price", Width: 12, Height: 6, sort: "Device-hours",
			Targets: []Target{{
				Expr: sumOf("unpriced_share_seconds", "<namespace>, driver, model") + " / 3600 > 0", Column: "Device-hours",
				Unit: "h",
			}},
		},
	}
}

// showbackTime are bars of what each namespace held, used and cost: in a month, of each day.
func showbackTime() []Panel {
	// Of thousands, those with the most device-hours in the last day: not in months, which takes long.
	by := func(record, span string) string {
		return `sum by (<namespace>) (max by (<namespace>, driver, model) (sum_over_time(namespace:dra_` + record +
			`:increase$hours{<of namespaces>}[` + span + `)))`
	}
	bars := func(title, description, unit, record, scaled string) Panel {
		p := line(title, description+" Over a month, each bar is a day; over an hour, four minutes. The 20 namespaces with "+
			"the most device-hours in the last day.", unit, "nothing was held", "{{namespace}} {{cluster}}",
			by(record, "$__interval]")+scaled+` and on (<namespace>) topk(20, `+by("allocated_share_seconds", "1d] @ end()")+`)`)
		p.bars = true
		return p
	}
	return []Panel{
		bars("Device-hours held", "Device-hours that the namespace held.", "h", "allocated_share_seconds", " / 3600"),
		bars("Device-hours of activity", "Device-hours in which the devices were active for the namespace.", "h",
			"active_seconds", " / 3600"),
		bars("Cost by namespace", "Price of the device-hours.", "currency:¤", "cost", ""),
		bars("Energy by namespace", "Energy that the devices used for the namespace.", "kwatth", "energy_joules",
			" / 3.6e6"),
	}
}
