package grafana

// nodes is the dashboard of the hardware, independent of claims.
func nodes() Board {
	return Board{
		UID: "dra-nodes", Title: "DRA / Nodes and devices", search: "node",
		uses: []string{"cluster", "node", "driver", "model", "device"}, one: []string{"node"}, Description: "Health, " +
			"temperature, clocks, throttling, errors and links of the devices, and the claims that hold them.",
		Rows: []Row{
			{"Over time", nodePictures()},
			{"Devices", []Panel{deviceList()}},
			{"Condition of devices", nodeCondition()},
			{"Use of devices", nodeUse()},
			{"Heat, power and clocks", nodeHeat()},
			{"Errors and links", nodeErrors()},
		}, folded: []string{"Condition of devices", "Use of devices", "Heat, power and clocks", "Errors and links"},
	}
}

// nodePictures are what the devices did, above who held them.
func nodePictures() []Panel {
	return append(inLine(
		line("Device utilization", "Share of the time in which any engine of the device was busy.",
			"percentunit", "not measured", "{{device}} {{node}}",
			`max by (<device>) (dra_device_utilization_ratio{<of device>})`).upTo(1),
		line("Device power", "Power that each device draws.", "watt", "not measured", "{{device}} {{node}}",
			`max by (<device>) (dra_device_power_watts{<of device>})`),
		line("Device memory in use", "Memory in use as a share of the device's memory.", "percentunit",
			"not measured", "{{device}} {{node}}",
			`max by (<device>) (dra_device_memory_used_bytes{<of device>}) /
			max by (<device>) (dra_device_memory_capacity_bytes{<of device>})`).
			upTo(1).from(step{0, blue}, step{0.95, red}),
	), heldOverTime("<of device>", ""))
}

func deviceList() Panel {
	return ranked(rank, 0, "Device list", "Every selected device with its identity, state and driver version. A "+
		"claim can't request a device that is in no ResourceSlice: that of a device plugin, or a GPU whose MIG devices "+
		"are static. A device that is not node-local is offered to several nodes.", noDevice, 24, 9,
		labelsOf(`max by (<device>, vendor, model, listed, node_local, parent, uuid, pci_bus_id, numa_node, `+
			`driver_version, profile, serial, firmware_version, cuda_version) (dra_device_info{<of device>, model=~"$model"})`),
		columnOf(rank, "none",
			`1 + max by (<device>, state) (device:dra_state:info{<of device>, state="unhealthy"})
						or max by (<device>, state) (device:dra_state:info{<of device>, state="stalled"})
						or 0 * max by (<device>, state) (device:dra_state:info{<of device>})`),
		columnOf("Holders", "none", `max by (<device>) (dra_device_allocations{<of device>})`),
		columnOf("Last error", "dateTimeFromNow",
			`max by (<device>) (dra_device_last_error_timestamp_seconds{<of device>}) * 1000`))
}

// unattributed is what a device does for nobody: the rest after the parts of its claims and of the
// pods that have it without a claim. At the beginning and the end of a hold, rates may differ.
func unattributed(device, claims, pods string) string {
	return `clamp_min(` + device + ` - on (<device>) sum by (<device>) (
		` + claims + ` or ` + pods + `), 0) or ` + device
}

func claimsOnDevices() Panel {
	return tableOf("Holders of the devices", "Claims that hold the selected devices now, and pods that hold them by "+
		"a device plugin.", "no device is held", 12, 8,
		labelsOf(`max by (<device>, namespace, resourceclaim_name, attribution) (dra_claim_device_info{<of device>, `+
			`admin_access="false"}) or max by (<device>, namespace, pod, attribution) (dra_pod_claim_info{<of device>, `+
			`resourceclaim_name=""})`))
}

func whereFrom() Panel {
	return tableOf("Where the values come from", "Source of each quantity that is not measured itself, and in "+
		"brackets how it is computed: as the integral of a gauge, an estimate, or a part of the parent's value. With "+
		"--metrics.quantity-source=on, of all.", "all is measured, or nothing", 12, 8,
		columnOf("Devices", "none", `count by (driver, quantity, source) (group by (<device>, quantity, source) `+
			`(dra_device_quantity_source_info{<of device>}))`)).total()
}

