package exposition

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// fixedFamilies are some of the families that are not of a quantity.
type fixedFamilies struct {
	rank     rank     // of those without another one
	labels   []string // that all have before their own
	families map[familyID]Family
}

// allFixed returns the families that are not of a quantity. Their types and units follow from their
// names.
func allFixed() []fixedFamilies {
	return []fixedFamilies{
		{rankDevice, deviceLabelNames(), deviceFamilies()},
		{rankClaim, claimLabelNames(), claimFamilies()},
		{rankClaim, claimLabelNames(), recordedFamilies()},
		{rankPod, podLabelNames(), podFamilies()},
		{rankHolderInfo, nil, infoFamilies()},
		{rankDevice, nil, otherFamilies()},
	}
}

func deviceFamilies() map[familyID]Family {
	return map[familyID]Family{
		famDeviceInfo: {
			Name: "dra_device_info", rank: rankVital, Origin: fromInventory + ", sources",
			Help: "Facts about the device; a label is empty if its value is unknown. parent: the device of which this one is " +
				"a partition. listed=false: the device is in no ResourceSlice, such as a GPU whose MIG devices are static. " +
				"node_local=false: its slice offers it to other nodes too. profile: the vendor's name for the size of a " +
				"partition, such as 1g.10gb. serial: that of the board. firmware_version: that of the VBIOS. cuda_version: the " +
				"newest CUDA version that the driver supports.",
			Labels: []string{
				"vendor", "model", "uuid", "pci_bus_id", "parent", "numa_node", "driver_version", "listed",
				"node_local", "profile", "serial", "firmware_version", "cuda_version",
			},
		},
		famDeviceUp: {
			Name: "dra_device_up", rank: rankVital, Origin: "sources",
			Help: "1 if the device's telemetry is readable, 0 if the device is claimed or was readable before and its " +
				"telemetry is not readable now. Absent for devices that no source supports, and for possible MIG devices that " +
				"do not exist yet.",
		},
		famDeviceState: {
			Name: "dra_device_state", Origin: fromKubelet + ", sources", Labels: []string{"state", "reason"},
			Help: "1 for the state of the device, the first that applies: unhealthy, stalled, guest, unmeasured, held (and " +
				"measured: used or not), partitioned, tainted, free. Absent while nothing can hold it, as a possible MIG device. " +
				"reason: of unhealthy lost (held, and its telemetry is not readable), unreadable (not held), link_down (held, " +
				"and no link is up) or reported (dra_device_health); of tainted and free no_telemetry; else empty.",
		},
		famDeviceAllocations: {
			Name: "dra_device_allocations", Origin: fromKubelet,
			Help: "Number of shares of claims that hold the device now, without admin access: a claim of 100 pods counts 1, " +
				"two shares of one claim count 2. An allocation by a device plugin counts 1.",
		},
		famDeviceAllocated: {
			Name: "dra_device_allocated_seconds_total", Help: "Time in which at least one claim held the device.",
		},
		famDeviceUsed: {
			Name: "dra_device_used_seconds_total", Help: "Time in which the device was held and above the idle thresholds.",
		},
		famDeviceHealthReason: {
			Name: "dra_device_health_reason_info", rank: rankVital, Origin: "sources, pods, " + fromInventory,
			Labels: []string{"reason"},
			Help: "Why the device is not healthy: the taint, or the message of the driver, from which dra_device_health is " +
				"taken. A message is cut to 64 bytes, and # replaces each number of five or more digits in it; /api/v1/snapshot " +
				"has the full message. Absent if no reason is given.",
		},
		famDeviceTainted: {
			Name: "dra_device_tainted", Origin: fromInventory + ", DeviceTaintRules",
			Labels: []string{"key", "value", "effect", "source"},
			Help: "1 for each taint of the device. source: slice (its driver's ResourceSlice), rule (a DeviceTaintRule). Most " +
				"taints do not change dra_device_health.",
		},
		famDeviceLastError: {
			Name: "dra_device_last_error_timestamp_seconds",
			Help: "Unix time at which one of the device's error counters last rose.",
		},
		famDeviceQuantitySource: {
			Name: "dra_device_quantity_source_info", Origin: "sources", Labels: []string{"quantity", "source"},
			Groups: []Group{GroupQuantitySource},
			Help: "The source of each measured quantity of the device, without settings and conditions. In brackets: how the " +
				"value is computed if it is not measured, such as the integral of a gauge, an estimate, or a partition's part of " +
				"its parent's value, by share and activity or by share alone.",
		},
		famDeviceParentShare: {
			Name: "dra_device_parent_share_ratio", Origin: fromInventory + ", sources",
			Help: "Size of the device, a partition, as a fraction of its parent: by the compute slices of a MIG device, else " +
				"by the counters of the ResourceSlice that it consumes, else by memory. Absent if it is unknown.",
		},
	}
}

