package exposition

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// Stability is what can be expected of a family's name and labels.
type Stability string

// Stable families keep name, type and labels within a major version.
const (
	Stable Stability = "stable"
)

// Family describes a metric family that is made of snapshots, or one of the exporter's own.
type Family struct {
	Name      string
	Help      string
	Unit      string
	Type      driver.Type
	Labels    []string // all of them, in the order of the reference
	Filled    string   // where the values come from
	Stability Stability
	Spec      *driver.Spec    // of families of a quantity; else nil
	Quantity  driver.Quantity // that of Spec
	Histogram bool
	Classic   bool    // it has classic buckets in all formats, whatever is chosen for distributions
	Groups    []Group // that switch it; none: it is always exported

	rank      rank
	unlimited bool // its series do not count against the limit
	info      bool // it stays with the choice Info of its group
	off       bool // it is not exported
}

// familyID is the number of a family: the fixed ones, then those of each quantity per device,
// claim, pod, unattributed, and of the distributions of claims.
type familyID int

const (
	famDeviceInfo familyID = iota
	famDeviceHardware
	famDeviceUp
	famDeviceAllocations
	famDeviceAllocated
	famDeviceUsed
	famDeviceHealthReason
	famDeviceTainted
	famDeviceLastError
	famDeviceQuantitySource
	famDeviceParentShare
	famClaimInfo
	famClaimDeviceInfo
	famClaimAllocatedAt
	famClaimLastActive
	famClaimStalled
	famClaimStalledUnknown
	famClaimIncidentOpen
	famClaimIncidentOnset
	famClaimLastError
	famClaimConsumedCapacity
	famClaimCondition
	famClaimNetwork
	famClaimAllocated
	famClaimShare
	famClaimUsed
	famClaimFit
	famClaimFitUnused
	famPodInfo
	famPodClaimInfo
	famPodTopology
	famPodAllocated
	famPodShare
	famDriverPreparation
	famDriverFirstActivity
	famUnresolved
	famSnapshotTime
	famSeries
	famSeriesDropped
	numFixedFamilies
)

const (
	famDeviceQuantity       = numFixedFamilies
	famClaimQuantity        = famDeviceQuantity + driver.MaxQuantities
	famPodQuantity          = famClaimQuantity + driver.MaxQuantities
	famUnattributedQuantity = famPodQuantity + driver.MaxQuantities
	famClaimDistribution    = famUnattributedQuantity + driver.MaxQuantities
	numFamilies             = famClaimDistribution + driver.MaxQuantities
)

// Families returns all families that are made of snapshots, in no particular order.
func Families(catalogue driver.Catalogue) []Family {
	var out []Family
	for _, f := range allFamilies(catalogue, nil) {
		if f.Name != "" {
			out = append(out, f)
		}
	}
	return out
}

// allFamilies returns the families by number. A number without a family (of a quantity that is not
// attributed) has the zero Family.
func allFamilies(catalogue driver.Catalogue, choices Choices) *[numFamilies]Family {
	var all [numFamilies]Family
	pods := podFamilies()
	for id, f := range pods {
		f.Groups = append(f.Groups, GroupPods)
		pods[id] = f
	}
	for _, part := range []map[familyID]Family{
		deviceFamilies(), claimFamilies(), recordedFamilies(), lifecycleFamilies(), pods, ownFamilies(),
	} {
		for id, f := range part {
			f.rank, f.unlimited = fixedRank(id), id >= famUnresolved
			all[id] = f
		}
	}
	for i := range catalogue {
		q, id := driver.Quantity(i), familyID(i)
		spec := catalogue.Spec(q)
		add := func(first familyID, f Family, r rank) {
			f.Quantity, f.rank, f.Groups = q, r, quantityGroups(first, spec)
			all[first+id] = f
		}
		add(famDeviceQuantity, quantityFamily("dra_device_", "", spec, deviceLabelNames()), deviceRank(spec))
		switch spec.Sharing {
		case driver.Intensive:
			if spec.SoleLabels != nil {
				add(famClaimQuantity, soleFamily(spec), rankClaim)
			}
		case driver.Witnessed:
			add(famClaimQuantity, witnessedFamily("dra_claim_", "claim", spec, claimLabelNames()), rankClaim)
			add(famPodQuantity, witnessedFamily("dra_pod_", "pod", spec, podLabelNames()), rankPod)
		case driver.Additive:
			add(famClaimQuantity, attributedFamily("dra_claim_", "The claim's part. ", spec, claimLabelNames()), rankClaim)
			add(famPodQuantity, attributedFamily("dra_pod_", "The pod's part. ", spec, podLabelNames()), rankPod)
			add(famUnattributedQuantity, attributedFamily("dra_device_unattributed_",
				"What no claim is charged for. ", spec, deviceLabelNames()), rankUnattributed)
			if spec.Distributed {
				add(famClaimDistribution, distributionFamily(spec), rankClaim)
			}
		}
	}
	for id := range all {
		f := &all[id]
		f.Stability, f.off = Stable, !choices.exports(f)
	}
	return &all
}

