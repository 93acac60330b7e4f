package join

import (
	"cmp"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// settleOwners sorts the device's readings and keeps those of one source for each quantity: the
// first one, in order of precedence. If the first label has a closed list of values (a link, an
// engine), each value has an owner of its own.
func (j *joiner) settleOwners(d *Device) {
	d.OtherUtilization = 0
	all := d.Readings
	slices.SortFunc(all, func(a, b Reading) int {
		if c := compareReadings(&a, &b); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), cmp.Compare(a.sample, b.sample),
			compareValues(a.Reading, b.Reading))
	})
	kept := all[:0]
	for len(all) > 0 {
		n, owner := j.ownerGroup(all)
		for _, r := range all[:n] {
			switch {
			case r.precedence != owner && r.Quantity == driver.Utilization:
				d.OtherUtilization = max(d.OtherUtilization, r.Value)
			case r.precedence != owner:
			case len(kept) > 0 && compareReadings(&r, &kept[len(kept)-1]) == 0:
				j.rejectValue(r.Origin.Source, driver.ReasonDuplicate, &r.Reading)
			case len(kept) == MaxReadings:
				j.rejectValue(r.Origin.Source, driver.ReasonTooMany, &r.Reading)
			default:
				kept = append(kept, r)
			}
		}
		all = all[n:]
	}
	d.Readings = kept
}

// ownerGroup returns how many of the first sorted readings must come from one source, and the
// precedence of that source.
func (j *joiner) ownerGroup(readings []Reading) (n, owner int) {
	first := &readings[0]
	byLabel := ownedByLabel(j.catalogue.Spec(first.Quantity))
	owner = first.precedence
	for n < len(readings) && readings[n].Quantity == first.Quantity &&
		(!byLabel || readings[n].Labels[0] == first.Labels[0]) {
		owner = min(owner, readings[n].precedence)
		n++
	}
	return n, owner
}

func compareReadings(a, b *Reading) int {
	if a.Quantity != b.Quantity { // mostly true, which saves the comparison of labels
		return cmp.Compare(a.Quantity, b.Quantity)
	}
	return a.Labels.Compare(&b.Labels)
}
