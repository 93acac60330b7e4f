package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// knownTick is the knowledge about a device from one tick to the next.
type knownTick struct {
	since  time.Time
	shares []join.Share // with the use of their processes, or their own CPUs, since then
}

// knownTicks is the knowledge about a device, ordered by time.
type knownTicks []knownTick

// with adds the knowledge since the last tick. Decided times are dropped, except for one tick,
// since parts of own CPUs stay the same until the share ends.
func (k knownTicks) with(tick knownTick, decided time.Time) knownTicks {
	return append(slices.Delete(k, 0, max(k.at(decided)-1, len(k)-maxSegments, 0)), tick)
}

// at returns the index of the knowledge about a moment.
func (k knownTicks) at(moment time.Time) int {
	i := len(k) - 1
	for i > 0 && k[i].since.After(moment) {
		i--
	}
	return i
}

// cuts returns from, and the later times at which holds change or knowledge begins.
func (k knownTicks) cuts(all []interval, from time.Time) []time.Time {
	out := []time.Time{from}
	for i := range all {
		out = append(out, all[i].From, all[i].To)
	}
	for i := range k {
		out = append(out, k[i].since)
	}
	out = slices.DeleteFunc(out, func(t time.Time) bool { return t.Before(from) })
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// heldAt returns the shares that were held at a moment, with the pods that held them, divided by
// the knowledge about that moment.
func (k knownTicks) heldAt(
	all []interval, moment time.Time,
) (out []join.Share, owned []owners, divided join.Attribution) {
	for i := range all {
		h := &all[i]
		if h.From.After(moment) || !h.To.IsZero() && !h.To.After(moment) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].Compare(h.share.Allocation) != 0 || out[n-1].Admin != h.share.Admin {
			out, owned = append(out, *h.share), append(owned, owners{claim: h.by.claim})
			out[n].Pods = nil
		}
		last, of := &out[len(out)-1], &owned[len(owned)-1]
		if n := len(last.Pods); n == 0 || last.Pods[n-1] != h.pod {
			last.Pods, of.pods = append(last.Pods, h.pod), append(of.pods, h.by.pod)
		}
	}
	k.recall(out, k.at(moment))
	return out, owned, attributionOf(out, join.Divide(out))
}

// attributionOf returns the attribution of shares: by their use if that is known, else divided.
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

// recall sets the shares' use to that of a tick. Use by processes is known only if it is known for
// all of the shares' pods. Own CPUs stay the same until the share ends. If they were not known yet,
// their present use is assumed, as far as the other shares leave that much of the device.
func (k knownTicks) recall(shares []join.Share, tick int) {
	var taken, wanted join.Use
	var late []*join.Share
	byProcess, byCPUs := true, false
	for i := range shares {
		s := &shares[i]
		then := findShare(k[tick].shares, s)
		if then != nil {
			pods, admin := s.Pods, s.Admin
			*s = *then
			s.Pods, s.Admin = pods, admin
		}
		byProcess = byProcess && (s.Admin || then != nil && slices.Equal(s.Pods, then.Pods))
		known := then != nil || k.recallOwn(s, tick)
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

// recallOwn sets a share's own CPUs to those last known before a tick. It returns false if they
// were not known then.
func (k knownTicks) recallOwn(s *join.Share, tick int) bool {
	for j := tick - 1; j >= 0; j-- {
		if then := findShare(k[j].shares, s); then != nil {
			s.Own = then.Own
			return true
		}
	}
	return false
}

// divideAlike divides all shares of a device in the same way: by processes only if that is known
// for all, by own CPUs if that is known for one.
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

// within scales part down so that all of wanted fits beside taken.
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