func deviceLabelNames() []string { return []string{"driver", "pool", "device"} }

func claimLabelNames() []string {
	return []string{"namespace", "resourceclaim_name", "driver", "pool", "device"}
}

func podLabelNames() []string { return []string{"namespace", "pod", "driver", "pool", "device"} }

func quantityFamily(prefix, help string, spec *driver.Spec, labels []string) Family {
	f := Family{
		Name: prefix + spec.Metric, Help: help + spec.Help, Unit: spec.Unit, Type: spec.Type,
		Labels: append(labels, labelNames(spec)...), Spec: spec, Filled: "sources",
	}
	switch spec.Name {
	case driver.Capacity.String():
		f.Filled = "ResourceSlices; netdev (speed)"
	case driver.MemoryUsedPeak.String(), driver.PowerPeak.String():
		f.Filled = fromLedger
	}
	return f
}

func attributedFamily(prefix, help string, spec *driver.Spec, labels []string) Family {
	f := quantityFamily(prefix, help, spec, labels)
	f.Filled = "the device's value, by attribution"
	if spec.Divided {
		f.Filled += "; of partitions, the parent's, by share and activity"
	}
	return f
}

// soleFamily returns the family of what a claim has of a quantity that is never divided.
func soleFamily(spec *driver.Spec) Family {
	f := quantityFamily("dra_claim_", "", spec, claimLabelNames())
	f.Help += " Of claims that have the device, or the partition, to themselves, and of these values of " +
		spec.Labels[0].Name + " alone: " + strings.Join(spec.SoleLabels, ", ") + "."
	f.Filled = "the device's value"
	return f
}

// witnessedFamily returns the family of what a holder, a claim or a pod, saw of a quantity.
func witnessedFamily(prefix, holder string, spec *driver.Spec, labels []string) Family {
	if spec.Type != driver.Counter {
		f := quantityFamily(prefix, "The "+holder+"'s part, since it began to hold the device. ", spec, labels)
		f.Filled = "ledger"
		return f
	}
	help := "While the " + holder + " held the device, in full whoever else held it too: not to be summed over " +
		"holders. Absent while there was none. "
	if spec.Failure {
		help += "Errors of which it is only known that they happened between two readings count for each that held " +
			"the device in that time: in /api/v1/incidents the " + holder + " is a possible hit then. "
	}
	f := quantityFamily(prefix, help, spec, labels)
	f.Filled = "the device's increments, by time"
	return f
}

// distributionFamily returns the family of how a gauge of claims was distributed over time. The
// unit stays the end of the name.
func distributionFamily(spec *driver.Spec) Family {
	return Family{
		Name: "dra_claim_" + strings.TrimSuffix(spec.Metric, spec.Unit) + "distribution_" + spec.Unit,
		Help: "How the claim's part was distributed over time since it began, summed over its devices of the driver. Each " +
			"second counts once, by the value of its reading: the count is the seconds measured, the sum is the integral. " +
			"A native histogram; not in text formats, unless --histograms=classic. " + spec.Help,
		Unit: spec.Unit, Labels: []string{"namespace", "resourceclaim_name", "driver"}, Filled: fromLedger,
		Spec: spec, Histogram: true,
	}
}

// kind returns the word for the family's type.
func (f *Family) kind() string {
	if f.Histogram {
		return "histogram"
	}
	return f.Type.String()
}

const (
	fromKubelet   = "kubelet PodResources"
	fromInventory = "ResourceSlices (inventory)"
	fromClaims    = "ResourceClaims"
	fromLedger    = "ledger"
)

