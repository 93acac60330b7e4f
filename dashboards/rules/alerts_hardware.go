package rules

// hardwareAlerts are about the condition of the hardware, independent of its users.
func hardwareAlerts(o *Options) []alert {
	condition := func(s severity, action, do string) alert {
		return alert{
			name: "DRADeviceNeedsAttention", action: action, severity: s, keep: o.KeepFiring,
			expr:    `max by (<device>, reason) (dra_device_needs_attention{action="` + action + `"}) == 1`,
			summary: aDevice + " needs attention ({{ $labels.reason }}): " + do + ".",
			description: "The device or its driver reports the condition {{ $labels.reason }}, which may have begun before " +
				"the exporter started." + heldBy(),
		}
	}
	first := condition(critical, "rma", "replace it")
	first.meaning = "The hardware records its faults, and its driver says what to do about them. The condition lasts " +
		"until that is done, so the alert also fires for faults from before the exporter started. The label `reason` " +
		"names the condition, `action` what ends it."
	first.diagnosis = "The Nodes dashboard: conditions, errors over the device's lifetime, and the claims " +
		"that hold it. On the node, `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT` shows the same for an NVIDIA GPU."
	first.mitigation = attentionMitigation
	return []alert{
		first,
		condition(critical, "reboot", "restart the node"),
		condition(warning, "reset", "reset it"),
		condition(warning, "drain", "stop the workloads that use it"),
		condition(warning, "recover_fabric", "recover its fabric"),
		condition(warning, "investigate", "see its driver's log"),
	}
}

const attentionMitigation = `Taint the device, so that no new claim is allocated it, and wait for its ` +
	`claims to end or evict their pods. Then, by ` + "`action`" + `:

| action | reasons | what to do |
| --- | --- | --- |
| ` + "`rma`" + ` | ` + "`row_remap_failed`, `sram_ecc_threshold`, `unrepairable_memory`" +
	` | Memory that can't be repaired any more: run the vendor's field diagnostics and have the device replaced. |
| ` + "`reset`" +
	` | ` + "`row_remap_pending`, `page_retirement_pending`, `channel_repair_pending`, `tpc_repair_pending`, " +
	"`recovery_action`" +
	` | Reset the device (` + "`nvidia-smi --gpu-reset`" + `) or restart the node: the repair takes place ` +
	`then. A device with a pending remapping or repair still computes; with ` + "`recovery_action`" + ` it does not. |
| ` + "`reboot`" + ` | ` + "`recovery_action`" + ` | Restart the node: a reset of the device is not enough. |
| ` + "`drain`" + ` | ` + "`recovery_action`" +
	` | Stop the workloads that use the device together with others (peer-to-peer); start none until then. |
| ` + "`recover_fabric`" + ` | ` + "`recovery_action`" + ` | Restart the IMEX domain of the device. |
| ` + "`investigate`" + ` | ` + "`recovery_action`" +
	` | The driver requires an action that this version of the exporter does not know. |

If the same condition returns soon after a reset, have the device replaced.`

// highPerformance is the highest number of a performance state in which a device is assumed to
// work. With a higher number, its link may save power.
const highPerformance = "2"

// linkAlerts are about links that are slower than they can be, that fail, or lead to no fabric.
func linkAlerts(o *Options) []alert {
	below := func(what string) string {
		return `max by (<device>, link) (max_over_time(dra_device_link_` + what + `[<error window>]))
			  < max by (<device>, link) (dra_device_link_` + what + `_max)`
	}
	errors := func(kind, code string) string {
		return `max by (<device>, kind, code) (increase(dra_device_errors_total{kind="` + kind + `", code="` + code +
			`"}[<error window>])) > 0`
	}
	return []alert{
		{
			name: "DRADeviceLinkNarrow", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:    "\n\t\t\t" + below("width"),
			summary: aDevice + " has a {{ $labels.link }} link with too few lanes: {{ $value }}.",
			description: "The link can have more lanes with this device in this machine, and has had fewer for <error window>." +
				heldBy(),
			meaning: "The link between the device and its host was negotiated with fewer lanes than both have, " +
				"often after the device or its riser was touched. With half of the lanes, transfers take twice as " +
				"long.",
			diagnosis: "The Nodes dashboard: links, errors of kind `pcie_aer` and `pcie_replay`. On the node, " +
				"`lspci -vv` shows the capability and the state of each link on the way (`LnkCap`, `LnkSta`).",
			mitigation: "Drain the node and restart it. If the link stays narrow, reseat the device, its riser or " +
				"its cable, then have it replaced.",
		},
		{
			name: "DRADeviceLinkSlow", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: "\n\t\t\t" + below("generation") + `
			and on (<device>) max by (<device>) (max_over_time(dra_device_performance_state[<error window>])) <= ` +
				highPerformance,
			summary: aDevice + " has a {{ $labels.link }} link of only generation {{ $value }}.",
			description: "The link can be faster with this device in this machine, and was not for <error window>, although " +
				"the device was in a high performance state." + heldBy(),
			meaning: "The link was negotiated at a lower speed than both ends have. A device that saves power may lower the " +
				"speed of its link: this alert only counts the time in performance states 0 to " + highPerformance + ".",
			diagnosis: "As for [DRADeviceLinkNarrow](#dradevicelinknarrow). Check the slot's speed in the firmware's setup, " +
				"too.",
			mitigation: "As for [DRADeviceLinkNarrow](#dradevicelinknarrow).",
		},
		{
			name: "DRADeviceLinkErrors", severity: warning, keep: o.KeepFiring,
			expr:        "\n\t\t\t" + errors("pcie_aer", "uncorrectable") + "\n\t\t\tor\n\t\t\t" + errors("nvlink", "recovery"),
			summary:     aDevice + " reports errors of a link: {{ $labels.kind }} ({{ $labels.code }}).",
			description: "Within <error window>: {{ $value | printf \"%.0f\" }}." + heldBy(),
			meaning: "PCIe errors that the link could not correct, or NVLinks that went down and had to recover. Corrected " +
				"errors and replays cause no alert: they are normal at low rates, and the dashboard shows them.",
			diagnosis: "The Nodes dashboard: errors by kind and code. The kernel's log names PCIe errors (`AER`), " +
				"`nvidia-smi nvlink -e` those of each NVLink.",
			mitigation: "After a single error, watch the device. If it happens again, drain it and run the vendor's " +
				"diagnostics; reseat it and the parts on the way.",
		},
		{
			name: "DRADeviceFabricUnhealthy", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (<device>, state) (dra_device_fabric_state{state!="healthy"}) == 1`,
			summary:     aDevice + " is not well connected with its fabric ({{ $labels.state }}).",
			description: "It has been for <for>: jobs that use several devices fail, or are slow." + heldBy(),
			meaning: "The device has not joined the fabric that links it with the others (`not_started`, " +
				"`in_progress`, `failed`), or the fabric is `limited` or `unhealthy`. On machines with NVSwitches, " +
				"CUDA does not start on a GPU that has not joined.",
			diagnosis: "`nvidia-smi -q` shows the state and what is wrong under Fabric. Check the log of the fabric manager " +
				"(`nvidia-fabricmanager`), and of the IMEX daemon where a fabric has several nodes.",
			mitigation: "Restart the fabric manager, then the node. If the fabric stays `limited` or `unhealthy`, have the " +
				"switches and cables checked.",
		},
	}
}
