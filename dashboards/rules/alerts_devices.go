package rules

// holderSources are the sources of who holds what, and not of telemetry.
const holderSources = "podresources|pods|claims|slices|taintrules|nominated"

func deviceAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceUnhealthy", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (<device>) (dra_device_health{status="unhealthy"} == 1)`,
			summary:     aDevice + " is unhealthy.",
			description: "Its driver has reported so for <for>." + heldBy(),
			meaning:     "The device's driver or the kubelet reports it as unhealthy. Work on it may fail or be wrong.",
			diagnosis:   "The Nodes dashboard: errors, temperature, throttling, and who holds it.",
			mitigation: "If it is free, check that it is tainted (`dra_device_tainted`), by its driver or by a " +
				"DeviceTaintRule of yours (Kubernetes 1.37) that names driver, pool and device. If it is claimed, " +
				"inform the owner, drain the node, then see [DRADeviceErrors](#dradeviceerrors).",
		},
		{
			name: "DRATaintedDeviceHeld", severity: info, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<device>, key, source) (dra_device_tainted{effect="NoExecute"}) == 1
			and on (<device>) device:dra_held:max`,
			summary: aDevice + " is tainted with NoExecute and still held.",
			description: "Taint {{ $labels.key }}, set by a {{ $labels.source }}, evicts the pods that use the device, but a " +
				"claim has held it for <for>." + heldBy(),
			meaning: "A driver (`source=\"slice\"`) or an administrator (`source=\"rule\"`, a DeviceTaintRule) " +
				"evicts the pods that use the device. Pods whose claims tolerate the taint stay. Others end within " +
				"seconds, unless their termination hangs.",
			diagnosis: "`/api/v1/snapshot` on the node has the taints of the device, the name of the rule, and the " +
				"tolerations of its claims. `kubectl describe devicetaintrule NAME`: the condition " +
				"`EvictionInProgress` counts the remaining pods.",
			mitigation: "If a pod hangs in termination, find out why: finalizers, volumes, a process that does not end. If " +
				"the taint is no longer needed, delete the DeviceTaintRule; the driver removes a taint of the slice.",
		},
	}
}