func deviceFamilies() map[familyID]Family {
	device := deviceLabelNames()
	return map[familyID]Family{
		famDeviceInfo: {
			Name: "dra_device_info", Filled: fromInventory + ", sources",
			Help: "Facts about the device; empty where unknown. parent: the device that this one is a part of. listed=false: " +
				"it is in no ResourceSlice, such as a GPU whose MIG devices are static. node_local=false: its slice offers it " +
				"to other nodes too.",
			Labels: append(device, "vendor", "model", "uuid", "pci_bus_id", "parent", "numa_node", "driver_version", "listed",
				"node_local"),
		},
		famDeviceHardware: {
			Name: "dra_device_hardware_info", Filled: fromInventory + ", sources",
			Help: "More facts about the device; empty where unknown, and absent where none is known. profile is what the " +
				"vendor calls the size of a partition, such as 1g.10gb; serial is that of the board; firmware_version that of " +
				"its VBIOS; cuda_version the newest that the driver supports.",
			Labels: append(device, "profile", "serial", "firmware_version", "cuda_version"),
		},
		famDeviceUp: {
			Name: "dra_device_up", Filled: "sources", Labels: device,
			Help: "1 if the device's telemetry is readable, 0 if it is claimed or was read before and is not readable " +
				"now. Absent for devices that no source supports or that were never realised.",
		},
		famDeviceAllocations: {
			Name: "dra_device_allocations", Filled: fromKubelet, Labels: device,
			Help: "Claim shares that hold the device now, without admin access: a claim of 100 pods is 1, two shares of " +
				"one claim are 2. What a device plugin gave to a pod counts likewise.",
		},
		famDeviceAllocated: {
			Name: "dra_device_allocated_seconds_total", Unit: "seconds", Type: driver.Counter, Filled: fromLedger,
			Labels: device,
			Help:   "Time in which at least one claim held the device.",
		},
		famDeviceUsed: {
			Name: "dra_device_used_seconds_total", Unit: "seconds", Type: driver.Counter, Filled: fromLedger, Labels: device,
			Help: "Time in which the device was held and above the idle thresholds.",
		},
		famDeviceHealthReason: {
			Name: "dra_device_health_reason_info", Filled: "sources, pods, " + fromInventory, Labels: append(device, "reason"),
			Help: "Why the device is not healthy, as what dra_device_health comes from says it: the driver's message, or the " +
				"taint. Of a message at most 64 bytes, with # for each number of five digits or more; " +
				"/api/v1/snapshot has all of it. Absent where no reason is given.",
		},
		famDeviceTainted: {
			Name: "dra_device_tainted", Filled: fromInventory + ", DeviceTaintRules",
			Labels: append(device, "key", "value", "effect", "source"),
			Help: "1 for each taint of the device. source: slice (its driver's ResourceSlice), rule (a DeviceTaintRule). " +
				"Few taints say something of dra_device_health.",
		},
		famDeviceLastError: {
			Name: "dra_device_last_error_timestamp_seconds", Unit: "seconds", Filled: fromLedger, Labels: device,
			Help: "Unix time at which one of the device's error counters was last seen to rise.",
		},
		famDeviceQuantitySource: {
			Name: "dra_device_quantity_source_info", Filled: "sources",
			Labels: append(device, "quantity", "source"), Groups: []Group{GroupQuantitySource},
			Help: "Which source a measured quantity of the device comes from; not of settings and conditions. In brackets: an " +
				"integral of a gauge, or a partition's part of its parent's, by share and activity or by share alone.",
		},
		famDeviceParentShare: {
			Name: "dra_device_parent_share_ratio", Unit: "ratio", Filled: fromInventory + ", sources", Labels: device,
			Help: "The part of its parent that the device, a partition, is: by the compute slices of a MIG device, else by " +
				"the counters of the slice that it consumes, else by memory. Absent where that is unknown.",
		},
	}
}

