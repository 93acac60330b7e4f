package exposition

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Family describes a metric family: one that is made from snapshots, or one of the exporter's own.
type Family struct {
	Name      string
	Help      string
	Unit      string
	Type      driver.Type
	Labels    []string        // all labels, in the order of the reference
	Origin    string          // where the values come from; empty: from the exporter itself
	Spec      *driver.Spec    // nil if the family is not of a quantity
	Quantity  driver.Quantity // the quantity that Spec describes
	Histogram bool
	Summed    bool    // a histogram with its sum and count in text, also without classic buckets
	Groups    []Group // the groups that switch it on and off; if empty, it is always exported

	rank rank
	info bool // it is exported also with the choice Info
	off  bool // it is not exported, or there is none of this number
}

// familyID is the number of a family. The fixed families come first. Then come, for each quantity,
// the families of devices, claims, pods, pods without a claim, unattributed parts, and
// distributions.
type familyID int

const (
	famDeviceInfo familyID = iota
	famDeviceUp
	famDeviceState
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
	famClaimQuiet
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
	famUnclaimedAllocated
	famUnclaimedShare
	famUnclaimedUsed
	famUnclaimedLastActive
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
	famUnclaimedQuantity    = famPodQuantity + driver.MaxQuantities
	famUnattributedQuantity = famUnclaimedQuantity + driver.MaxQuantities
	famClaimDistribution    = famUnattributedQuantity + driver.MaxQuantities
	numFamilies             = famClaimDistribution + driver.MaxQuantities
)

// Families returns all families that are made from snapshots, in no particular order.
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
	for _, some := range allFixed() {
		for id, f := range some.families {
			f.rank = cmp.Or(f.rank, some.rank)
			f.Labels = append(slices.Clone(some.labels), f.Labels...)
			f.named()
			if strings.HasPrefix(f.Name, "dra_pod_") {
				f.Groups = append(f.Groups, GroupPods)
			}
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
		addHeld(add, spec, isUnclaimed(q))
	}
	for id := range all {
		f := &all[id]
		if isDetail(f) {
			f.Groups = append(f.Groups, GroupDetails)
		}
		f.off = f.Name == "" || !choices.exports(f)
	}
	return &all
}

// named sets the type and the unit that follow from the name.
func (f *Family) named() {
	if strings.HasSuffix(f.Name, "_total") {
		f.Type = driver.Counter
	}
	switch {
	case strings.Contains(f.Name, "_seconds"):
		f.Unit = "seconds"
	case strings.HasSuffix(f.Name, "_ratio"):
		f.Unit = "ratio"
	}
}

// addHeld adds the families of a quantity of claims and pods, and of what is charged to none.
func addHeld(add func(first familyID, f Family, r rank), spec *driver.Spec, unclaimed bool) {
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
		if unclaimed {
			add(famUnclaimedQuantity, attributedFamily("dra_pod_unclaimed_", unclaimedHelp, spec, podLabelNames()), rankPod)
		}
		add(famUnattributedQuantity, attributedFamily(unattributed,
			"The unattributed part, which is charged to no claim. ", spec, deviceLabelNames()), rankUnattributed)
		if spec.Distributed {
			add(famClaimDistribution, distributionFamily(spec), rankClaim)
		}
	}
}

// isUnclaimed reports whether pods without a claim have a family of their own of a quantity, which
// rules add to that of claims. They need not read all pods for that.
func isUnclaimed(q driver.Quantity) bool {
	return q == driver.ActiveSeconds || q == driver.Energy || q == driver.IOBytes || q == driver.Power
}

// unattributed begins the names of the families of what is charged to no claim.
const unattributed = "dra_device_unattributed_"

const unclaimedHelp = "The part of a pod that has the device by a device plugin, without a claim. "

func deviceLabelNames() []string { return []string{"driver", "pool", "device"} }

func claimLabelNames() []string {
	return []string{"namespace", "resourceclaim_name", "driver", "pool", "device"}
}

func podLabelNames() []string { return []string{"namespace", "pod", "driver", "pool", "device"} }

