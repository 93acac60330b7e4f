package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Attribution is how a device is divided among claims, or a claim's part among pods.
type Attribution string

// The attributions, the most exact first.
const (
	AttributionNone      Attribution = ""          // no claim, or only admin access
	AttributionExclusive Attribution = "exclusive" // one claim or pod has everything
	AttributionCPUs      Attribution = "cpus"      // each claim has the work of its own CPUs
	AttributionProcess   Attribution = "process"   // by the use of the holders' processes
	AttributionCapacity  Attribution = "capacity"  // by consumed capacity (KEP-5075)
	AttributionEqual     Attribution = "equal"     // equal parts, since nothing better is known
)

// Certain reports whether the work of each claim is known.
func (a Attribution) Certain() bool {
	return a == AttributionExclusive || a == AttributionCPUs || a == AttributionProcess
}

// Guessed reports whether the real parts of claims may differ from the computed ones.
func (a Attribution) Guessed() bool {
	return a == AttributionProcess || a == AttributionCapacity || a == AttributionEqual
}

// LessCertain reports whether the attribution is less exact than another.
func (a Attribution) LessCertain(than Attribution) bool {
	return slices.Index(Attributions(), a) > slices.Index(Attributions(), than)
}

// Attributions returns the attributions, without AttributionNone.
func Attributions() []Attribution {
	return []Attribution{
		AttributionExclusive, AttributionCPUs, AttributionProcess, AttributionCapacity, AttributionEqual,
	}
}

// Divide sets the weights of shares and returns the attribution among claims. The weights sum to 1,
// unless every share has admin access.
//
// Two shares of one claim count twice. By capacity, the weight of a share is its consumed capacity
// divided by that of all shares; for several resources, it is the mean over them. If all shares
// have CPUs of their own, the weight is by their number.
func Divide(shares []Share) Attribution {
	owners := make([]*Share, 0, len(shares))
	alone := true
	for i := range shares {
		s := &shares[i]
		s.Weight = 0
		if !s.Admin {
			owners = append(owners, s)
			alone = alone && sameOwner(owners[0], s)
		}
	}
	switch {
	case len(owners) == 0:
		return AttributionNone
	case byCPUs(owners):
		return AttributionCPUs
	}
	attribution := AttributionEqual
	if byCapacity(owners) {
		attribution = AttributionCapacity
	} else {
		for _, s := range owners {
			s.Weight = 1 / float64(len(owners))
		}
	}
	if alone {
		return AttributionExclusive
	}
	return attribution
}

// sameOwner reports whether both shares have one owner: a claim, or the pod that holds the device
// by a device plugin.
func sameOwner(a, b *Share) bool {
	return a.Claim == b.Claim && (!a.ByPlugin() || slices.Equal(a.Pods, b.Pods))
}

// byCapacity sets the weights by the resources that all shares consume. Without such a resource, it
// changes nothing and returns false.
func byCapacity(owners []*Share) bool {
	total, common := map[string]float64{}, map[string]int{}
	for _, s := range owners {
		for _, c := range s.Consumed {
			if c.Value > 0 {
				total[c.Resource] += c.Value
				common[c.Resource]++
			}
		}
	}
	for name, n := range common {
		if n != len(owners) {
			delete(total, name)
		}
	}
	if len(owners) < 2 || len(total) == 0 {
		return false
	}
	for _, s := range owners {
		for _, c := range s.Consumed {
			if t := total[c.Resource]; t > 0 {
				s.Weight += c.Value / t
			}
		}
		s.Weight /= float64(len(total))
	}
	return true
}

// byCPUs sets the weights by the number of CPUs of each share. If a share has none, it changes
// nothing and returns false.
func byCPUs(owners []*Share) bool {
	all := 0
	for _, s := range owners {
		if len(s.CPUs) == 0 {
			return false
		}
		all += len(s.CPUs)
	}
	for _, s := range owners {
		s.Weight = float64(len(s.CPUs)) / float64(all)
	}
	return true
}

// Share is one allocation of a device to one claim.
type Share struct {
	podresources.Allocation
	Pods   []podresources.Pod // distinct pods of Holders, sorted
	Weight float64            // its part of the device: the weights of a held device sum to 1; 0 for admin access
	Uses   []Use              // the part of the device that each pod's processes used; nil: unknown
	// Sampled reports that the utilization by process is from few samples: none of a process is no
	// proof that it did nothing.
	Sampled bool
	// ByProcess reports whether the utilization by the pods' processes is known.
	ByProcess bool
	// Own is the share's own part, if claims have CPUs of their own in the device, else nil. The
	// share's pods have equal parts of it.
	Own *Own
}

