package exporter

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Attribution is how a whole is divided among those who share it.
type Attribution string

// The ways, best first.
const (
	AttributionNone      Attribution = ""          // nobody to divide among
	AttributionExclusive Attribution = "exclusive" // one has all
	AttributionProcess   Attribution = "process"   // by what the holders' processes use
	AttributionCapacity  Attribution = "capacity"  // by consumed capacity (KEP-5075)
	AttributionEqual     Attribution = "equal"     // nothing is known: in equal parts
)

// divide sets the shares' weights, which sum to 1 unless every share is admin access, and returns how the device is
// divided among claims.
//
// Two shares of one claim are two parts. By capacity a share's part is its consumed capacity over that of all
// present shares; where they consume several resources, the mean of these parts.
func divide(shares []Share) Attribution {
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

// seenOwner tells whether the claim of a share, or the pod that holds it by a device plugin, has one of the others too.
func seenOwner(others []Share, s *Share) bool {
	for i := range others {
		other := &others[i]
		if !other.Admin && other.Claim == s.Claim && (!s.ByPlugin() || slices.Equal(other.Pods, s.Pods)) {
			return true
		}
	}
	return false
}

// byCapacity weighs the shares by the resources that all of them consume. It changes nothing and returns false where
// there is no such resource.
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
			shares[i].Weight = capacityPart(shares[i].Consumed, total) / float64(resources)
		}
	}
	return true
}

func capacityPart(consumed []driver.Amount, total map[string]float64) float64 {
	sum := 0.0
	for _, c := range consumed {
		if t := total[c.Resource]; t > 0 {
			sum += c.Value / t
		}
	}
	return sum
}
