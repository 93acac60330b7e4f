package grafana

// nodes is about the hardware, whoever holds it.
func nodes() Board {
	return Board{
		UID: "dra-nodes", Title: "DRA / Nodes and devices", uses: []string{"cluster", "node", "driver", "model"},
		Description: "Health, temperature, clocks, throttling, errors and links of the devices, and who holds them.",
		Rows: []Row{
			{"Devices", nodeDevices()},
			{"Use of devices", nodeUse()},
			{"Heat, power and clocks", nodeHeat()},
			{"Errors and links", nodeErrors()},
		},
	}
}

func nodeDevices() []Panel {
	return []Panel{
		{
			Title: "Device list", Description: "Every device of the selection: what it is, in which state, who drives it.", Kind: Table, NoData: "no device", Width: 24, Height: 9,
			Targets: []Target{
				{Expr: `max by (<device>, vendor, model, uuid, pci_bus_id, parent, numa_node, driver_version) (dra_device_info{<d>, model=~"$model"})`},
				{Expr: `max by (<device>, state) (device:dra_state:info{<d>})`},
				{Expr: `max by (<device>) (dra_device_allocations{<d>})`, Column: "Claims", Unit: "none"},
				{Expr: `max by (<device>) (dra_device_last_error_timestamp_seconds{<d>}) * 1000`, Column: "Last error", Unit: "dateTimeFromNow"},
			},
		},
		{
			Title: "Health over time", Description: "What the device's driver says of its health.", Kind: Timeline, NoData: "no driver tells its devices' health", Width: 12, Height: 8,
			states:  []state{{"0", "healthy or unknown", green}, {"1", "unhealthy", red}},
			Targets: []Target{{Expr: `max by (node, device) (dra_device_health{<d>, status="unhealthy"})`, Legend: "{{device}} {{node}}"}},
		},
		{
			Title: "Held over time", Description: "Whether the device was held, by how many claims, without admin access.", Kind: Timeline, NoData: "no device", Width: 12, Height: 8,
			states:  []state{{"0", "free", grey}, {"1", "one claim", blue}, {"2", "two claims", purple}, {"3", "three claims", orange}, {"4", "four claims", red}},
			Targets: []Target{{Expr: `max by (node, device) (dra_device_allocations{<d>})`, Legend: "{{device}} {{node}}"}},
		},
		{
			Title: "Taints", Description: "Taints of the devices, which keep claims away.", Kind: Table, NoData: "no device is tainted", Width: 12, Height: 6,
			Targets: []Target{{Expr: `max by (node, driver, device, key, value, effect) (dra_device_tainted{<d>})`}},
		},
		{
			Title: "Where the values come from", Description: "Which source each quantity comes from; an integral of a gauge says that it is one.", Kind: Table, NoData: "nothing is measured", Width: 12, Height: 6,
			Targets: []Target{{Expr: `count by (driver, quantity, source) (dra_device_quantity_source_info{<d>})`, Column: "Devices", Unit: "none"}},
		},
	}
}

func nodeUse() []Panel {
	utilization := line("Device utilization", "Share of the time in which any engine of the device was busy.", "percentunit", "not measured", "{{device}} {{node}}",
		`max by (node, device) (dra_device_utilization_ratio{<d>})`)
	engines := line("Engine utilization", "Share of the time in which one engine was busy.", "percentunit", "no source tells engines", "{{device}} {{engine}}",
		`max by (device, engine) (dra_device_engine_utilization_ratio{<d>})`)
	occupancy := line("Occupancy", "Resident warps or waves as a share of what the device can hold: a busy device with a low one has kernels too small for it.", "percentunit", "no source tells it", "{{device}} {{node}}",
		`max by (node, device) (dra_device_occupancy_ratio{<d>})`)
	memory := line("Device memory in use", "Memory in use as a share of what there is.", "percentunit", "not measured", "{{device}} {{node}}",
		`max by (node, device) (dra_device_memory_used_bytes{<d>} / dra_device_memory_capacity_bytes{<d>})`)
	memory.steps = []step{{0, blue}, {0.95, red}}
	for _, p := range []*Panel{&utilization, &engines, &occupancy, &memory} {
		p.max = 1
	}
	return []Panel{
		utilization, engines, memory, occupancy,
		orEmpty("where all use is by holders", line("Use that nobody is charged for", "Utilization of devices that no claim holds, or that no holder's process explains.", "percentunit", "not measured", "{{device}} {{node}}",
			`max by (node, device) (dra_device_unattributed_utilization_ratio{<d>}) > 0.01`)),
		{
			Title: "Claims on the devices", Description: "Who holds the devices of this selection now.", Kind: Table, NoData: "nobody holds a device", Width: 12, Height: 8,
			Targets: []Target{{Expr: `max by (node, device, namespace, resourceclaim_name, attribution) (dra_claim_device_info{<d>, admin_access="false"})`}},
		},
	}
}

// orEmpty lets a panel be empty where all is well.
func orEmpty(why string, p Panel) Panel {
	p.MayBeEmpty = why
	return p
}

func nodeHeat() []Panel {
	heat := line("Temperature", "Temperature of each sensor.", "celsius", "no source tells it", "{{device}} {{sensor}}", `max by (device, sensor) (dra_device_temperature_celsius{<d>})`)
	heat.steps = []step{{0, blue}, {80, orange}, {90, red}}
	throttled := line("Throttled", "Share of the time in which the device ran below its clocks, by reason.", "percentunit", "no source tells it", "{{device}} {{reason}}",
		`max by (device, reason) (rate(dra_device_throttled_seconds_total{<d>}[$__rate_interval]))`)
	throttled.steps = []step{{0, blue}, {0.2, orange}}
	return []Panel{
		heat, throttled,
		line("Device power", "Power that each device draws.", "watt", "not measured", "{{device}} {{node}}", `max by (node, device) (dra_device_power_watts{<d>})`),
		line("Clocks", "Frequency of each clock domain.", "hertz", "no source tells it", "{{device}} {{domain}}", `max by (device, domain) (dra_device_clock_hertz{<d>})`),
	}
}

func nodeErrors() []Panel {
	errors := line("Errors", "Errors per second, by kind and code. Corrected ones are normal at low rates.", "cps", "no source tells errors", "{{device}} {{kind}} {{code}}",
		`sum by (device, kind, code) (rate(dra_device_errors_total{<d>}[$__rate_interval]))`)
	return []Panel{
		errors,
		{
			Title: "Errors in the time shown", Description: "How many errors came, by kind and code: the runbook's DRADeviceErrors says what to do about each.", Kind: Table,
			NoData: "no source tells errors", Width: 12, Height: 8, sort: "Errors",
			Targets: []Target{
				{Expr: `sum by (node, device, kind, code) (increase(dra_device_errors_total{<d>}[$__range]))`, Column: "Errors", Unit: "none"},
				{Expr: `max by (node, device) (dra_device_last_error_timestamp_seconds{<d>}) * 1000`, Column: "Last one", Unit: "dateTimeFromNow"},
			},
		},
		line("Link traffic", "Bytes per second that crossed each link.", "binBps", "not measured", "{{device}} {{link}} {{direction}}",
			`sum by (device, link, direction) (rate(dra_device_io_bytes_total{<d>}[$__rate_interval]))`),
		line("Telemetry", "1 while the device can be read, 0 while it can't and should.", "none", "no device has telemetry", "{{device}} {{node}}", `max by (node, device) (dra_device_up{<d>})`),
	}
}
