package stalltest

import (
	"math"
	"math/rand/v2"
)

const (
	usualNoise = 0.03
	hostNoise  = 0.2    // of CPU time, faults and traffic
	heatTime   = 60.0   // seconds in which a device warms up and cools down
	leakage    = 0.014  // watts for each watt of heat: 123.5 W instead of 118 after ten seconds at 470 W
	idleDRAM   = 5.5e-6 // what the H100 reports when nothing runs
	ambient    = 2.0    // watts by which the idle level drifts over hours
)

// noise is a cheap source of noise.
type noise struct {
	source *rand.PCG
	bits   uint64
	left   int
}

// next returns a value from -1 to 1, with mean 0.
func (n *noise) next() float64 {
	if n.left == 0 {
		n.bits, n.left = n.source.Uint64(), 4
	}
	n.left--
	v := float64(n.bits&0xffff)/0x8000 - 1
	n.bits >>= 16
	return v
}

// measure turns the true values of a second into what sensors and counters show, with noise.
func (p *player) measure(v *Values, second int) {
	p.watts(v, second)
	spread := p.now.Load.Noise
	if spread == 0 {
		spread = usualNoise
	}
	common := spread * p.noise.next()
	for f := SM; f < MemoryUsed; f++ {
		if v[f] > 0 {
			v[f] = min(1, v[f]*(1+common+spread/2*p.noise.next()))
		}
	}
	if v[Busy] < 1-epsilon {
		v[Busy] = min(1, v[Busy]*(1+common))
	} else {
		v[Busy] = 1
	}
	v[DRAM] += idleDRAM
	if p.opened {
		v[PCIeReceived] += p.kind.Model.ReadingReceived
		v[PCIeTransmitted] += p.kind.Model.ReadingTransmitted
	}
	v[Clock], v[ClockMax] = min(v[Clock], p.kind.Model.ClockMax), p.kind.Model.ClockMax
	for f := firstCounter; f < NumFields; f++ {
		if !f.IsCounter() {
			continue
		}
		if gain := v[f]; gain > 0 {
			n := spread
			if f >= PCIeReceived {
				n = hostNoise
			}
			if f == Energy {
				n = 0
			}
			p.sums[f] += gain * (1 + n*p.noise.next())
		}
		v[f] = p.sums[f]
	}
}

// watts adds what temperature adds to the power, and noise. The energy is its integral.
func (p *player) watts(v *Values, second int) {
	model := &p.kind.Model
	p.heat += (max(v[Power]-model.ContextWatts, 0) - p.heat) / heatTime
	scale := model.LimitWatts / 700
	drift := ambient * scale * math.Sin(float64(second)/7000)
	v[Power] += p.heat*leakage + drift + 0.3*scale*p.noise.next()
	if above := v[Power] - model.ContextWatts; above > 5*scale {
		v[Power] += above * 0.02 * p.noise.next()
	}
	v[Energy] = v[Power]
}

// hide removes what the telemetry does not measure. Utilization that is not measured by counters of
// the hardware is a whole number of percent.
func (p *player) hide(v *Values, measured *[NumFields]bool) {
	if p.kind.Sees >= NVMLOnly {
		v[Busy] = math.Round(v[Busy]*100) / 100
		v[DRAM] = math.Round(v[DRAM]*100) / 100
	}
	for f, is := range measured {
		if !is {
			v[f] = math.NaN()
		}
	}
}
