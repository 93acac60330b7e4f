package grafana

// claim is all about one claim, or a few.
func claim() Board {
	return Board{
		UID: "dra-claim", Title: "DRA / Claim", uses: []string{"cluster", "node", "namespace", "claim", "driver"},
		Description: "What the devices of a claim do, who shares them, and which pods had them when.",
		Rows: []Row{
			{"Summary", claimSummary()},
			{"Activity", claimActivity()},
			{"Sharing and pods", claimSharing()},
			{"Status", claimStatus()},
		},
	}
}

func fact(title, description, unit, noData, expr string, steps ...step) Panel {
	return Panel{
		Title: title, Description: description, Kind: Stat, Unit: unit, NoData: noData, Targets: []Target{{Expr: expr}},
		Width: 4, Height: 4, steps: steps,
	}
}

func claimSummary() []Panel {
	hours := fact("Device-hours", "Time in which the claim held devices, in the time shown; shared devices are divided.", "h", "not held",
		`sum(increase(dra_claim_allocated_share_seconds_total{<c>}[$__range])) / 3600`, step{0, blue})
	hours.decimals = 2
	energy := fact("Energy", "Energy that the claim's devices used for it, in the time shown.", "kwatth", "not measured",
		`sum(increase(dra_claim_energy_joules_total{<c>}[$__range])) / 3.6e6`, step{0, blue})
	energy.decimals = 3
	return []Panel{
		fact("Devices held", "Devices that the claim holds now, without admin access.", "none", "none held", `sum(claim:dra_devices:count{<c>})`, step{0, blue}),
		fact("Devices idle", "Of these, devices that did nothing for the idle window.", "none", "not measured", `sum(claim:dra_idle_devices:count{<c>})`, step{0, green}, step{1, orange}),
		fact("Last active", "When one of the devices was last seen active; when the exporter first saw the claim, if it never was.", "dateTimeFromNow", "not measured",
			`max(dra_claim_last_active_timestamp_seconds{<c>}) * 1000`, step{0, blue}),
		fact("Allocated", "When the claim was allocated.", "dateTimeFromNow", "not known without the API or an inventory file",
			`max(dra_claim_allocated_timestamp_seconds{<claim of node>}) * 1000`, step{0, blue}),
		hours, energy,
		{
			Title: "Devices of the claim", Description: "What the claim holds now, how it is divided among claims, and how active each device was in the idle window.",
			Kind: Table, NoData: "the claim holds nothing now", Width: 24, Height: 7,
			Targets: []Target{
				{Expr: `max by (<claim device>, request, share_id, device_class, admin_access, attribution) (dra_claim_device_info{<c>})`},
				{Expr: `claim_device:dra_active:ratio{<c>}`, Column: "Active in the window", Unit: "percentunit"},
				{Expr: `max by (<claim device>) (dra_claim_memory_used_bytes{<c>})`, Column: "Memory used", Unit: "bytes"},
			},
		},
	}
}

func line(title, description, unit, noData, legend, expr string) Panel {
	return Panel{
		Title: title, Description: description, Kind: Graph, Unit: unit, NoData: noData, Width: 12, Height: 8,
		Targets: []Target{{Expr: expr, Legend: legend}},
	}
}

func claimActivity() []Panel {
	utilization := line("Utilization by device", "The claim's part of each device's utilization.", "percentunit", "not measured", "{{device}} {{node}}",
		`max by (node, device) (dra_claim_utilization_ratio{<c>})`)
	utilization.max = 1
	energy := line("Active time", "Share of the time in which the claim kept each device busy, of what was counted and not only sampled.", "percentunit", "not measured", "{{device}} {{node}}",
		`sum by (node, device) (rate(dra_claim_active_seconds_total{<c>}[$__rate_interval]))
		  / sum by (node, device) (rate(dra_claim_allocated_seconds_total{<c>}[$__rate_interval]) > 0)`)
	energy.max = 1
	return []Panel{
		utilization, energy,
		line("Memory used", "The claim's part of each device's memory in use.", "bytes", "not measured", "{{device}} {{node}}", `max by (node, device) (dra_claim_memory_used_bytes{<c>})`),
		line("Power by device", "The claim's part of the power that each device draws.", "watt", "not measured", "{{device}} {{node}}", `max by (node, device) (dra_claim_power_watts{<c>})`),
		line("Traffic by link", "The claim's part of what crosses its devices' links.", "binBps", "not measured", "{{link}} {{direction}} {{device}}",
			`sum by (device, link, direction) (rate(dra_claim_io_bytes_total{<c>}[$__rate_interval]))`),
		line("Power from the energy counter", "The rate of the claim's energy: what power was on average, also of pods that live between two scrapes.", "watt", "not measured", "{{device}} {{node}}",
			`sum by (node, device) (rate(dra_claim_energy_joules_total{<c>}[$__rate_interval]))`),
	}
}

func claimSharing() []Panel {
	const same = `on (<device>) group by (<device>) (dra_claim_device_info{<c>, admin_access="false"})`
	shared := line("Who uses the shared devices", "The parts that all claims have of the utilization of this claim's devices; their sum is the device's.", "percentunit", "not measured",
		"{{namespace}}/{{resourceclaim_name}} {{device}}",
		`max by (namespace, resourceclaim_name, device) (dra_claim_utilization_ratio and `+same+`)`)
	shared.stacked = true
	return []Panel{
		{
			Title: "Who holds the same devices", Description: "All claims on the devices that this claim holds, and by what the device is divided among them: exclusive, process, capacity or equal. Admin access owns nothing.",
			Kind: Table, NoData: "the claim holds nothing now", Width: 12, Height: 8,
			Targets: []Target{
				{Expr: `max by (<claim device>, share_id, admin_access, attribution) (dra_claim_device_info and ` + same + `)`},
				{Expr: `max by (<claim device>, share_id) (dra_claim_consumed_capacity and ` + same + `)`, Column: "Consumed capacity", Unit: "short"},
			},
		},
		shared,
		{
			Title: "Pods of the claim over time", Description: "Which pods had devices of the claim, and when.", Kind: Timeline, NoData: "no pod had it", Width: 12, Height: 8,
			states:  []state{{"1", "has devices of the claim", blue}},
			Targets: []Target{{Expr: `group by (namespace, pod) (dra_pod_claim_info{<c>})`, Legend: "{{namespace}}/{{pod}}"}},
		},
		line("Utilization by pod", "The part of each pod that has devices of the claim.", "percentunit", "not measured", "{{namespace}}/{{pod}} {{device}}",
			`max by (namespace, pod, device) (dra_pod_utilization_ratio{cluster=~"$cluster", node=~"$node", namespace=~"$namespace"}
				and on (<pod device>) dra_pod_claim_info{<c>})`),
	}
}

func claimStatus() []Panel {
	return []Panel{
		{
			Title: "Conditions", Description: "Conditions of the claim's devices, as their drivers report them in the claim's status.", Kind: Table, NoData: "no driver reports conditions",
			Width: 12, Height: 6,
			Targets: []Target{{Expr: `max by (namespace, resourceclaim_name, driver, device, type, status) (dra_claim_device_condition{<c>} == 1)`}},
		},
		{
			Title: "Network data", Description: "Interface, addresses and hardware address of the claim's network devices, as their drivers report them.", Kind: Table,
			NoData: "no driver reports network data", Width: 12, Height: 6,
			Targets: []Target{{Expr: `max by (namespace, resourceclaim_name, driver, device, interface, ip, hardware_address) (dra_claim_network_info{<c>})`}},
		},
	}
}
