package divide

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
)

// maxTicks limits the ticks of [Known], and the readings of an [Activity].
const maxTicks = 512

// Known is what was known about a device at its ticks, ordered by time.
type Known []Tick

// Tick is what is known about a device from one tick to the next.
type Tick struct {
	Since  time.Time
	Shares []join.Share // with the use of their processes, or their own CPUs, since then
}

// With adds the knowledge since the last tick. Decided times are dropped, except for one tick,
// since parts of own CPUs stay the same until the share ends.
func (k Known) With(tick Tick, decided time.Time) Known {
	return append(slices.Delete(k, 0, max(k.at(decided)-1, len(k)-maxTicks, 0)), tick)
}

// at returns the index of the knowledge about a moment.
func (k Known) at(moment time.Time) int {
	i := len(k) - 1
	for i > 0 && k[i].Since.After(moment) {
		i--
	}
	return i
}

// Cuts returns a time, and those of the given ones and of the ticks that are later, in order.
func (k Known) Cuts(from time.Time, others ...time.Time) []time.Time {
	out := slices.Concat([]time.Time{from}, others)
	for i := range k {
		out = append(out, k[i].Since)
	}
	out = slices.DeleteFunc(out, func(t time.Time) bool { return t.Before(from) })
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// Divide sets the shares' use to what is known about a moment. It returns how they divide the
// device: by their use if that is known.
func (k Known) Divide(shares []join.Share, moment time.Time) join.Attribution {
	k.recall(shares, k.at(moment))
	divided := join.Divide(shares)
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
func (k Known) recall(shares []join.Share, tick int) {
	var taken, wanted join.Use
	var late []*join.Share
	byProcess, byCPUs := true, false
	for i := range shares {
		s := &shares[i]
		then := findShare(k[tick].Shares, s)
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
func (k Known) recallOwn(s *join.Share, tick int) bool {
	for j := tick - 1; j >= 0; j-- {
		if then := findShare(k[j].Shares, s); then != nil {
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

// utilization is a reading of a utilization.
type utilization struct {
	at    time.Time
	value float64
}

// Activity is the utilization of a partition, ordered by time, as long as readings of its parent
// from that time are not distributed.
type Activity []utilization

// With adds a reading, if it is newer than the last one.
func (a Activity) With(at time.Time, value float64) Activity {
	if n := len(a); n > 0 && !at.After(a[n-1].at) {
		return a
	}
	if len(a) >= maxTicks {
		a = slices.Delete(a, 0, len(a)/2)
	}
	return append(a, utilization{at, value})
}

// Since removes the readings that do not matter for the time after the moment.
func (a Activity) Since(moment time.Time) Activity {
	n := 0
	for n+1 < len(a) && !a[n+1].at.After(moment) {
		n++
	}
	if n == 0 {
		return a
	}
	return slices.Delete(a, 0, n)
}

// Mean returns the mean utilization in a span of time. It changes evenly between two readings, and
// is constant before the first and after the last one. It is unknown (-1) if no reading is within
// maxIntegration of the span, or if the span is after the last reading and the partition is no
// longer read.
func (a Activity) Mean(from, to time.Time, read bool) float64 {
	if last := len(a) - 1; !read && last >= 0 && to.After(a[last].at) {
		if from.After(a[last].at) {
			return -1
		}
		to = a[last].at
	}
	near := slices.ContainsFunc(a, func(l utilization) bool {
		return from.Sub(l.at) <= meter.MaxIntegration && l.at.Sub(to) <= meter.MaxIntegration
	})
	if !near {
		return -1
	}
	if !from.Before(to) {
		return a.at(from)
	}
	sum, at, value := 0.0, from, a.at(from)
	add := func(next utilization) {
		sum += (value + next.value) / 2 * next.at.Sub(at).Seconds()
		at, value = next.at, next.value
	}
	for _, l := range a {
		if l.at.After(from) && l.at.Before(to) {
			add(l)
		}
	}
	add(utilization{to, a.at(to)})
	return sum / to.Sub(from).Seconds()
}

// at returns the utilization at a moment. There must be at least one reading.
func (a Activity) at(moment time.Time) float64 {
	i := slices.IndexFunc(a, func(l utilization) bool { return !l.at.Before(moment) })
	switch {
	case i < 0:
		return a[len(a)-1].value
	case i == 0:
		return a[0].value
	}
	before, after := a[i-1], a[i]
	part := float64(moment.Sub(before.at)) / float64(after.at.Sub(before.at))
	return before.value + part*(after.value-before.value)
}