func claimFamilies() map[familyID]Family {
	return map[familyID]Family{
		famClaimDeviceInfo: {
			Name: "dra_claim_device_info", rank: rankHolderInfo, Origin: fromKubelet + ", " + fromClaims,
			Labels: []string{"share_id", "request", "device_class", "admin_access", "attribution", "state"},
			Help: "A device that a claim holds now. attribution: how the device is divided among its claims. state: allocated " +
				"until the driver has prepared the device, then prepared.",
		},
		famClaimLastActive: {
			Name: "dra_claim_last_active_timestamp_seconds",
			Help: "Unix time at which the claim last used the device; until it first does, the time at which the exporter " +
				"first saw the claim.",
		},
		famClaimLastError: {
			Name: "dra_claim_last_error_timestamp_seconds", Groups: []Group{GroupErrors},
			Help: "Unix time of the last error of the device that hit the claim. Absent if there was none.",
		},
		famClaimConsumedCapacity: {
			Name: "dra_claim_consumed_capacity", Origin: fromClaims, Labels: []string{"share_id", "resource"},
			Help: "Capacity of the device that the claim's share consumes, in the resource's base unit.",
		},
		famClaimCondition: {
			Name: "dra_claim_device_condition", Origin: fromClaims, Labels: []string{"share_id", "type", "status"},
			Help: "1 for the current status of each condition of the device in the claim's status, which its driver reports. " +
				"status: True, False, Unknown.",
		},
		famClaimNetwork: {
			Name: "dra_claim_network_info", rank: rankHolderInfo, Origin: fromClaims,
			Labels: []string{"share_id", "interface", "ip", "hardware_address"},
			Help: "A network interface that a driver gave to the claim's pod, by its name inside the pod: one series for each " +
				"IP address.",
		},
		famClaimAllocated: {
			Name: "dra_claim_allocated_seconds_total",
			Help: "Time in which the claim held the device, alone or with others.",
		},
		famClaimUsed: {
			Name: "dra_claim_used_seconds_total",
			Help: "Time in which the claim used the device: above the idle thresholds " +
				"(dra_exporter_idle_threshold_ratio). While it is unknown which of several claims uses the device, any use " +
				"counts for each. Where a driver only samples processes (NVIDIA), including times of up to 30 s between two " +
				"samples of its processes.",
		},
		famClaimFit: {
			Name: "dra_claim_fit_ratio", rank: rankDevice, Groups: []Group{GroupFit}, Labels: []string{"resource"},
			Help: "The fraction of what the claim holds of the device that the claim has needed since it began, 0 to 1, " +
				"including --fit.margin. resource: memory (the highest use), activity (the 99.9th percentile over time). Absent " +
				"until the claim was measured for --fit.after, and while it is unknown.",
		},
		famClaimFitUnused: {
			Name: "dra_claim_fit_unused_ratio", rank: rankDevice, Groups: []Group{GroupFit}, Labels: []string{"alternative"},
			Help: "The fraction of what the claim holds of the device that would be free if the claim had the smallest " +
				"alternative on this node that fits it, 0 to 1. alternative: the profile of a partition (1g.20gb) or, if it has " +
				"none, its name; the capacity to request of a shared device (memory=12Gi); or a smaller number of devices. " +
				"Absent if no smaller alternative fits.",
		},
		famClaimShare: {
			Name: "dra_claim_allocated_share_seconds_total",
			Help: "Time in which the claim held the device, divided among the claims that held it at the same time.",
		},
	}
}

