package exposition

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
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
