package grafana

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

// showbackTime are bars of what each namespace held, used and cost: in a month, of each day.
func showbackTime() []Panel {
	// Of thousands, those with the most device-hours in the last day: not in months, which takes long.
	by := func(record, span string) string { return sumOver(record, "<namespace>", span) }
	bars := func(title, description, unit, noData, record, scaled string) Panel {
		p := line(title, description+" Over a month, each bar is a day; over an hour, four minutes. The 20 namespaces "+
			"with the most device-hours in the last day.", unit, noData, "{{namespace}} {{cluster}}",
			by(record, "$__interval]")+scaled+` and on (<namespace>) topk(20, `+by("allocated_share_seconds", "1d] @ end()")+
				`)`)
		p.bars = true
		return p
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
