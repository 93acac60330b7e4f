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
	held := heldOverTime("<of device>", "")
	held.Height = 10 // a node has more devices than a claim
	return append(inLine(
		perDevice("Device utilization", "Share of the time in which any engine of the device was busy.",
			"percentunit", "not measured", `dra_device_utilization_ratio{<of device>}`).ofOne(),
		perDevice("Device power", "Power that each device draws.", "watt", "not measured",
			`dra_device_power_watts{<of device>}`),
		line("Device memory in use", "Memory in use as a share of the device's memory.", "percentunit",
			"not measured", "{{device}} {{node}}",
			`max by (<device>) (dra_device_memory_used_bytes{<of device>}) /
			max by (<device>) (dra_device_memory_capacity_bytes{<of device>})`).
			ofOne().from(step{0, blue}, step{0.95, red}),
	), held)
}

func deviceList() Panel {
	return ranked(rank, 0, "Device list", "Every selected device with its identity, state and driver version. A "+
		"claim can't request a device that is in no ResourceSlice: that of a device plugin, or a GPU whose MIG devices "+
		"are static. A device that is not node-local is offered to several nodes.", noDevice, 24, 7,
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
		perDevice("Engine utilization", "Share of the time in which each engine was busy.", "percentunit",
			"no source reports engines", `dra_device_engine_utilization_ratio{<of device>}`, "engine").ofOne(),
		perDevice("Occupancy", "Resident warps or waves as a share of the device's maximum. On a busy device a "+
			"low value means that the kernels are too small for it.", "percentunit", "no source reports it",
			`dra_device_occupancy_ratio{<of device>}`).ofOne(),
		perDevice("Reserved device memory", "Memory that is reserved for the driver and the firmware of the device.", "bytes",
			"no source reports it", `dra_device_memory_reserved_bytes{<of device>}`).optional(),
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
		perDevice("Temperature", "Temperature of each sensor.", "celsius", "no source reports it",
			`dra_device_temperature_celsius{<of device>}`, "sensor").
			from(step{0, blue}, step{80, orange}, step{90, red}),
		perDevice("Throttled", "Share of the time in which the device ran below its maximum clocks, by reason.",
			"percentunit", "no source reports it",
			`rate(dra_device_throttled_seconds_total{<of device>}[$__rate_interval])`, "reason").
			from(step{0, blue}, step{0.2, orange}),
		perDevice("Power limits", "The limit in force now, the default of the device, and the lowest and highest that can "+
			"be set.", "watt", "no source reports limits", `dra_device_power_limit_watts{<of device>}`, "limit").optional(),
		perDevice("Temperature margin", "Difference between the temperature at which a device is throttled and its "+
			"temperature.", "celsius", "no source reports it",
			`dra_device_temperature_margin_celsius{<of device>}`).optional(),
		perDevice("Fans", "Speed that the fan is set to, as a share of its maximum.", "percentunit", "no device has a fan",
			`dra_device_fan_speed_ratio{<of device>}`).optional(),
		perDevice("Clocks", "Frequency of each clock domain.", "hertz", "no source reports it",
			`dra_device_clock_hertz{<of device>}`, "domain"),
		perDevice("Voltages", "Voltage of each supply.", "volt", "no source reports voltages",
			`dra_device_voltage_volts{<of device>}`, "domain").optional(),
	}
}

func nodeErrors() []Panel {
	return []Panel{
		perDevice("Errors", "Errors per second, by kind and code. Corrected errors are normal at low rates.", "cps",
			"no source reports errors",
			`rate(dra_device_errors_total{<of device>}[$__rate_interval])`, "kind", "code", "severity"),
		ranked("Errors", 0, "Errors in the time shown", "Errors in the selected time range, by kind and code. See "+
			"DRADeviceErrors in the runbook for what to do about each.", "no source reports errors", 12, 8,
			columnOf("Errors", "none",
				`round(max by (<device>, kind, code, severity) (increase(dra_device_errors_total{<of device>}[$__range])))`),
			columnOf("Last one", "dateTimeFromNow",
				`max by (<device>) (dra_device_last_error_timestamp_seconds{<of device>}) * 1000`)),
		perDevice("Link traffic", "Bytes per second on each link.", "binBps", "not measured",
			`rate(dra_device_io_bytes_total{<of device>}[$__rate_interval])`, "link", "direction"),
		perDevice("Telemetry", "1 while the device can be read, 0 while reading fails.", "none", "no device has telemetry",
			`dra_device_up{<of device>}`),
	}
}

