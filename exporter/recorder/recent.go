package recorder

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Recent is what the last minutes of a device, or of the part that a claim or pod has of it, look
// like.
type Recent struct {
	// Quantity is what shows the device's work best: the utilization, else the power, else the bytes
	// over networks per second. Values are its means of equal times, the oldest first, NaN where
	// nothing is recorded.
	Quantity driver.Quantity
	Values   []float64
	// Traffic is bytes per second over networks in the last seconds, NaN where there are none.
	Traffic float64
}

// trafficTime is the time over which traffic is a mean: some hardware counts in steps.
const trafficTime = 10 * time.Second

// overNetworks reports whether a series counts bytes that left or reached the node.
func (m *meta) overNetworks() bool {
	return m.Quantity == driver.IOBytes && (m.Labels[0] == "network" || m.Labels[0] == "rdma")
}

// Recent returns what the last time of each device, claim and pod looks like, in so many values.
func (r *Recorder) Recent(last time.Duration, values int) map[Owner]Recent {
	p := r.published.Load()
	begin := p.recorded.Add(-last)
	c := p.cutSeries(begin, p.recorded, func(*Owner) bool { return true }, func(m *meta) bool {
		return m.Quantity == driver.Utilization || m.Quantity == driver.Power || m.overNetworks()
	})
	slots := make([]int, len(c.times))
	for i, at := range c.times {
		slots[i] = min(values-1, int(float64(at.Sub(begin))/float64(last)*float64(values)))
	}
	out := map[Owner]Recent{}
	var d decoder
	for all := c.lines(); len(all) > 0; { // those of an owner follow each other
		n := 1
		for n < len(all) && *all[n].owner == *all[0].owner {
			n++
		}
		of := all[:n]
		all = all[n:]
		var traffic []float64 // of all links
		for i := range of {
			if of[i].overNetworks() {
				floats, _ := d.decode(&of[i], len(c.times))
				traffic = plusEach(traffic, floats)
			}
		}
		recent := Recent{Quantity: driver.IOBytes, Values: means(traffic, slots, values), Traffic: newest(c.times, traffic)}
		for _, q := range []driver.Quantity{driver.Power, driver.Utilization} {
			if i := slices.IndexFunc(of, func(l line) bool { return l.Quantity == q }); i >= 0 {
				floats, _ := d.decode(&of[i], len(c.times))
				recent.Quantity, recent.Values = q, means(floats, slots, values)
			}
		}
		out[*of[0].owner] = recent
	}
	return out
}

// plusEach adds values of the same times; what is absent of one is that of the other.
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

// means returns the mean of the values of each slot.
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

// newest returns the mean of rates in the last seconds, NaN if there is none at the end.
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