func claimFamilies() map[familyID]Family {
	claim := claimLabelNames()
	return map[familyID]Family{
		famClaimInfo: {
			Name: "dra_claim_info", Filled: fromKubelet + ", " + fromClaims, Labels: []string{
				"namespace", "resourceclaim_name", "uid",
			},
			Help: "A claim that holds devices of this node, or did within the retention; with label_NAME as chosen by flags.",
		},
		famClaimDeviceInfo: {
			Name: "dra_claim_device_info", Filled: fromKubelet + ", " + fromClaims,
			Labels: append(claim, "share_id", "request", "device_class", "admin_access", "attribution", "state"),
			Help: "A device that a claim holds now. attribution: how the device is divided among its claims. state: prepared, " +
				"or allocated while its driver has yet to prepare it.",
		},
		famClaimAllocatedAt: {
			Name: "dra_claim_allocated_timestamp_seconds", Unit: "seconds", Filled: fromClaims, Labels: []string{
				"namespace", "resourceclaim_name",
			},
			Help: "Unix time at which the claim was allocated.",
		},
		famClaimLastActive: {
			Name: "dra_claim_last_active_timestamp_seconds", Unit: "seconds", Filled: fromLedger, Labels: claim,
			Help: "Unix time at which the claim last used the device; at first, when it was first seen.",
		},
		famClaimLastError: {
			Name: "dra_claim_last_error_timestamp_seconds", Unit: "seconds", Filled: fromLedger, Labels: claim,
			Groups: []Group{GroupErrors},
			Help:   "Unix time at which an error of the device last hit the claim. Absent while none did.",
		},
		famClaimConsumedCapacity: {
			Name: "dra_claim_consumed_capacity", Filled: fromClaims, Labels: append(claim, "share_id", "resource"),
			Help: "Capacity of the device that the claim's share consumes, in the resource's base unit.",
		},
		famClaimCondition: {
			Name: "dra_claim_device_condition", Filled: fromClaims, Labels: append(claim, "share_id", "type", "status"),
			Help: "1 for the present status of each condition that the driver gives of the device in the claim's status. " +
				"status: True, False, Unknown.",
		},
		famClaimNetwork: {
			Name: "dra_claim_network_info", Filled: fromClaims, Labels: append(
				claim, "share_id", "interface", "ip", "hardware_address",
			),
			Help: "The interface that a network driver gave to the claim's pod, by its name in the pod, once per IP.",
		},
		famClaimAllocated: allocatedFamily(
			"dra_claim_allocated_seconds_total", "Time in which the claim held the device, alone or with others.", claim,
		),
		famClaimUsed: allocatedFamily(
			"dra_claim_used_seconds_total", "Time in which the claim used the device: above the idle thresholds "+
				"(dra_exporter_idle_threshold_ratio). Absent where it is not known which of several claims does.", claim,
		),
		famClaimFit: fitFamily(claim), famClaimFitUnused: unusedFamily(claim),
		famClaimShare: allocatedFamily(
			"dra_claim_allocated_share_seconds_total",
			"Time in which the claim held the device, divided among those that held it together.", claim,
		),
	}
}

// recordedFamilies are those of claims that the flight recorder knows.
func recordedFamilies() map[familyID]Family {
	claim := claimLabelNames()
	return map[familyID]Family{
		famClaimStalled: {
			Name: "dra_claim_stalled", Filled: "flight recorder", Labels: append(claim, "reason"),
			Help: "1 if the device has been busy without a pause for the claim for --stalled.after, while nothing that is " +
				"measured showed life: little power, and next to no compute, memory traffic, copies, media and traffic of " +
				"links, as in a collective operation that hangs; else 0. reason: what showed nothing, empty for 0. Absent " +
				"while that is unknown: dra_claim_stalled_unknown says why.",
		},
		famClaimStalledUnknown: {
			Name: "dra_claim_stalled_unknown", Filled: "flight recorder", Labels: append(claim, "reason"),
			Help: "1 while it is unknown whether the claim is stalled, of devices with power or engines. Absent for claims " +
				"that share the device, which are not judged. reason, see exporter/stall: " + stallReasons() + ".",
		},
		famClaimIncidentOpen: {
			Name: "dra_claim_incident_open", Filled: "flight recorder", Labels: append(claim, "kind"),
			Help: "1 while an incident of the kind that hit the claim on the device, or may have hit it, is not over: see " +
				"dra_exporter_incidents_open. Absent otherwise.",
		},
		famClaimIncidentOnset: {
			Name: "dra_claim_incident_onset_timestamp_seconds", Unit: "seconds", Filled: "flight recorder",
			Labels: append(claim, "kind"),
			Help:   "Unix time at which that incident began. Absent while dra_claim_incident_open is.",
		},
	}
}

func fitFamily(claim []string) Family {
	return Family{
		Name: "dra_claim_fit_ratio", Unit: "ratio", Filled: fromLedger, Groups: []Group{GroupFit},
		Labels: append(claim, "resource"),
		Help: "The part of what the claim holds of the device that it would have needed since it began, 0 to 1, " +
			"--fit.margin included. resource: memory (its peak), activity (what it did not exceed in 99.9 % of the time). " +
			"Absent while it is not known, and until the claim was measured for --fit.after.",
	}
}

func unusedFamily(claim []string) Family {
	return Family{
		Name: "dra_claim_fit_unused_ratio", Unit: "ratio", Filled: fromLedger, Groups: []Group{GroupFit},
		Labels: append(claim, "alternative"),
		Help: "The part of what the claim holds of the device that the smallest alternative on this node would leave " +
			"unused, 0 to 1. alternative: the profile of a partition (1g.20gb), else its device; what to consume of a " +
			"shared device (memory=12Gi); or fewer devices. Absent where nothing smaller is offered that would do.",
	}
}

