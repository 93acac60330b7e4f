package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
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
	owners, claims := 0, 0
	for i := range shares {
		shares[i].Weight = 0
		if shares[i].Admin {
			continue
		}
		if owners == 0 || !seenOwner(shares[:i], &shares[i]) {
			claims++
		}
		owners++
	}
	if owners == 0 {
		return AttributionNone
	}
	if byCPUs(shares) {
		return AttributionCPUs
	}
	attribution := AttributionEqual
	if byCapacity(shares) {
		attribution = AttributionCapacity
	} else {
		for i := range shares {
			if !shares[i].Admin {
				shares[i].Weight = 1 / float64(owners)
			}
		}
	}
	if claims == 1 {
		return AttributionExclusive
	}
	return attribution
}

// seenOwner reports whether the owner of a share also holds one of the others. The owner is its
// claim, or the pod that holds it by a device plugin.
func seenOwner(others []Share, s *Share) bool {
	for i := range others {
		other := &others[i]
		if !other.Admin && other.Claim == s.Claim && (!s.ByPlugin() || slices.Equal(other.Pods, s.Pods)) {
			return true
		}
	}
	return false
}

// byCapacity sets the weights by the resources that all shares consume. Without such a resource, it
// changes nothing and returns false.
func byCapacity(shares []Share) bool {
	total, common := map[string]float64{}, map[string]int{}
	owners := 0
	for i := range shares {
		if shares[i].Admin {
			continue
		}
		owners++
		for _, c := range shares[i].Consumed {
			if c.Value > 0 {
				total[c.Resource] += c.Value
				common[c.Resource]++
			}
		}
	}
	resources := 0
	for name, n := range common {
		if n == owners {
			resources++
		} else {
			delete(total, name)
		}
	}
	if owners < 2 || resources == 0 {
		return false
	}
	for i := range shares {
		if !shares[i].Admin {
			shares[i].Weight = capacityFraction(shares[i].Consumed, total) / float64(resources)
		}
	}
	return true
}

func capacityFraction(consumed []driver.Amount, total map[string]float64) float64 {
	sum := 0.0
	for _, c := range consumed {
		if t := total[c.Resource]; t > 0 {
			sum += c.Value / t
		}
	}
	return sum
}
