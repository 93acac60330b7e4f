package recorder

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Recent describes the last minutes of a device, or of a claim's or pod's part of it.
type Recent struct {
	// Quantity is the one that shows the device's work best: utilization, else power, else bytes per
	// second over networks. Values are its means over equal periods, the oldest first, NaN where
	// nothing is recorded.
	Quantity driver.Quantity
	Values   []float64
	// Traffic is the bytes per second over networks in the last seconds, NaN if unknown.
	Traffic float64
}

// trafficTime is the time over which traffic is averaged, since some hardware counts in steps.
const trafficTime = 10 * time.Second

// overNetworks reports whether a series counts bytes that left or entered the node.
func (m *meta) overNetworks() bool {
	return m.Quantity == driver.IOBytes && (m.Labels[0] == "network" || m.Labels[0] == "rdma")
}

// Traffic returns the [Recent.Traffic] of each device, claim and pod with network devices.
func (r *Recorder) Traffic() map[Owner]float64 {
	out := map[Owner]float64{}
	for owner, of := range r.recentOf(2*trafficTime, 1, (*meta).overNetworks) {
		if !math.IsNaN(of.Traffic) {
			out[owner] = of.Traffic
		}
	}
	return out
}

// Recent returns the recent values of each device, claim and pod: the time last, divided into a
// number of values.
func (r *Recorder) Recent(last time.Duration, values int) map[Owner]Recent {
	return r.recentOf(last, values, func(m *meta) bool {
		return m.Quantity == driver.Utilization || m.Quantity == driver.Power || m.overNetworks()
	})
}

// recentOf is Recent of some series.
func (r *Recorder) recentOf(last time.Duration, values int, some func(*meta) bool) map[Owner]Recent {
	p := r.published.Load()
	begin := p.recorded.Add(-last)
	c := p.cut(begin, p.recorded, func(*Owner) bool { return true }, some)
	slots := make([]int, len(c.times))
	for i, at := range c.times {
		slots[i] = min(values-1, int(float64(at.Sub(begin))/float64(last)*float64(values)))
	}
	out := map[Owner]Recent{}
	for all := c.lines; len(all) > 0; { // series of an owner are adjacent
		n := 1
		for n < len(all) && *all[n].owner == *all[0].owner {
			n++
		}
		of := all[:n]
		all = all[n:]
		var traffic []float64 // sum of all links
		for i := range of {
			if of[i].overNetworks() {
				traffic = plusEach(traffic, c.values(&of[i]))
			}
		}
		recent := Recent{Quantity: driver.IOBytes, Values: means(traffic, slots, values), Traffic: newest(c.times, traffic)}
		for _, q := range []driver.Quantity{driver.Power, driver.Utilization} {
			if i := slices.IndexFunc(of, func(l line) bool { return l.Quantity == q }); i >= 0 {
				recent.Quantity, recent.Values = q, means(c.values(&of[i]), slots, values)
			}
		}
		out[*of[0].owner] = recent
	}
	return out
}

// plusEach adds values at the same times. A value that is absent in one list counts as 0.
func plusEach(sum, more []float64) []float64 {
	if sum == nil {
		return slices.Clone(more)
	}
	for i, v := range more {
		switch {
		case math.IsNaN(sum[i]):
			sum[i] = v
		case !math.IsNaN(v):
			sum[i] += v
		}
	}
	return sum
}

// means returns the mean of the values in each slot.
func means(of []float64, slots []int, n int) []float64 {
	out, counts := make([]float64, n), make([]int, n)
	for i, v := range of {
		if !math.IsNaN(v) {
			counts[slots[i]]++
			out[slots[i]] += (v - out[slots[i]]) / float64(counts[slots[i]])
		}
	}
	for i := range out {
		if counts[i] == 0 {
			out[i] = math.NaN()
		}
	}
	return out
}

// newest returns the mean of the rates in the last seconds, NaN if there is none at the end.
func newest(times []time.Time, rates []float64) float64 {
	n := len(rates) - 1
	if n < 1 || math.IsNaN(rates[n]) {
		return math.NaN()
	}
	amount, elapsed := 0., 0.
	for i := n; i > 0 && !math.IsNaN(rates[i]) && (i == n || times[n].Sub(times[i-1]) <= trafficTime); i-- {
		seconds := times[i].Sub(times[i-1]).Seconds()
		amount, elapsed = amount+rates[i]*seconds, elapsed+seconds
	}
	return amount / max(elapsed, 1e-3)
}