func podFamilies() map[familyID]Family {
	pod := podLabelNames()
	return map[familyID]Family{
		famPodAllocated: allocatedFamily(
			"dra_pod_allocated_seconds_total", "Time in which the pod held the device, regardless of other holders.", pod,
		),
		famPodShare: allocatedFamily(
			"dra_pod_allocated_share_seconds_total",
			"Time in which the pod held the device, divided among those that held it together.", pod,
		),
		famPodInfo: {
			Name: "dra_pod_info", info: true, Filled: fromKubelet + ", Pods API or API server, pod log folders",
			Labels: []string{
				"namespace", "pod", "uid", "created_by_kind", "created_by_name", "workload_kind", "workload_name", "queue",
			},
			Help: "A pod that holds devices of this node, or did within the retention, with the workload that it is a part of " +
				"and its queue, by its labels and its controller; with label_NAME and annotation_NAME as chosen by flags.",
		},
		famPodTopology: {
			Name: "dra_pod_topology_info", info: true, Groups: []Group{GroupTopology}, Filled: "slices, sysfs",
			Labels: []string{"namespace", "pod", "closest", "farthest"},
			Help: "How near the devices that the pod holds now are to each other, the nearest two and the farthest two: " +
				strings.Join(proximities(), ", ") + ". Absent for a pod of one device, and where not enough is known.",
		},
		famPodClaimInfo: {
			Name: "dra_pod_claim_info", info: true, Filled: fromKubelet,
			Labels: []string{
				"namespace", "pod", "container", "claim_name", "resourceclaim_name", "driver", "pool", "device", "share_id",
				"request", "attribution",
			},
			Help: "A device that a container holds now through a claim, or a device plugin (without names of claims). " +
				"attribution: how the claim's part is divided among its pods.",
		},
	}
}

// lifecycleFamilies are how long the claims of a driver took from one state to the next.
func lifecycleFamilies() map[familyID]Family {
	family := func(name, help string) Family {
		return Family{
			Name: name, Unit: "seconds", Filled: fromLedger, Labels: []string{"driver"}, Histogram: true, Classic: true,
			Groups: []Group{GroupLifecycle},
			Help:   help + " Each claim counts once for its devices of a driver. In protobuf, a native histogram too.",
		}
	}
	return map[familyID]Family{
		famDriverPreparation: family("dra_claim_preparation_seconds",
			"How long claims waited for their driver: from when they were allocated, and a pod of this node was there, to "+
				"when their CDI spec was written; of drivers without one, to when the kubelet named the claim. Not of claims "+
				"that were allocated before the exporter started, and of none without the API server.",
		),
		famDriverFirstActivity: family("dra_claim_first_activity_seconds",
			"How long claims did nothing at first: from when they were prepared to when their use was first above the idle "+
				"thresholds. Not of claims of which it is unknown what they use.",
		),
	}
}

func proximities() []string {
	var out []string
	for _, p := range join.Proximities() {
		out = append(out, string(p))
	}
	return out
}

func allocatedFamily(name, help string, labels []string) Family {
	return Family{Name: name, Help: help, Unit: "seconds", Type: driver.Counter, Filled: fromLedger, Labels: labels}
}

// ownFamilies are the exporter's metrics about its snapshots.
func ownFamilies() map[familyID]Family {
	return map[familyID]Family{
		famUnresolved: {
			Name: "dra_exporter_unresolved_devices", Filled: "join", Labels: []string{"driver", "reason"},
			Help: "Devices without telemetry, by reason: " + strings.Join(gapNames(), ", ") + ".",
		},
		famSnapshotTime: {
			Name: "dra_exporter_snapshot_timestamp_seconds", Unit: "seconds", Filled: "sampler",
			Help: "Unix time of the snapshot that this answer was made of.",
		},
		famSeries: {
			Name: "dra_exporter_series", Filled: "ledger",
			Help: "Series exported, without those of the exporter itself.",
		},
		famSeriesDropped: {
			Name: "dra_exporter_series_dropped", Filled: "ledger",
			Help: "Series that are not exported, because there would be more than --max-series.",
		},
	}
}

func gapNames() []string {
	var out []string
	for _, g := range join.MissingReasons() {
		out = append(out, string(g))
	}
	return out
}

// stallReasons lists why it may be unknown whether a claim is stalled.
func stallReasons() string {
	var out []string
	for _, r := range stall.Reasons() {
		if r == stall.Shared {
			continue
		}
		out = append(out, string(r))
	}
	return strings.Join(out, ", ")
}
