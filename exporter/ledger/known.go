package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// knownTick is what is known of a device from one tick to the next.
type knownTick struct {
	since  time.Time
	shares []join.Share // with what their processes, or own CPUs, used since then
}

// note keeps what is known of the device since the last tick, as long as that is not decided; and
// of one more tick, since parts of own CPUs stay what they were until the share ends.
func (d *deviceBook) note(k knownTick) {
	drop := max(d.knownAt(d.accrued)-1, len(d.known)-maxSegments, 0)
	d.known = append(slices.Delete(d.known, 0, drop), k)
}

// knownAt returns the index of what was known of a moment.
func (d *deviceBook) knownAt(moment time.Time) int {
	i := len(d.known) - 1
	for i > 0 && d.known[i].since.After(moment) {
		i--
	}
	return i
}

// recall gives shares what was known of them in a tick. The use by processes is known only if it is
// of all their pods. Own CPUs stay what they were until the share ends; those that were not known
// yet did what they do now, as far as the others leave that much of the device.
func (d *deviceBook) recall(shares []join.Share, tick int) {
	var taken, wanted join.Use
	var late []*join.Share
	byProcess, byCPUs := true, false
	for i := range shares {
		s := &shares[i]
		k := findShare(d.known[tick].shares, s)
		if k != nil {
			pods, admin := s.Pods, s.Admin
			*s = *k
			s.Pods, s.Admin = pods, admin
		}
		byProcess = byProcess && (s.Admin || k != nil && slices.Equal(s.Pods, k.Pods))
		known := k != nil
		if !known {
			known = d.recallOwn(s, tick)
		}
		switch {
		case s.Admin || s.Own == nil:
		case !known:
			wanted.Add(s.Own.Use)
			late = append(late, s)
		default:
			taken.Add(s.Own.Use)
		}
		byCPUs = byCPUs || !s.Admin && s.Own != nil
	}
	for _, s := range late {
		s.Own = &join.Own{Part: s.Own.Part, Use: within(s.Own.Use, wanted, taken), Unknown: s.Own.Unknown}
	}
	divideAlike(shares, byProcess, byCPUs)
}

// recallOwn gives a share the own CPUs that it had last before a tick, and reports whether it was
// known then.
func (d *deviceBook) recallOwn(s *join.Share, tick int) bool {
	for j := tick - 1; j >= 0; j-- {
		if k := findShare(d.known[j].shares, s); k != nil {
			s.Own = k.Own
			return true
		}
	}
	return false
}

// divideAlike makes all shares of a device be divided by the same: by processes only if all are,
// by own CPUs if one is.
func divideAlike(shares []join.Share, byProcess, byCPUs bool) {
	for i := range shares {
		s := &shares[i]
		if !byProcess {
			s.Uses, s.ByProcess = nil, false
		}
		if byCPUs && !s.Admin && s.Own == nil {
			s.Own = &join.Own{}
		}
	}
}

// within returns a part of what is wanted in all, so that it fits in what is left of a device.
func within(part, wanted, taken join.Use) join.Use {
	for b := range part {
		if left := max(0, 1-taken[b]); wanted[b] > left {
			part[b] *= left / wanted[b]
		}
	}
	return part
}

// findShare returns the share of the same allocation, nil if there is none.
func findShare(shares []join.Share, s *join.Share) *join.Share {
	i, found := slices.BinarySearchFunc(shares, s, func(other join.Share, s *join.Share) int {
		return other.Compare(s.Allocation)
	})
	if !found {
		return nil
	}
	return &shares[i]
}

// heldAt returns the shares that were held at a moment, with the pods that held them, divided by
// what was known of them at that time.
func (d *deviceBook) heldAt(
	holdings []holding, moment time.Time,
) (out []join.Share, owned []owners, divided join.Attribution) {
	for i := range holdings {
		h := &holdings[i]
		if h.from.After(moment) || !h.to.IsZero() && !h.to.After(moment) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Compare(h.share.Allocation) != 0 || out[n-1].Admin != h.share.Admin {
			out, owned = append(out, *h.share), append(owned, owners{claim: h.owner.claim})
			out[n].Pods = nil
		}
		last, of := &out[len(out)-1], &owned[len(owned)-1]
		if n := len(last.Pods); n == 0 || last.Pods[n-1] != h.pod {
			last.Pods, of.pods = append(last.Pods, h.pod), append(of.pods, h.owner.pod)
		}
	}
	d.recall(out, d.knownAt(moment))
	return out, owned, attributionOf(out, join.Divide(out))
}

// attributionOf returns how shares that were divided by weight are divided by what is known of
// their use.
func attributionOf(shares []join.Share, divided join.Attribution) join.Attribution {
	for i := range shares {
		switch s := &shares[i]; {
		case s.Admin:
		case s.Own != nil:
			return join.AttributionCPUs
		case s.ByProcess && divided != join.AttributionExclusive:
			return join.AttributionProcess
		}
	}
	return divided
}