// recordedFamilies returns the families of claims that the flight recorder fills.
func recordedFamilies() map[familyID]Family {
	const origin = "flight recorder"
	return map[familyID]Family{
		famClaimStalled: {
			Name: "dra_claim_stalled", Origin: origin, Labels: []string{"reason"},
			Help: "1 if the device has been busy for the claim without a pause for --stalled.after without progress: of its " +
				"engines, power and links, of the claim's pods on the host, and of other pods and devices of the workload. 0 if " +
				"something has shown progress within that time. reason: the quantities that show none, empty for 0. Absent while " +
				"this is unknown; dra_claim_stalled_unknown has the reason.",
		},
		famClaimStalledUnknown: {
			Name: "dra_claim_stalled_unknown", Origin: origin, Labels: []string{"reason"},
			Help: "1 while it is unknown whether the claim is stalled, for devices that report power or engines. Absent for " +
				"claims that share the device: they are never judged. reason (see exporter/stall): " +
				strings.ReplaceAll(list(stall.Reasons()), string(stall.Shared)+", ", "") + ".",
		},
		famClaimQuiet: {
			Name: "dra_claim_quiet_seconds", Origin: origin,
			Help: "How long the device has been busy for the claim without a sign of progress of the device, of the claim's " +
				"pods on the host and of other devices of the workload on the node. 0 while something shows progress. Absent " +
				"while that is not known, and while no kernel runs.",
		},
		famClaimIncidentOpen: {
			Name: "dra_claim_incident_open", Origin: origin, Labels: []string{"kind"},
			Help: "1 while an incident of this kind on the device is open (see dra_exporter_incidents_open) and hit the " +
				"claim, or may have hit it. Absent otherwise.",
		},
		famClaimIncidentOnset: {
			Name: "dra_claim_incident_onset_timestamp_seconds", Origin: origin, Labels: []string{"kind"},
			Help: "Unix time at which the incident of dra_claim_incident_open began. Absent if that metric is absent.",
		},
	}
}

func podFamilies() map[familyID]Family {
	return map[familyID]Family{
		famPodAllocated: {
			Name: "dra_pod_allocated_seconds_total", Help: "Time in which the pod held the device, regardless of other holders.",
		},
		famPodShare: {
			Name: "dra_pod_allocated_share_seconds_total",
			Help: "Time in which the pod held the device, divided among the pods that held it at the same time.",
		},
		famUnclaimedAllocated: {
			Name: "dra_pod_unclaimed_allocated_seconds_total",
			Help: "Time in which a pod held the device by a device plugin, without a claim.",
		},
		famUnclaimedShare: {
			Name: "dra_pod_unclaimed_allocated_share_seconds_total",
			Help: "Time in which a pod held the device by a device plugin, without a claim, divided among all that held the " +
				"device at the same time.",
		},
		famUnclaimedUsed: {
			Name: "dra_pod_unclaimed_used_seconds_total",
			Help: "Time in which a pod without a claim used the device: as dra_claim_used_seconds_total of claims.",
		},
		famUnclaimedLastActive: {
			Name: "dra_pod_unclaimed_last_active_timestamp_seconds",
			Help: "Unix time at which a pod without a claim last used the device: as " +
				"dra_claim_last_active_timestamp_seconds of claims.",
		},
	}
}