func quantityFamily(prefix, help string, spec *driver.Spec, labels []string) Family {
	f := Family{
		Name: prefix + spec.Metric, Help: help + spec.Help, Unit: spec.Unit, Type: spec.Type,
		Labels: append(labels, labelNames(spec)...), Spec: spec, Origin: "sources",
	}
	switch spec.Name {
	case driver.Capacity.String():
		f.Origin = "ResourceSlices; netdev (speed)"
	case driver.MemoryUsedPeak.String(), driver.PowerPeak.String():
		f.Origin = ""
	}
	return f
}

func attributedFamily(prefix, help string, spec *driver.Spec, labels []string) Family {
	f := quantityFamily(prefix, help, spec, labels)
	f.Origin = "divided"
	if spec.Divided {
		f.Origin += "; of partitions, the parent's"
	}
	return f
}

// soleFamily returns the family of an undivided quantity, for claims that hold a device alone.
func soleFamily(spec *driver.Spec) Family {
	f := quantityFamily("dra_claim_", "", spec, claimLabelNames())
	f.Help += " Only for claims that hold the device or partition alone, and only for these values of " +
		spec.Labels[0].Name + ": " + strings.Join(spec.SoleLabels, ", ") + "."
	f.Origin = "the device's value"
	return f
}

// witnessedFamily returns the family of a witnessed quantity, for a kind of holder: claim or pod.
func witnessedFamily(prefix, holder string, spec *driver.Spec, labels []string) Family {
	if spec.Type != driver.Counter {
		f := quantityFamily(prefix, "The "+holder+"'s part, since it started to hold the device. ", spec, labels)
		f.Origin = ""
		return f
	}
	help := "Counted while the " + holder + " held the device, in full for each holder: do not sum over holders. " +
		"Absent until the first one. "
	if spec.Failure {
		help += "An error between two readings, at an unknown time, counts for each holder since the first. "
	}
	f := quantityFamily(prefix, help, spec, labels)
	f.Origin = "the device's increments, by time"
	return f
}

// distributionFamily returns the family of the distribution over time of a claim's gauge. Its name
// ends with the unit.
func distributionFamily(spec *driver.Spec) Family {
	return Family{
		Name: "dra_claim_" + strings.TrimSuffix(spec.Metric, spec.Unit) + "distribution_" + spec.Unit,
		Help: "Distribution over time of the claim's part, summed over its devices of the driver: the count is the number " +
			"of measured seconds, the sum is the integral. A native histogram; absent from text formats, except with " +
			"--histograms=classic. " + spec.Help,
		Unit: spec.Unit, Labels: []string{"namespace", "resourceclaim_name", "driver"},
		Spec: spec, Histogram: true,
	}
}

// kind returns the name of the family's type.
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
)

// Group is a group of families that one flag switches on and off together. A family may be in
// several groups: it is exported if all of them are on.
type Group string

// Flag returns the name of the group's flag, metrics.GROUP for most.
func (g Group) Flag() string {
	if g == GroupHistograms {
		return string(g)
	}
	return "metrics." + string(g)
}

// The groups.
const (
	GroupErrors         Group = "errors"          // errors and throttled time of claims and pods
	GroupPeaks          Group = "peaks"           // highest values of devices, claims and pods
	GroupPods           Group = "pods"            // all metrics of pods
	GroupQuantitySource Group = "quantity-source" // the source of each quantity of a device
	GroupTopology       Group = "topology"        // how close the devices of a pod are to each other
	GroupFit            Group = "fit"             // how much of its devices a claim has needed
	GroupEfficiency     Group = "efficiency"      // how well a claim uses the engines of its devices
	GroupLifecycle      Group = "lifecycle"       // how long claims take to be prepared and to become active
	GroupDetails        Group = "details"         // what no dashboard, rule or document of the project reads
	GroupHistograms     Group = "histograms"      // distributions over time of claims
)

// The choices for groups. All groups have Off, and all but GroupHistograms have On, which is the
// default of all but GroupQuantitySource and GroupDetails.
const (
	On      = "on"
	Off     = "off"
	Info    = "info"    // of GroupPods: only the identities of pods and what they hold
	Native  = "native"  // of GroupHistograms, its default: native histograms, only in protobuf
	Classic = "classic" // of GroupHistograms: also with classic buckets, in all formats
	// Estimates, of GroupQuantitySource, its default: only for quantities that are not measured
	// themselves.
	Estimates = "estimates"
)