// nodeCondition are the panels of the condition of the hardware, independent of its users.
func nodeCondition() []Panel { return append(nodeFaults(), nodeOperation()...) }

// nodeFaults are the panels of the faults of devices.
func nodeFaults() []Panel {
	return []Panel{
		timeline("Unhealthy over time", "When devices were unhealthy, as their driver reports it.",
			"no device was unhealthy, or no driver reports health", 8, "unhealthy", "{{device}} {{node}}",
			`max by (<device>) (dra_device_health{<of device>, status="unhealthy"}) == 1`),
		tableOf("Why devices are not healthy", "The reason that the source of a device's health gives: the driver's "+
			"message, or the taint. /api/v1/snapshot has long messages in full.",
			"no device is unhealthy, or no reason is given", 12, 8,
			labelsOf(`max by (<device>, reason) (dra_device_health_reason_info{<of device>})`)).optional(),
		tableOf("Taints", "Taints of the devices, from their ResourceSlice or a DeviceTaintRule. A claim is allocated a "+
			"device with NoSchedule or NoExecute only if it tolerates the taint; NoExecute also evicts pods.",
			"no device is tainted", 12, 8,
			labelsOf(`max by (<device>, key, value, effect, source) (dra_device_tainted{<of device>})`)),
		tableOf("Needs attention", "Conditions that a device or its driver reports, and what ends them. See "+
			"DRADeviceNeedsAttention in the runbook.", "no device needs attention", 12, 8,
			labelsOf(`max by (<device>, action, reason) (dra_device_needs_attention{<of device>, action!="none"}) == 1`),
		).optional(),
	}
}

// nodeOperation are the panels of the devices' links and throttling.
func nodeOperation() []Panel {
	return []Panel{
		tableOf("Links", "Negotiated and highest possible lanes and generation of the devices' links. A device that "+
			"saves power may lower the generation.", "no source reports links", 12, 8,
			columnOf("Lanes", "none", `max by (<device>, link) (dra_device_link_width{<of device>})`),
			columnOf("Lanes at most", "none", `max by (<device>, link) (dra_device_link_width_max{<of device>})`),
			columnOf("Generation", "none", `max by (<device>, link) (dra_device_link_generation{<of device>})`),
			columnOf("Generation at most", "none",
				`max by (<device>, link) (dra_device_link_generation_max{<of device>})`)).optional(),
		Panel{
			Title: "Fabric over time", Description: "Devices that are not well connected with their fabric.", Kind: Timeline,
			NoData: "every device is well connected, or in no fabric", Width: 12, Height: 8,
			states: []state{{"1", "not well connected", red}},
			Targets: []Target{{
				Expr:   `max by (<device>, state) (dra_device_fabric_state{<of device>, state!="healthy"})`,
				Legend: "{{device}} {{node}} {{state}}",
			}},
		}.optional(),
		Panel{
			Title: "Throttled now", Description: "The reasons for which the device is throttled at each moment. Only " +
				"reasons that were active are shown.", Kind: Timeline,
			NoData: "no device was throttled, or no source reports it", Width: 12, Height: 8,
			states: []state{{"1", "throttled", orange}},
			Targets: []Target{{
				Expr:   `max by (<device>, reason) (dra_device_throttle_active{<of device>}) == 1`,
				Legend: "{{device}} {{node}} {{reason}}",
			}},
		}.optional(),
		line("Performance state", "Performance state of each device: 0 is the highest; a higher number saves more power.",
			"none", "no source reports it", "{{device}} {{node}}",
			`max by (<device>) (dra_device_performance_state{<of device>})`).optional(),
	}
}

// network is the dashboard of network and RDMA devices, by claim.
func network() Board {
	return Board{
		UID: "dra-network", Title: "DRA / Network and RDMA", search: "node",
		uses: []string{"cluster", "node", "namespace", "claim", "driver"}, one: []string{"node"},
		Description: "Traffic of claims on network and RDMA devices, and drops and errors of the devices.",
		Rows:        []Row{{"Claims", networkClaims()}, {"Interfaces", networkDevices()}, {rdmaRow, rdmaDevices()}},
		folded:      []string{rdmaRow},
	}
}

// rdmaRow is empty where no device has RDMA.
const rdmaRow = "Ports and congestion of RDMA"