// lostDeviceAlerts are about devices that can no longer be read.
func lostDeviceAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr:    `max by (<device>) (device:dra_lost:info) == 1`,
			summary: aDevice + " is claimed, but can no longer be read.",
			description: "Its telemetry has failed for <for> while a claim holds it: it may have fallen off the bus, or its " +
				"driver hangs." + heldBy(),
			meaning: "The device was readable before, or is claimed, and no source can read it now. Other devices of the " +
				"node are not affected.",
			diagnosis: "`dra-exporter check` on the node shows what each source reads, or why it fails; then the kernel's log.",
			mitigation: "A GPU that fell off the bus (Xid 79) needs a restart of the host. Wait for the end of an " +
				"upgrade of the driver.",
		},
		{
			name: "DRANodeDevicesDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr: `
			count by (cluster, node) (group by (<device>) (device:dra_lost:info))
			and on (cluster, node) (
			  max by (cluster, node, source) (node:dra_failing_source:info{source!~"` + holderSources + `"}) == 1
			)`,
			summary: "Claimed devices on " + aNode + " can no longer be read, since a source fails: {{ $value }}.",
			description: "It has failed for <for>." + asked("<node>", "max by (source) (dra_exporter_source_up{<it>}) == 0",
				" Down:"+each("{{ $c.Labels.source }}")+"."),
			meaning: "A vendor's library or driver on the node is missing or hangs, so that none of its devices can be " +
				"read. [DRADeviceDown](#dradevicedown) then fires for each device.",
			diagnosis: "`dra-exporter check` on the node reports why the source fails. Check whether the driver or " +
				"the kernel is being upgraded; then see the kernel's log.",
			mitigation: "Finish or roll back the upgrade of the driver, or restart the node. Workloads on the devices may " +
				"continue: see their logs before you drain it.",
		},
	}
}

// loadAlerts are about devices that are throttled or overcommitted.
func loadAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceThrottled", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<device>, reason) (rate(dra_device_throttled_seconds_total{reason!="idle"}[<error window>]) > <throttled>)
			and on (<device>) device:dra_held:max`,
			summary: aDevice + " is throttled ({{ $labels.reason }}).",
			description: "It ran below its maximum clocks for {{ $value | humanizePercentage }} of the last <error window>, " +
				"with the reason {{ $labels.reason }}." + heldBy(),
			meaning: "The device limits its clocks: reason `thermal` is heat, `power` a power limit. A job on many devices " +
				"is as slow as the slowest one.",
			diagnosis: "The Nodes dashboard: temperature and power of the other devices. If one device is hot, its " +
				"own cooling is at fault; if all are, that of the rack.",
			mitigation: "Thermal: check fans, air flow and coolant. Power: check the configured limit and the power supplies.",
		},
		{
			name: "DRASharedDeviceOvercommitted", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			device:dra_consumed_capacity:ratio > 1`,
			summary:     aDevice + " is overcommitted.",
			description: "Claims consume {{ $value | humanizePercentage }} of its {{ $labels.resource }}." + heldBy(),
			meaning: "The claims on the device consume more than its capacity: the slice was changed after the " +
				"allocation, or two schedulers allocate.",
			diagnosis: "`kubectl get resourceclaims -A -o yaml`, `consumedCapacity` of the device's results, and the " +
				"device's slice.",
			mitigation: "Delete one of the pods. If the alert returns, look for a second scheduler and for drivers that " +
				"reduce the capacity in slices.",
		},
	}
}

func capacityAlerts(o *Options) []alert {
	return []alert{{
		name: "DRAClusterDeviceOvercommitted", severity: warning, hold: o.For, keep: o.KeepFiring,
		expr: `
			sum by (cluster, driver, pool, device, cluster_device, resource) (
			  max by (cluster, namespace, resourceclaim_name, driver, pool, device, cluster_device, resource) (
			    claim_device:dra_consumed_capacity:ratio
			  )
			) > 1
			and
			count by (cluster, driver, pool, device, cluster_device, resource) (
			  group by (<device>, cluster_device, resource) (claim_device:dra_consumed_capacity:ratio)
			) > 1`,
		summary: "Device {{ $labels.device }} of {{ $labels.driver }} is overcommitted by several nodes together.",
		description: "The device is offered to several nodes, whose claims consume " +
			"{{ $value | humanizePercentage }} of its {{ $labels.resource }} together.",
		meaning: "As [DRASharedDeviceOvercommitted](#drashareddeviceovercommitted), for a device that claims of " +
			"several nodes share: no node knows what the claims of other nodes consume.",
		diagnosis:  "As for [DRASharedDeviceOvercommitted](#drashareddeviceovercommitted).",
		mitigation: "The same.",
	}}
}

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

// networkLinkAlerts are about the links of network and RDMA devices.
func networkLinkAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceLinkDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr:        "max by (<device>) (" + linkDown + ") == 1",
			summary:     aDevice + " is claimed, and its link is down.",
			description: "No port of it has been up for <for> while a claim holds it." + heldBy(),
			meaning: "The device works but its link does not: the cause is the cable, the module, the switch port or, with " +
				"InfiniBand, a missing subnet manager (the port's state is INIT then). If one of several ports is up, the alert " +
				"does not fire.",
			diagnosis: "On the node, `ip link`, `rdma link` and `ibstat` show the state of each port, `ethtool -m` the " +
				"module. `dra_device_errors_total{kind=\"port\"}` shows whether the link degraded before. If several nodes have " +
				"it, look at the switch.",
			mitigation: "Taint the device, so that no new claim gets it; move the job. Reseat or replace cable and module; " +
				"check the switch's port.",
		},
		{
			name: "DRADeviceLinkFlapping", severity: warning, keep: o.KeepFiring,
			expr: `
			max by (<device>) (changes(dra_device_link_up[<error window>])) >= 4
			or
			sum by (<device>) (
			  max by (<device>, code) (increase(dra_device_errors_total{kind="link_down"}[<error window>]))
			) >= 3`,
			summary: aDevice + " has a link that goes down repeatedly.",
			description: "Within <error window> its link changed between up and down " +
				"{{ $value | printf \"%.0f\" }} times." + heldBy(),
			meaning: "Each time, every collective operation that uses the link stops for seconds. The device's own " +
				"counter of link failures counts those between two readings.",
			diagnosis: "The Network dashboard, and `dra_device_errors_total{kind=\"port\"}`: if `symbol_error` and " +
				"`link_error_recovery` rise, the cause is a bad cable, a dirty connector or a hot module.",
			mitigation: "Clean or replace cable and module. Until then taint the device: a job is as slow as its slowest link.",
		},
	}
}