// infoFamilies returns the families of claims and pods with labels of their own.
func infoFamilies() map[familyID]Family {
	return map[familyID]Family{
		famClaimInfo: {
			Name: "dra_claim_info", Origin: fromKubelet + ", " + fromClaims,
			Labels: []string{"namespace", "resourceclaim_name", "uid"},
			Help: "A claim that holds devices of this node, or held them within the last --retention. Its labels label_NAME " +
				"are those of --claim-label.",
		},
		famClaimAllocatedAt: {
			Name: "dra_claim_allocated_timestamp_seconds", rank: rankClaim, Origin: fromClaims,
			Labels: []string{"namespace", "resourceclaim_name"},
			Help:   "Unix time at which the claim was allocated.",
		},
		famPodInfo: {
			Name: "dra_pod_info", info: true, Origin: fromKubelet + ", Pods API or API server, pod log folders",
			Labels: []string{
				"namespace", "pod", "uid", "created_by_kind", "created_by_name", "workload_kind", "workload_name", "queue",
			},
			Help: "A pod that holds devices of this node, or held them within the last --retention, with its workload and " +
				"queue, which are taken from the pod's labels and controller. Its labels label_NAME and annotation_NAME are " +
				"those of --pod-label and --pod-annotation.",
		},
		famPodTopology: {
			Name: "dra_pod_topology_info", info: true, Groups: []Group{GroupTopology}, Origin: "slices, sysfs",
			Labels: []string{"namespace", "pod", "closest", "farthest"},
			Help: "How close the devices that the pod holds now are to each other, for the closest and the farthest pair: " +
				list(join.Proximities()) + ". Absent for a pod with one device, and if too little is known.",
		},
		famPodClaimInfo: {
			Name: "dra_pod_claim_info", info: true, Origin: fromKubelet,
			Labels: []string{
				"namespace", "pod", "container", "claim_name", "resourceclaim_name", "driver", "pool", "device", "share_id",
				"request", "attribution",
			},
			Help: "A device that a container holds now, through a claim or a device plugin (which has no claim names). " +
				"attribution: how the claim's part is divided among its pods.",
		},
	}
}

// otherFamilies returns the families of the times that a driver's claims spend in a state, and
// those about the snapshots themselves.
func otherFamilies() map[familyID]Family {
	lifecycle := func(name, help string) Family {
		return Family{
			Name: name, Labels: []string{"driver"}, Histogram: true, Summed: true, Groups: []Group{GroupLifecycle},
			Help: help + " Each claim counts once per driver. A native histogram in protobuf; in text its sum and count, and " +
				"with --histograms=classic the buckets.",
		}
	}
	return map[familyID]Family{
		famDriverPreparation: lifecycle("dra_claim_preparation_seconds",
			"How long claims waited for their driver: from their allocation, or from the creation of their pod on this "+
				"node if that was later, until their CDI spec was written or, if the driver writes none, until the kubelet "+
				"listed the claim. Without claims that were allocated before the exporter started. Absent without the API "+
				"server."),
		famDriverFirstActivity: lifecycle("dra_claim_first_activity_seconds",
			"Time from the preparation of a claim until its use was first above the idle thresholds. Without claims "+
				"whose use is unknown."),
		famUnresolved: {
			Name: "dra_exporter_unresolved_devices", rank: rankOwn, Labels: []string{"driver", "reason"},
			Help: "Devices without telemetry, by reason: " + list(join.MissingReasons()) + ".",
		},
		famSnapshotTime: {
			Name: "dra_exporter_snapshot_timestamp_seconds", rank: rankOwn,
			Help: "Unix time of the snapshot from which this answer was made.",
		},
		famSeries: {
			Name: "dra_exporter_series", rank: rankOwn, Help: "Number of series exported, without dra_exporter_*.",
		},
		famSeriesDropped: {
			Name: "dra_exporter_series_dropped", rank: rankOwn,
			Help: "Number of series that are omitted because of --max-series.",
		},
	}
}

// list returns the words as a list.
func list[T ~string](words []T) string {
	var out []string
	for _, w := range words {
		out = append(out, string(w))
	}
	return strings.Join(out, ", ")
}