func networkClaims() []Panel {
	rate := func(direction string) string {
		return `sum by (cluster, namespace, resourceclaim_name, link) (max by (<claim device>, link) ` +
			`(rate(dra_claim_io_bytes_total{<of claims>, link=~"network|rdma", direction="` + direction +
			`"}[$__rate_interval])))`
	}
	sum := func(direction string) string {
		return `sum by (<claim driver>) (max by (<claim device>, link) (increase(dra_claim_io_bytes_total{<of claims>, ` +
			`link=~"network|rdma", direction="` + direction + `"}[$__range])))`
	}
	const none = "no claim has a network device"
	return []Panel{
		line("Received by claim", "Bytes per second received for the claim by its network and RDMA devices.",
			"binBps", none, "{{namespace}}/{{resourceclaim_name}} {{link}}", rate("receive")).total(),
		line("Transmitted by claim", "Bytes per second transmitted for the claim by its network and RDMA devices.",
			"binBps", none, "{{namespace}}/{{resourceclaim_name}} {{link}}", rate("transmit")).total(),
		ranked("Received", 0, "Traffic in the time shown", "Bytes received and transmitted by each claim, and the "+
			"current rate of both directions together.", none, 24, 6, columnOf("Received", "bytes", sum("receive")),
			columnOf("Transmitted", "bytes", sum("transmit")),
			columnOf("Now", "binBps", `sum by (<claim driver>) (max by (<claim device>, link, direction) `+
				`(rate(dra_claim_io_bytes_total{<of claims>, link=~"network|rdma"}[$__rate_interval])))`)).total(),
		tableOf("Idle network claims", "Claims with network devices whose traffic was below the idle threshold during "+
			"the idle window.", "none is known to be idle", 24, 5,
			columnOf("Traffic", "binBps", `sum by (<claim device>) (max by (<claim device>, link, direction) `+
				`(rate(dra_claim_io_bytes_total{link=~"network|rdma", <of claims>}[$__rate_interval]))) `+
				`and on (<claim device>) (claim_device:dra_idle:bool == 1)`)),
	}
}

func networkDevices() []Panel {
	const none = "no device reports it"
	return []Panel{
		perDevice("Packets", "Packets per second of each device.", "pps", none,
			`rate(dra_device_network_packets_total{<of devices>}[$__rate_interval])`, "direction"),
		perDevice("Drops", "Packets per second that each device dropped.", "pps", none,
			`rate(dra_device_network_drops_total{<of devices>}[$__rate_interval])`, "direction"),
		perDevice("Packet errors", "Packets per second that each device received or transmitted with errors.", "pps", none,
			`rate(dra_device_network_errors_total{<of devices>}[$__rate_interval])`, "direction"),
		line("Links that went down", "Times per second that a link went down.", "cps", "no source reports it",
			"{{device}} {{node}}", `sum by (<device>) (max by (<device>, code) (rate(dra_device_errors_total{<of devices>, `+
				`kind="link_down"}[$__rate_interval])))`),
		line("Traffic of all interfaces", "Bytes per second of each network and RDMA device, whether claimed or not.",
			"binBps", none, "{{device}} {{node}} {{direction}}",
			`sum by (<device>, direction) (max by (<device>, link, direction) (
				rate(dra_device_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval])))`),
		line("Unattributed traffic", "Bytes per second of network and RDMA devices while no claim holds them.", "binBps",
			none, "{{device}} {{node}}", unattributed(
				`sum by (<device>) (max by (<device>, link, direction) (
				rate(dra_device_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval])))`,
				`max by (<claim device>, link, direction) (
				rate(dra_claim_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval]))`,
				`max by (<pod device>, link, direction) (
				rate(dra_pod_unclaimed_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval]))`)),
	}
}

// rdmaDevices are the panels of the links of RDMA devices.
func rdmaDevices() []Panel {
	const none = "no device has RDMA"
	return []Panel{
		line("Ports that are down", "Ports of RDMA devices whose link is not up.", "none", none, "{{device}} {{node}}",
			`sum by (<device>) (max by (<device>, link, port) (dra_device_link_up{<of devices>}) == bool 0)`).optional(),
		perDevice("Port errors", "Errors per second of the ports of RDMA devices, by the names of the kernel's counters.",
			"cps", none, `rate(dra_device_errors_total{<of devices>, kind="port"}[$__rate_interval])`, "code").optional(),
		line("RDMA congestion and retransmissions", "Events per second, by the names of the kernel's counters.", "cps",
			none, "{{device}} {{node}} {{event}}", `max by (<device>, event) `+
				`(rate(dra_device_rdma_events_total{<of devices>, event!~"port_xmit_wait|retrans_bytes"}[$__rate_interval]))`).
			optional(),
	}
}
