package rules

// hardwareAlerts are about the condition of the hardware, whoever uses it.
func hardwareAlerts(o *Options) []alert {
	asks := func(s severity, action, do string) alert {
		return alert{
			name: "DRADeviceNeedsAttention", action: action, severity: s, keep: o.KeepFiring,
			expr:    `max by (<device>, reason) (dra_device_needs_attention{action="` + action + `"}) == 1`,
			summary: aDevice + " needs attention ({{ $labels.reason }}): " + do + ".",
			description: "The device, or its driver, reports the condition {{ $labels.reason }}, also where it began before " +
				"the exporter's start." + hit,
		}
	}
	first := asks(critical, "rma", "replace it")
	first.meaning = "The hardware keeps a record of its faults, and its driver says what to do about them. The condition " +
		"lasts until that is done, so the alert also fires for what happened before the exporter started. The label `reason` " +
		"names the condition, `action` what ends it."
	first.diagnosis = "The Node and device dashboard: conditions, errors over the device's lifetime, and the claims that " +
		"hold the device. On the node, `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT` shows the same of an NVIDIA GPU."
	first.mitigation = attentionMitigation
	return []alert{
		first,
		asks(critical, "reboot", "restart the node"),
		asks(warning, "reset", "reset it"),
		asks(warning, "drain", "drain what uses it"),
		asks(warning, "recover_fabric", "recover its fabric"),
		asks(warning, "investigate", "look at its driver's log"),
	}
}

const attentionMitigation = `Taint the device, so that no new claim is allocated it, and wait for its claims to end or ` +
	`evict their pods. Then, by ` + "`action`" + `:

| action | reasons | what to do |
| --- | --- | --- |
| ` + "`rma`" + ` | ` + "`row_remap_failed`, `sram_ecc_threshold`, `unrepairable_memory`" +
	` | Memory that can't be repaired any more: run the vendor's field diagnostics and have the device replaced. |
| ` + "`reset`" +
	` | ` + "`row_remap_pending`, `page_retirement_pending`, `channel_repair_pending`, `tpc_repair_pending`, " +
	"`recovery_action`" +
	` | Reset the device (` + "`nvidia-smi --gpu-reset`" + `) or restart the node: the repair takes place then. A device ` +
	`with a pending remapping or repair still computes; with ` + "`recovery_action`" + ` it does not. |
| ` + "`reboot`" + ` | ` + "`recovery_action`" + ` | Restart the node: a reset of the device is not enough. |
| ` + "`drain`" + ` | ` + "`recovery_action`" +
	` | End what uses the device together with others (peer-to-peer); no new work until then. |
| ` + "`recover_fabric`" + ` | ` + "`recovery_action`" + ` | Restart the IMEX domain of the device. |
| ` + "`investigate`" + ` | ` + "`recovery_action`" +
	` | The driver asks for something that this version of the exporter does not know. |

If the same condition returns soon after a reset, have the device replaced.`
