package divide

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
)

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
