package grafana

// nodeCondition are the panels of the condition of the hardware, independent of its users.
func nodeCondition() []Panel { return append(nodeFaults(), nodeOperation()...) }

// nodeFaults are the panels of the faults of devices.
func nodeFaults() []Panel {
	return []Panel{
		{
			Title: "Unhealthy over time", Description: "When devices were unhealthy, as their driver reports it.",
			Kind: Timeline, NoData: "no device was unhealthy, or no driver reports health", Width: 12, Height: 8,
			states: []state{{"1", "unhealthy", red}}, MayBeEmpty: true,
			Targets: []Target{{
				Expr:   `max by (<device>) (dra_device_health{<of device>, status="unhealthy"}) == 1`,
				Legend: "{{device}} {{node}}",
			}},
		},
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
