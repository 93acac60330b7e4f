package join

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Bounds of what becomes a series, far above real values: a value beyond them is an error.
const (
	maxLabelLength = 512  // bytes of a label's value
	MaxReadings    = 512  // of one device
	maxMagnitude   = 1e24 // of a number; a counter of 64 bits ends at 1.8e19
)

// RejectReading returns why a reading of a kind of device is none, "" if it is one. It is the gate
// for the readings of all sources; the ledger has that for what earlier readings say. A ratio a
// little above 1, from counters that were read a moment apart, becomes 1.
func RejectReading(catalogue driver.Catalogue, r *driver.Reading, of driver.Kind) driver.Reason {
	if !catalogue.Has(r.Quantity) {
		return driver.ReasonUnknownQuantity
	}
	spec := catalogue.Spec(r.Quantity)
	switch {
	case spec.Derived:
		return driver.ReasonUnknownQuantity
	case math.Abs(r.Value) > maxMagnitude && !math.IsInf(r.Value, 0):
		return driver.ReasonOutOfRange
	case r.At.IsZero():
		return driver.ReasonNoTime
	case !validLabelValues(spec, &r.Labels):
		return driver.ReasonLabel
	}
	if reason := spec.Check(r.Value); reason != "" {
		return reason
	}
	if spec.IsAbsent(r.Value, of) {
		return driver.ReasonZero
	}
	if spec.Unit == "ratio" {
		r.Value = min(r.Value, 1)
	}
	return ""
}

// validLabelValues reports whether a quantity may have these labels: no more than it has, and only
// values of the list if it is closed.
func validLabelValues(spec *driver.Spec, labels *driver.Labels) bool {
	for i, value := range labels {
		switch {
		case i >= len(spec.Labels):
			if value != "" {
				return false
			}
		case spec.Labels[i].Values != nil:
			if !spec.Labels[i].Accepts(value) {
				return false
			}
		case !validLabel(value):
			return false
		}
	}
	return true
}

// ownedByLabel reports whether different sources may own different values of the quantity's first
// label: the label has a closed list of values that do not exclude each other, as the statuses of
// health do.
func ownedByLabel(spec *driver.Spec) bool {
	return !spec.State && len(spec.Labels) > 0 && spec.Labels[0].Values != nil
}

// validLabel reports whether a text may be a label's value: short enough, UTF-8, and without
// control characters, which would act on a reader's terminal. Line ends are allowed, since every
// format escapes them.
func validLabel(s string) bool {
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	return len(s) <= maxLabelLength && utf8.ValidString(s) && !strings.ContainsFunc(s, control)
}

func validLabels(labels ...string) bool {
	for _, s := range labels {
		if !validLabel(s) {
			return false
		}
	}
	return true
}

func validID(id driver.ID) bool { return validLabels(id.Driver, id.Pool, id.Device) }

// cleanEntry removes facts that can't be labels, and repeated ones, and returns their number. It
// does not change the entry's slices.
func cleanEntry(e driver.Entry) (driver.Entry, int) {
	bad := 0
	for _, fact := range []*string{
		&e.UUID, &e.PCI, &e.Parent, &e.NetDev, &e.RDMADev, &e.Vendor, &e.Model, &e.Profile, &e.Serial, &e.FirmwareVersion,
		&e.DriverVersion, &e.CUDAVersion, &e.NUMANode, &e.PCIeRoot,
	} {
		if !validLabel(*fact) {
			*fact = ""
			bad++
		}
	}
	if !validShare(e.ParentShare) {
		e.ParentShare = 0
		bad++
	}
	capacity, taints := len(e.Capacity), len(e.Taints)
	e.Capacity = cleanAmounts(e.Capacity)
	e.Taints = cleanTaints(e.Taints)
	return e, bad + capacity - len(e.Capacity) + taints - len(e.Taints)
}

// validShare reports whether a part of a parent is in range; 0 is unknown.
func validShare(share float64) bool { return share >= 0 && share <= 1 }

// cleanAmounts returns the finite amounts, sorted by resource, each once. It does not change its
// argument.
func cleanAmounts(amounts []driver.Amount) []driver.Amount {
	usable := func(i int) bool {
		a := amounts[i]
		return a.Value >= 0 && a.Value <= maxMagnitude && validLabel(a.Resource) && (i == 0 ||
			amounts[i-1].Resource < a.Resource)
	}
	for i := range amounts {
		if !usable(i) {
			return sortAmounts(amounts)
		}
	}
	return amounts
}

func sortAmounts(amounts []driver.Amount) []driver.Amount {
	out := slices.DeleteFunc(slices.Clone(amounts), func(a driver.Amount) bool {
		return !(a.Value >= 0 && a.Value <= maxMagnitude) || !validLabel(a.Resource)
	})
	slices.SortFunc(out, func(a, b driver.Amount) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), cmp.Compare(a.Value, b.Value))
	})
	return slices.CompactFunc(out, func(a, b driver.Amount) bool { return a.Resource == b.Resource })
}

func cleanTaints(taints []driver.Taint) []driver.Taint {
	if len(taints) == 0 {
		return nil
	}
	var out []driver.Taint
	for _, t := range taints {
		if validLabels(t.Key, t.Value, t.Effect, t.Rule) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// validAllocation reports whether all fields of an allocation can be labels.
func validAllocation(a *podresources.Allocation) bool {
	return validID(
		a.Device,
	) && validLabels(a.Claim.Namespace, a.Claim.Name, a.ClaimUID, a.ShareID, a.Request, a.DeviceClass)
}

// cleanHolders returns the usable holders, sorted. Only pods of the claim's namespace are usable,
// since no others can refer to the claim. It does not change its argument.
func cleanHolders(a *podresources.Allocation) []podresources.Holder {
	unusable := func(h podresources.Holder) bool {
		return h.Namespace != a.Claim.Namespace || !validLabels(h.Name, h.Container, h.UID, h.ClaimName)
	}
	if !slices.ContainsFunc(a.Holders, unusable) && slices.IsSortedFunc(a.Holders, compareHolders) {
		return a.Holders
	}
	out := slices.DeleteFunc(slices.Clone(a.Holders), unusable)
	slices.SortFunc(out, compareHolders)
	return slices.Compact(out)
}

// compareHolders sorts holders in the same row of dra_pod_claim_info next to each other.
func compareHolders(a, b podresources.Holder) int {
	return cmp.Or(
		a.Pod.Compare(b.Pod), strings.Compare(a.Container, b.Container),
		strings.Compare(a.ClaimName, b.ClaimName), strings.Compare(a.UID, b.UID),
	)
}
