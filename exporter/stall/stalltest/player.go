package stalltest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

// player plays the phases of a kind.
type player struct {
	kind   *Kind
	random *rand.Rand
	stack  []frame
	now    phase // the phase that is running
	left   float64
	sums   Values  // of the counters
	heat   float64 // watts above those of an idle context, over the last minutes
	opened bool    // a process has had a context
	noise  noise
}

// frame is a loop that is running.
type frame struct {
	phases []Phase
	next   int
	rounds int     // that may still begin; 0: any number
	left   float64 // seconds; a round begins while it is above 0
}

// phase is a phase that is running, with its load as values of a second.
type phase struct {
	*Phase
	rates Values
}

const (
	forever = math.MaxFloat64
	epsilon = 1e-9 // seconds
)

func newPlayer(kind *Kind, seed uint64) *player {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind.Name))
	p := &player{kind: kind, random: rand.New(rand.NewPCG(seed, h.Sum64()))}
	p.noise.source = rand.NewPCG(h.Sum64(), seed)
	p.stack = []frame{{phases: kind.Phases, rounds: 1, left: forever}}
	return p
}

// play yields a sample for each second of the length.
func (p *player) play(length time.Duration, yield func(*Sample) bool) {
	s := Sample{}
	measured := [NumFields]bool{}
	for f := range NumFields {
		measured[f] = p.kind.Sees.Measures(f)
	}
	for n := range int(length / time.Second) {
		s.At = Start().Add(time.Duration(n+1) * time.Second)
		p.second(&s)
		p.measure(&s.Values, n)
		p.hide(&s.Values, &measured)
		if !yield(&s) {
			return
		}
	}
}

// second sets the true values of the next second: means of shares, the level of memory at its end,
// and what the counters gain.
func (p *player) second(s *Sample) {
	s.Values = Values{}
	most := 0.0
	for rest := 1.0; rest > epsilon; {
		if p.left <= epsilon {
			p.advance()
		}
		part := min(rest, p.left)
		p.add(&s.Values, part)
		if part > most {
			most, s.Truth, s.Others, s.Phase = part, p.now.Truth, p.now.Others, p.now.Name
		}
		rest -= part
		p.left -= part
	}
}

// add adds a part of a second of the present phase.
func (p *player) add(v *Values, part float64) {
	r := &p.now.rates
	for f := range r {
		if r[f] == 0 {
			continue
		}
		switch Field(f) {
		case MemoryUsed, HostAnon, HostFile:
			v[f] = r[f]
		default:
			v[f] += r[f] * part
		}
	}
}

// advance begins the next phase. After the last one of the job, the process has ended and the claim
// is still held.
func (p *player) advance() {
	for len(p.stack) > 0 {
		top := &p.stack[len(p.stack)-1]
		if top.next == len(top.phases) {
			top.next = 0
			if top.rounds--; top.rounds == 0 || top.left <= epsilon {
				p.stack = p.stack[:len(p.stack)-1]
				continue
			}
		}
		next := &top.phases[top.next]
		top.next++
		length := p.length(next)
		if len(next.Loop) > 0 {
			p.stack = append(p.stack, frame{phases: next.Loop, rounds: next.Rounds, left: length})
			continue
		}
		p.begin(next, length)
		return
	}
	p.begin(&Phase{Name: "ended", Truth: Idle}, forever)
}

func (p *player) begin(next *Phase, length float64) {
	p.opened = p.opened || next.Load.Context
	p.now = phase{Phase: next, rates: next.Load.rates(&p.kind.Model)}
	p.left = length
	for i := range p.stack {
		p.stack[i].left -= length
	}
}

func (p *player) length(next *Phase) float64 {
	if next.For == 0 {
		return forever
	}
	return next.For.Seconds() * max(0.1, 1+next.Spread*p.random.NormFloat64())
}

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

// Field is a value of a sample.
type Field uint8

// The fields. Those up to NetworkTransmitted belong to the device, the others to the cgroups and
// the network namespace of the claim's pods.
const (
	Busy      Field = iota // share of time in which any kernel ran
	SM                     // share of SMs with at least one warp, over time
	Occupancy              // resident warps as a share of what the device can hold
	Tensor                 // shares of time of the pipes
	FP64
	FP32
	FP16
	Int
	DRAM // share of the memory's bandwidth, or of the time in which the memory was used
	Copy // share of time of the copy engines
	Decoder
	Encoder
	JPEG
	OFA
	MemoryUsed // bytes
	Power      // watts
	Clock      // hertz, of the SMs
	ClockMax   // hertz

	Energy             // joules so far
	PCIeReceived       // bytes so far, by the device
	PCIeTransmitted    // bytes so far
	FabricReceived     // bytes so far over NVLink or XGMI
	FabricTransmitted  // bytes so far
	NetworkReceived    // bytes so far over the claim's RDMA or network device
	NetworkTransmitted // bytes so far
	HostCPU            // seconds so far: usage_usec of cpu.stat
	HostRead           // bytes so far: rbytes of io.stat
	HostWritten        // bytes so far: wbytes of io.stat
	PageFaults         // so far: pgfault of memory.stat
	MajorFaults        // so far: pgmajfault of memory.stat
	HostAnon           // bytes: anon of memory.stat
	HostFile           // bytes: file of memory.stat
	PodReceived        // bytes so far, by the interfaces of the pod's network namespace
	PodTransmitted     // bytes so far
	NumFields          // the number of fields, not one of them

	firstCounter = Energy
	firstHost    = HostCPU
)

// Values has a value for each field, NaN if the telemetry does not measure it.
type Values [NumFields]float64

// IsCounter reports whether the values only grow.
func (f Field) IsCounter() bool {
	return f >= firstCounter && f < NumFields && f != HostAnon && f != HostFile
}

// Host reports whether the value is of the pods' cgroups or network, and not of the device.
func (f Field) Host() bool { return f >= firstHost && f < NumFields }

// noValues returns values that are not measured.
func noValues() (v Values) {
	for f := range v {
		v[f] = math.NaN()
	}
	return v
}
