package exposition

import (
	"fmt"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Group is a group of families that is switched on and off together, by its flag. A family may be
// in several groups: it is exported if all of them are on.
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
	GroupPods           Group = "pods"            // everything of pods
	GroupQuantitySource Group = "quantity-source" // which source a quantity comes from
	GroupTopology       Group = "topology"        // whether the devices of a pod sit together
	GroupFit            Group = "fit"             // what a claim would have needed
	GroupEfficiency     Group = "efficiency"      // how well a claim uses the engines of its devices
	GroupLifecycle      Group = "lifecycle"       // how long claims take to be prepared and to become active
	GroupHistograms     Group = "histograms"      // distributions over time of claims
)

// The choices of a group. All groups have Off, and all but GroupHistograms On.
const (
	On        = "on"
	Off       = "off"
	Info      = "info"      // of GroupPods: only who the pods are and what they hold
	Native    = "native"    // of GroupHistograms, its default: native histograms, in protobuf alone
	Classic   = "classic"   // of GroupHistograms: with classic buckets too, in all formats
	Estimates = "estimates" // of GroupQuantitySource: only of quantities that are not measured themselves
)

// GroupInfo describes a group for flags and documents.
type GroupInfo struct {
	Group   Group
	Help    string
	Choices []string // the first one is the default
	// Series is how many series the group has on the node of test/largenode: 64 devices with 15
	// readings each and 500 pods with a claim each, while every device has errors.
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
			"Which source each quantity of a device comes from: on, estimates (only of those that are integrals, parts of a " +
				"parent's or estimates) or off.",
			[]string{On, Estimates, Off},
			704,
		},
		{GroupTopology, "Whether the devices of a pod sit together: on or off.", []string{On, Off}, 0},
		{GroupFit, "What a claim would have needed of what it holds: on or off.", []string{On, Off}, 0},
		{GroupEfficiency, "How busy the engines of a claim's devices are: on or off.", []string{On, Off}, 0},
		{
			GroupLifecycle, "How long claims take to be prepared and to become active, by driver: on or off.",
			[]string{On, Off},
			0,
		},
		{
			GroupHistograms,
			"How utilization, memory and power of each claim were distributed over time: native (native histograms, in " +
				"protobuf alone), classic (with classic buckets too, also in text: 22 to 34 series each) or off.",
			[]string{Native, Classic, Off},
			1500,
		},
	}
}

// Choices are the chosen values of the groups' flags. A group without one has its default, so that
// nil is the default of all.
type Choices map[Group]string

// Of returns the choice for a group.
func (c Choices) Of(g Group) string {
	if chosen := c[g]; chosen != "" {
		return chosen
	}
	switch g {
	case GroupHistograms:
		return Native
	case GroupErrors, GroupPeaks, GroupPods, GroupQuantitySource, GroupTopology, GroupFit, GroupEfficiency,
		GroupLifecycle:
		return On
	default:
		panic(fmt.Sprintf("there is no group %q", g))
	}
}

// Has reports whether anything of a group is exported.
func (c Choices) Has(g Group) bool { return c.Of(g) != Off }

// exports reports whether a family is exported.
func (c Choices) exports(f *Family) bool {
	return !slices.ContainsFunc(f.Groups, func(g Group) bool {
		chosen := c.Of(g)
		return chosen == Off || chosen == Info && !f.info
	})
}

// quantityGroups returns the groups of a quantity's family; first is that of the first quantity.
func quantityGroups(first familyID, spec *driver.Spec) []Group {
	var out []Group
	if first == famClaimDistribution {
		return []Group{GroupHistograms}
	}
	switch {
	case spec.Derived:
		out = append(out, GroupPeaks)
	case spec.Sharing == driver.Witnessed && (first == famClaimQuantity || first == famPodQuantity):
		out = append(out, GroupErrors)
	case spec.SoleLabels != nil && first == famClaimQuantity:
		out = append(out, GroupEfficiency)
	}
	if first == famPodQuantity {
		out = append(out, GroupPods)
	}
	return out
}