// GroupInfo describes a group for flags and documents.
type GroupInfo struct {
	Group   Group
	Help    string
	Choices []string // the first one is the default
	// Series is the number of the group's series on the node of test/largenode: 64 devices with 15
	// readings each, and 500 pods with a claim each. Every device has errors there.
	Series int
}

// Groups returns all groups in the order of their flags.
func Groups() []GroupInfo {
	return []GroupInfo{
		{GroupErrors, "Errors and throttled time of claims and pods: on or off.", []string{On, Off}, 1626},
		{GroupPeaks, "Highest memory and power of devices, claims and pods: on or off.", []string{On, Off}, 2128},
		{
			GroupPods,
			"Metrics of pods: on, info (who they are and which devices they hold) or off.",
			[]string{On, Info, Off},
			8063,
		},
		{
			GroupQuantitySource,
			"The source of each quantity of a device: estimates (only quantities that are integrals, parts of a parent's " +
				"value, or estimates), on or off.",
			[]string{Estimates, On, Off},
			704,
		},
		{GroupTopology, "How close the devices of a pod are to each other: on or off.", []string{On, Off}, 0},
		{GroupFit, "How much of its devices a claim has needed: on or off.", []string{On, Off}, 0},
		{GroupEfficiency, "How busy the engines of a claim's devices are: on or off.", []string{On, Off}, 0},
		{
			GroupLifecycle, "How long the preparation and the first activity of claims take, by driver: on or off.",
			[]string{On, Off},
			0,
		},
		{
			GroupDetails, "Families that no dashboard, rule or document reads (deployments/SIZING.md lists them): off or on.",
			[]string{Off, On},
			3832,
		},
		{
			GroupHistograms,
			"Distributions over time of utilization, memory and power of each claim: native (native histograms, only in " +
				"protobuf), classic (also with classic buckets, in all formats: 22 to 34 series each; and with the buckets of " +
				"durations) or off.",
			[]string{Native, Classic, Off},
			1500,
		},
	}
}

// Choices has the values of the groups' flags. A group without an entry has its default.
type Choices map[Group]string

// Of returns the choice for a group.
func (c Choices) Of(g Group) string {
	if chosen := c[g]; chosen != "" {
		return chosen
	}
	all := Groups()
	return all[slices.IndexFunc(all, func(of GroupInfo) bool { return of.Group == g })].Choices[0]
}

// Has reports whether anything of a group is exported.
func (c Choices) Has(g Group) bool { return c.Of(g) != Off }

// exports reports whether the choices include a family.
func (c Choices) exports(f *Family) bool {
	return !slices.ContainsFunc(f.Groups, func(g Group) bool {
		chosen := c.Of(g)
		return chosen == Off || chosen == Info && !f.info
	})
}

// quantityGroups returns the groups of a quantity's family. first is the ID of the first family of
// the same kind.
func quantityGroups(first familyID, spec *driver.Spec) []Group {
	var out []Group
	if first == famClaimDistribution {
		return []Group{GroupHistograms}
	}
	switch {
	case spec.Name == "tensor_throughput" || spec.Name == "tensor_seconds":
		out = append(out, GroupEfficiency)
	case spec.Derived:
		out = append(out, GroupPeaks)
	case spec.Sharing == driver.Witnessed && (first == famClaimQuantity || first == famPodQuantity):
		out = append(out, GroupErrors)
	case spec.SoleLabels != nil && first == famClaimQuantity:
		out = append(out, GroupEfficiency)
	}
	if first == famPodQuantity || first == famUnclaimedQuantity {
		out = append(out, GroupPods)
	}
	return out
}

// isDetail reports whether no dashboard, rule or document of the project reads a family. A test of
// test/docs compares this with what they read.
func isDetail(f *Family) bool {
	switch f.Name {
	case "dra_claim_engine_utilization_ratio", "dra_claim_tensor_seconds_total", "dra_claim_tensor_throughput_ratio",
		"dra_claim_throttled_seconds_total", "dra_device_allocated_seconds_total", "dra_device_memory_used_peak_bytes",
		"dra_device_power_peak_watts", "dra_device_tensor_throughput_ratio", "dra_device_used_seconds_total",
		"dra_pod_allocated_seconds_total", "dra_pod_io_bytes_total", "dra_pod_power_peak_watts",
		"dra_pod_tensor_throughput_ratio":
		return true
	default:
		return strings.HasPrefix(f.Name, unattributed)
	}
}
