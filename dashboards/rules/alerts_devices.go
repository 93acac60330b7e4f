package rules

import "time"

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

// staleTaintAlert is about taints whose cause is over. It needs a device whose health is reported.
func staleTaintAlert(o *Options) alert {
	return alert{
		name: "DRATaintOutlivesCause", severity: info, hold: taintOutlives, keep: o.KeepFiring,
		expr: `
			max by (<device>, key, effect, source) (dra_device_tainted{effect=~"NoSchedule|NoExecute"})
			and on (<device>) (dra_device_health{status="healthy"} == 1)
			and on (<device>) (dra_device_up == 1)
			unless on (<device>) (dra_device_needs_attention{action!="none"} == 1)
			unless on (<device>) (dra_device_last_error_timestamp_seconds > time() - ` + taintErrors + `)`,
		summary: aDevice + " is tainted although it has recovered.",
		description: "Taint {{ $labels.key }} ({{ $labels.effect }}), set by a {{ $labels.source }}, keeps pods away, but " +
			"for <for> the device has been readable and healthy, has had no error for an hour, and requires no action.",
		meaning: "A taint keeps pods from the device, or evicts them, although its cause is over: the driver " +
			"reports the device as healthy, it is readable and requires no action (`dra_device_needs_attention`), " +
			"and no error was counted for an hour. There is no alert for a device without reported health.",
		diagnosis: "`/api/v1/snapshot` on the node lists the taint with the name of its rule. Find out who set it and why: " +
			"a rule for maintenance may be meant to stay.",
		mitigation: "Delete the DeviceTaintRule (`source=\"rule\"`). A driver removes its own taint " +
			"(`source=\"slice\"`), some only when the device was reset; if it does not, restart its pod on the " +
			"node, and report it to its vendor.",
	}
}

// taintOutlives is how long a taint must have had no cause: drivers check devices every few
// minutes.
const taintOutlives = 30 * time.Minute

// taintErrors is for how many seconds after its last error a device does not count as recovered.
const taintErrors = "3600"

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