// sharesOf returns the allocations that pods hold, sorted. Those that compare as equal are one
// share.
func sharesOf(allocations []podresources.Allocation, compare func(a, b podresources.Allocation) int) []Share {
	held := make([]Share, 0, len(allocations))
	for i := range allocations {
		s := Share{Allocation: allocations[i]}
		if s.Holders = cleanHolders(&allocations[i]); len(s.Holders) > 0 {
			held = append(held, s)
		}
	}
	slices.SortStableFunc(held, func(a, b Share) int { return compare(a.Allocation, b.Allocation) })
	shares := held[:0]
	for _, s := range held {
		if n := len(shares); n > 0 && compare(shares[n-1].Allocation, s.Allocation) == 0 {
			s.Holders = sortedHolders(slices.Concat(shares[n-1].Holders, s.Holders))
			shares[n-1].Holders = s.Holders
			continue
		}
		shares = append(shares, s)
	}
	for i := range shares {
		s := &shares[i]
		s.Pods = make([]podresources.Pod, 0, len(s.Holders))
		for _, h := range s.Holders {
			s.Pods = append(s.Pods, h.Pod)
		}
		s.Pods = slices.Compact(s.Pods)
	}
	return shares
}

// Own is a share's part of a device that is a group of CPUs, of which each claim has its own.
type Own struct {
	Part float64 // of the device's CPUs; a CPU of several shares counts in equal parts
	Use  Use     // the part of all CPUs' work that these CPUs do
	// Unknown reports that the driver has prepared the claim, but its CPUs are unknown: the claim may
	// be active whenever the device is.
	Unknown bool
}

// hasOwnCPUs reports whether claims have CPUs of their own in the device, known or not.
func (d *Device) hasOwnCPUs() bool {
	return slices.ContainsFunc(d.Shares, func(s Share) bool { return !s.Admin && s.OwnCPUs })
}

// keepBusy records the utilization of a CPU. The first source that reports one counts.
func (f *deviceFacts) keepBusy(d *Device, cpu int, utilization float64) {
	if !d.hasOwnCPUs() {
		return
	}
	if f.busy == nil {
		f.busy = make(map[int]float64, len(d.Entry.CPUs))
	}
	if _, known := f.busy[cpu]; !known {
		f.busy[cpu] = utilization
	}
}

// divideByCPUs computes what each share's own CPUs do. It returns false if claims have no CPUs of
// their own. The work of other CPUs is unattributed. Shares whose CPUs are unknown, or not prepared
// yet, have none of it. If the utilization of a CPU is unknown, all CPUs are taken to be equally
// busy.
func divideByCPUs(d *Device, busy map[int]float64) bool {
	if !d.hasOwnCPUs() {
		return false
	}
	d.Shares = slices.Clone(d.Shares) // other results share them
	owners := map[int]int{}
	for i := range d.Shares {
		if s := &d.Shares[i]; !s.Admin {
			for _, cpu := range s.CPUs {
				owners[cpu]++
			}
		}
	}
	all := 0.0
	if len(busy) == len(d.Entry.CPUs) {
		for _, utilization := range busy {
			all += utilization
		}
	}
	for i := range d.Shares {
		s := &d.Shares[i]
		if s.Admin {
			continue
		}
		if len(s.CPUs) == 0 {
			s.Own = &Own{Unknown: s.State == podresources.StatePrepared}
			continue
		}
		part, used := 0.0, 0.0
		for _, cpu := range s.CPUs {
			part += 1 / float64(owners[cpu])
			used += busy[cpu] / float64(owners[cpu])
		}
		s.Own = &Own{Part: part / float64(len(d.Entry.CPUs))}
		s.Own.Use = Evenly(s.Own.Part)
		if all > 0 {
			s.Own.Use[driver.ByTime], s.Own.Use[driver.ByWork] = used/all, used/all
		}
	}
	d.Attribution = AttributionCPUs
	return true
}

// Part is a partition of a parent device in a span of time, for [DivideParent].
type Part struct {
	Share    float64 // the partition's part of the parent, above 0
	Activity float64 // mean utilization, 0 to 1; below 0: unknown
	Held     bool    // a claim or pod held it

	Fraction float64 // the part of what the parent did; set by DivideParent
}

// counts reports whether the partition gets a part of what the parent did: it was held or active.
// Partitions that do not exist get none.
func (p *Part) counts() bool { return p.Share > 0 && (p.Held || p.Activity > 0) }

// DivideParent divides what only a parent measures (power, energy) among its partitions. idle, from
// 0 to 1, is the part that the parent would have used without any activity. A partition gets
//
//   - of the idle part, its share of the parent;
//   - of the active part, a part in proportion to activity × share. If its activity is unknown, or
//     no partition was active, it gets its share; the others divide the rest.
//
// The fractions sum to at most 1; the rest is the parent's own. Shares that sum to more than 1 are
// scaled down to 1.
func DivideParent(parts []Part, idle float64) {
	total, unknown, work := 0.0, 0.0, 0.0
	for i := range parts {
		p := &parts[i]
		p.Fraction = 0
		if !p.counts() {
			continue
		}
		total += p.Share
		if p.Activity < 0 {
			unknown += p.Share
		} else {
			work += p.Share * p.Activity
		}
	}
	scale := 1 / max(1, total)
	for i := range parts {
		p := &parts[i]
		if !p.counts() {
			continue
		}
		share := p.Share * scale
		active := share
		if p.Activity >= 0 && work > 0 {
			active = max(0, 1-unknown*scale) * (p.Share * p.Activity / work)
		}
		p.Fraction = idle*share + (1-idle)*active
	}
}