func nodeUse() []Panel {
	return []Panel{
		line("Engine utilization", "Share of the time in which each engine was busy.", "percentunit",
			"no source reports engines", "{{device}} {{node}} {{engine}}",
			`max by (<device>, engine) (dra_device_engine_utilization_ratio{<of device>})`).upTo(1),
		line("Occupancy", "Resident warps or waves as a share of the device's maximum. On a busy device a "+
			"low value means that the kernels are too small for it.", "percentunit", "no source reports it",
			"{{device}} {{node}}", `max by (<device>) (dra_device_occupancy_ratio{<of device>})`).upTo(1),
		line("Reserved device memory", "Memory that is reserved for the driver and the firmware of the device.", "bytes",
			"no source reports it", "{{device}} {{node}}",
			`max by (<device>) (dra_device_memory_reserved_bytes{<of device>})`).optional(),
		line("Devices lost", "Devices whose time was lost while workloads held them, by cause: an open incident, "+
			"waiting for the driver, idleness, throttling. Of several causes the first counts.", "none",
			"nothing is known to be lost", "{{node}} {{cause}}", `sum by (<node>, cause) (max by (<workload>, node, `+
				`cluster_device, cause) (node_workload:dra_lost_share_seconds:rate{<of devices>}))`).optional(),
		line("Unattributed use", "Utilization of devices that nobody holds, or by processes that belong to no holder.",
			"percentunit", "not measured", "{{device}} {{node}}",
			`(`+unattributed(`max by (<device>) (dra_device_utilization_ratio{<of device>})`,
				`max by (<claim device>) (dra_claim_utilization_ratio{<of device>})`,
				`max by (<pod device>) (dra_pod_utilization_ratio{<of device>} `+
					`and on (<pod device>) dra_pod_unclaimed_allocated_seconds_total)`)+`) > 0.01`).optional(),
		claimsOnDevices(),
		whereFrom(),
	}
}

func nodeHeat() []Panel {
	return []Panel{
		line("Temperature", "Temperature of each sensor.", "celsius", "no source reports it",
			"{{device}} {{node}} {{sensor}}", `max by (<device>, sensor) (dra_device_temperature_celsius{<of device>})`).
			from(step{0, blue}, step{80, orange}, step{90, red}),
		line("Throttled", "Share of the time in which the device ran below its maximum clocks, by reason.",
			"percentunit", "no source reports it", "{{device}} {{node}} {{reason}}",
			`max by (<device>, reason) (rate(dra_device_throttled_seconds_total{<of device>}[$__rate_interval]))`).
			from(step{0, blue}, step{0.2, orange}),
		line("Power limits", "The limit in force now, the default of the device, and the lowest and highest that can "+
			"be set.", "watt", "no source reports limits", "{{device}} {{node}} {{limit}}",
			`max by (<device>, limit) (dra_device_power_limit_watts{<of device>})`).optional(),
		line("Temperature margin", "Difference between the temperature at which a device is throttled and its "+
			"temperature.", "celsius", "no source reports it", "{{device}} {{node}}",
			`max by (<device>) (dra_device_temperature_margin_celsius{<of device>})`).optional(),
		line("Fans", "Speed that the fan is set to, as a share of its maximum.", "percentunit", "no device has a fan",
			"{{device}} {{node}}", `max by (<device>) (dra_device_fan_speed_ratio{<of device>})`).optional(),
		line("Clocks", "Frequency of each clock domain.", "hertz", "no source reports it",
			"{{device}} {{node}} {{domain}}", `max by (<device>, domain) (dra_device_clock_hertz{<of device>})`),
		line("Voltages", "Voltage of each supply.", "volt", "no source reports voltages",
			"{{device}} {{node}} {{domain}}", `max by (<device>, domain) (dra_device_voltage_volts{<of device>})`).optional(),
	}
}

func nodeErrors() []Panel {
	return []Panel{
		line("Errors", "Errors per second, by kind and code. Corrected errors are normal at low rates.", "cps",
			"no source reports errors", "{{device}} {{node}} {{kind}} {{code}} {{severity}}",
			`max by (<device>, kind, code, severity) (rate(dra_device_errors_total{<of device>}[$__rate_interval]))`),
		ranked("Errors", 0, "Errors in the time shown", "Errors in the selected time range, by kind and code. See "+
			"DRADeviceErrors in the runbook for what to do about each.", "no source reports errors", 12, 8,
			columnOf("Errors", "none",
				`round(max by (<device>, kind, code, severity) (increase(dra_device_errors_total{<of device>}[$__range])))`),
			columnOf("Last one", "dateTimeFromNow",
				`max by (<device>) (dra_device_last_error_timestamp_seconds{<of device>}) * 1000`)),
		line("Link traffic", "Bytes per second on each link.", "binBps", "not measured",
			"{{device}} {{node}} {{link}} {{direction}}",
			`max by (<device>, link, direction) (rate(dra_device_io_bytes_total{<of device>}[$__rate_interval]))`),
		line("Telemetry", "1 while the device can be read, 0 while reading fails.", "none", "no device has telemetry",
			"{{device}} {{node}}", `max by (<device>) (dra_device_up{<of device>})`),
	}
}
