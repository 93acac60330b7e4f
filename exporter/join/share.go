package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/podresources"
)

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

// sharesOf returns the allocations that pods hold.
func sharesOf(allocations []podresources.Allocation) []Share {
	shares := make([]Share, 0, len(allocations))
	for i := range allocations {
		if s := newShare(allocations[i]); len(s.Holders) > 0 {
			shares = append(shares, s)
		}
	}
	return shares
}

func newShare(a podresources.Allocation) Share {
	a.Holders = cleanHolders(&a)
	s := Share{Allocation: a, Pods: make([]podresources.Pod, 0, len(a.Holders))}
	for _, h := range a.Holders {
		s.Pods = append(s.Pods, h.Pod)
	}
	s.normalize()
	return s
}

func (s *Share) normalize() {
	if !slices.IsSortedFunc(s.Pods, podresources.Pod.Compare) {
		slices.SortFunc(s.Pods, podresources.Pod.Compare)
	}
	s.Pods = slices.Compact(s.Pods)
}

// mergeShares sorts the shares of a device and merges those of the same allocation.
func mergeShares(shares []Share) []Share {
	return mergeSharesBy(shares, podresources.Allocation.Compare)
}

// mergeSharesBy merges shares that compare as equal.
func mergeSharesBy(shares []Share, compare func(a, b podresources.Allocation) int) []Share {
	if len(shares) < 2 {
		return shares
	}
	slices.SortStableFunc(shares, func(a, b Share) int { return compare(a.Allocation, b.Allocation) })
	out := shares[:1]
	for _, s := range shares[1:] {
		last := &out[len(out)-1]
		if compare(last.Allocation, s.Allocation) != 0 {
			out = append(out, s)
			continue
		}
		last.Holders = slices.Concat(last.Holders, s.Holders)
		slices.SortFunc(last.Holders, compareHolders)
		last.Holders = slices.Compact(last.Holders)
		last.Pods = slices.Concat(last.Pods, s.Pods)
		last.normalize()
	}
	return out
}
