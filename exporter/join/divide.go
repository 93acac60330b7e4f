package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Attribution is how a device is divided among its claims, or a claim's part among its pods.
type Attribution string

// The attributions, the most exact first.
const (
	AttributionNone      Attribution = ""          // no claim, or admin access
	AttributionExclusive Attribution = "exclusive" // one claim or pod has all
	AttributionCPUs      Attribution = "cpus"      // each claim has what its own CPUs do
	AttributionProcess   Attribution = "process"   // by what the holders' processes use
	AttributionCapacity  Attribution = "capacity"  // by consumed capacity (KEP-5075)
	AttributionEqual     Attribution = "equal"     // nothing is known: equal parts
)

// Certain reports whether it is known what each of the claims does.
func (a Attribution) Certain() bool {
	return a == AttributionExclusive || a == AttributionCPUs || a == AttributionProcess
}

// Guessed reports whether a claim may have done another part of what the device did than it has of
// it.
func (a Attribution) Guessed() bool {
	return a == AttributionProcess || a == AttributionCapacity || a == AttributionEqual
}

// LessCertain reports whether the attribution is less exact than another one.
func (a Attribution) LessCertain(than Attribution) bool {
	return slices.Index(Attributions(), a) > slices.Index(Attributions(), than)
}

// Attributions returns the attributions, without AttributionNone.
func Attributions() []Attribution {
	return []Attribution{
		AttributionExclusive, AttributionCPUs, AttributionProcess, AttributionCapacity, AttributionEqual,
	}
}

// Divide sets the weights of shares and returns how the device is divided among claims. The weights
// sum to 1, unless every share has admin access.
//
// Two shares of one claim count twice. By capacity, the weight of a share is its consumed capacity
// divided by that of all shares; where the shares consume several resources, it is the mean over
// these. Where all shares have CPUs of their own, the weight is by their number.
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

// seenOwner reports whether the claim of a share, or the pod that holds it by a device plugin,
// holds one of the others too.
func seenOwner(others []Share, s *Share) bool {
	for i := range others {
		other := &others[i]
		if !other.Admin && other.Claim == s.Claim && (!s.ByPlugin() || slices.Equal(other.Pods, s.Pods)) {
			return true
		}
	}
	return false
}

// byCapacity sets the weights by the resources that all shares consume. If there is no such
// resource, it changes nothing and returns false.
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
