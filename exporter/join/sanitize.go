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
	maxMagnitude   = 1e24 // of a reading; a counter of 64 bits ends at 1.8e19
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

// cleanHolders returns the holders, sorted, each once. Only pods of the claim's namespace count,
// since no others can refer to the claim. It does not change its argument.
func cleanHolders(a *podresources.Allocation) []podresources.Holder {
	foreign := func(h podresources.Holder) bool { return h.Namespace != a.Claim.Namespace }
	if !slices.ContainsFunc(a.Holders, foreign) && slices.IsSortedFunc(a.Holders, compareHolders) {
		return a.Holders
	}
	out := slices.DeleteFunc(slices.Clone(a.Holders), foreign)
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
