package exporter

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Bounds of what becomes a series. They are far above anything real, so that what is beyond them is an error.
const (
	maxLabelLength = 512  // bytes of a label's value
	maxReadings    = 512  // of one device
	maxMagnitude   = 1e24 // of a number; a counter of 64 bits ends at 1.8e19
)

// catalogue is the Spec of each quantity, made once for many readings.
type catalogue [driver.NumQuantities]driver.Spec

func newCatalogue() *catalogue {
	var c catalogue
	for q := range driver.NumQuantities {
		c[q] = q.Spec()
	}
	return &c
}

// unusable returns the reason for which a reading can't be believed, "" if it can. Values a little above 1 of a ratio
// (counters that were read a moment apart) become 1.
func (c *catalogue) unusable(r *driver.Reading) string {
	if r.Quantity >= driver.NumQuantities {
		return "unknown_quantity"
	}
	spec := &c[r.Quantity]
	switch {
	case math.IsNaN(r.Value) || math.IsInf(r.Value, 0):
		return "not_finite"
	case r.Value < 0 && spec.NonNegative:
		return "negative"
	case math.Abs(r.Value) > maxMagnitude || spec.Max > 0 && r.Value > spec.Max:
		return "out_of_range"
	case r.At.IsZero():
		return "no_time"
	case !labelled(spec, &r.Labels):
		return "label"
	}
	if spec.Unit == "ratio" {
		r.Value = min(r.Value, 1)
	}
	if r.Since.After(r.At) {
		r.Since = r.At
	}
	return ""
}

// labelled tells whether the labels are the quantity's: none more, and of those with a closed list one of it.
func labelled(spec *driver.Spec, labels *driver.Labels) bool {
	for i, value := range labels {
		switch {
		case i >= len(spec.Labels):
			if value != "" {
				return false
			}
		case spec.Labels[i].Values != nil:
			if !slices.Contains(spec.Labels[i].Values, value) {
				return false
			}
		case !usableLabel(value):
			return false
		}
	}
	return true
}

// ownedByLabel tells whether each value of the quantity's first label may come from another source: it has a closed list
// of them, and they do not exclude each other as the statuses of health do.
func (c *catalogue) ownedByLabel(q driver.Quantity) bool {
	labels := c[q].Labels
	return q != driver.Health && len(labels) > 0 && labels[0].Values != nil
}

func usableLabel(s string) bool { return len(s) <= maxLabelLength && utf8.ValidString(s) }

func usableLabels(labels ...string) bool {
	for _, s := range labels {
		if !usableLabel(s) {
			return false
		}
	}
	return true
}

func usableID(id driver.ID) bool { return usableLabels(id.Driver, id.Pool, id.Device) }

// usableEntry returns an inventory's entry without the facts that can't be labels or are there twice. The input's
// slices are not changed.
func usableEntry(e driver.Entry) (driver.Entry, int) {
	bad := 0
	for _, fact := range []*string{&e.UUID, &e.PCI, &e.Parent, &e.NetDev, &e.RDMADev, &e.Vendor, &e.Model, &e.DriverVersion, &e.NUMANode} {
		if !usableLabel(*fact) {
			*fact = ""
			bad++
		}
	}
	capacity, taints := len(e.Capacity), len(e.Taints)
	e.Capacity = usableAmounts(e.Capacity)
	e.Taints = usableTaints(e.Taints)
	return e, bad + capacity - len(e.Capacity) + taints - len(e.Taints)
}

// usableAmounts returns the amounts in order of their resources, of each the first that is a number. The input is not
// changed.
func usableAmounts(amounts []driver.Amount) []driver.Amount {
	usable := func(i int) bool {
		a := amounts[i]
		return a.Value >= 0 && a.Value <= maxMagnitude && usableLabel(a.Resource) && (i == 0 || amounts[i-1].Resource < a.Resource)
	}
	for i := range amounts {
		if !usable(i) {
			return cleanAmounts(amounts)
		}
	}
	return amounts
}

func cleanAmounts(amounts []driver.Amount) []driver.Amount {
	out := slices.DeleteFunc(slices.Clone(amounts), func(a driver.Amount) bool {
		return !(a.Value >= 0 && a.Value <= maxMagnitude) || !usableLabel(a.Resource)
	})
	slices.SortFunc(out, func(a, b driver.Amount) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), cmp.Compare(a.Value, b.Value))
	})
	return slices.CompactFunc(out, func(a, b driver.Amount) bool { return a.Resource == b.Resource })
}

func usableTaints(taints []driver.Taint) []driver.Taint {
	if len(taints) == 0 {
		return nil
	}
	var out []driver.Taint
	for _, t := range taints {
		if usableLabels(t.Key, t.Value, t.Effect) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// usableAllocation tells whether all that an allocation says of itself can be labels.
func usableAllocation(a *podresources.Allocation) bool {
	return usableID(a.Device) && usableLabels(a.Claim.Namespace, a.Claim.Name, a.ClaimUID, a.ShareID, a.Request, a.DeviceClass)
}

// usableHolders returns the holders that can be one, sorted: pods of the claim's namespace, since no other can refer to
// it. The input is not changed.
func usableHolders(a *podresources.Allocation) []podresources.Holder {
	unusable := func(h podresources.Holder) bool {
		return h.Namespace != a.Claim.Namespace || !usableLabels(h.Name, h.Container, h.UID, h.ClaimName)
	}
	if !slices.ContainsFunc(a.Holders, unusable) && slices.IsSortedFunc(a.Holders, compareHolders) {
		return a.Holders
	}
	out := slices.DeleteFunc(slices.Clone(a.Holders), unusable)
	slices.SortFunc(out, compareHolders)
	return slices.Compact(out)
}

// compareHolders brings those together that are one row of dra_pod_claim_info.
func compareHolders(a, b podresources.Holder) int {
	return cmp.Or(
		a.Pod.Compare(b.Pod), strings.Compare(a.Container, b.Container),
		strings.Compare(a.ClaimName, b.ClaimName), strings.Compare(a.UID, b.UID),
	)
}
