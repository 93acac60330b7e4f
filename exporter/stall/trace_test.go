package stall_test

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// moment is the activity of a GPU: shares of time, watts, and bytes per second.
type moment struct {
	busy, power, compute, memory, copies, media float64
	host, fabric, network                       float64
	throttled                                   bool
}

// The levels are those of an H100: 70 W idle, 640 W in training, about 130 W while NCCL's kernels
// spin.
func idle() moment     { return moment{power: 70, host: 1e3} }
func training() moment { return moment{0.99, 640, 0.55, 0.45, 0.02, 0, 2e8, 4e10, 0, false} }
func spinning() moment { return moment{1, 130, 0, 0.01, 0, 0, 2e4, 0, 0, false} }
func decoding() moment { return moment{0.97, 380, 0.12, 0.7, 0, 0, 3e8, 0, 0, false} }

// light is work of few and small kernels, which a program launches one by one.
func light(busy, power, compute, memory, host float64) moment {
	return moment{busy: busy, power: power, compute: compute, memory: memory, host: host}
}

// rank is what one rank of a job does at a time.
type rank func(at time.Duration, random *rand.Rand) moment

func does(m func() moment) rank { return func(time.Duration, *rand.Rand) moment { return m() } }

// from does other things from a time on.
func (r rank) from(begin time.Duration, then rank) rank {
	return func(at time.Duration, random *rand.Rand) moment {
		if at >= begin {
			return then(at-begin, random)
		}
		return r(at, random)
	}
}

// each does other things for the first part of every period after the first.
func (r rank) each(period, part time.Duration, then rank) rank {
	return func(at time.Duration, random *rand.Rand) moment {
		if in := at % period; at >= period && in < part {
			return then(in, random)
		}
		return r(at, random)
	}
}

// ranks is a job of equal ranks.
func ranks(n int, r rank) []rank {
	out := make([]rank, n)
	for i := range out {
		out[i] = r
	}
	return out
}

// card is the kind of a GPU.
type card struct{ idle, full, spin, limit, most float64 }

func h100() card   { return card{70, 640, 130, 700, 700} }
func capped() card { return card{70, 298, 165, 300, 700} }
func l4() card     { return card{16, 71, 38, 72, 72} }

// of is the moment of an H100 on another card.
func (c card) of(m moment) moment {
	of := h100()
	if m.power <= of.spin {
		m.power = c.idle + (m.power-of.idle)/(of.spin-of.idle)*(c.spin-c.idle)
	} else {
		m.power = c.spin + (m.power-of.spin)/(of.full-of.spin)*(c.full-c.spin)
	}
	return m
}

// player passes the activity of a job's ranks to a judge, with noise.
type player struct {
	judge    *stall.Judge
	card     card
	ranks    []rank
	without  []stall.Signal
	interval time.Duration
	random   *rand.Rand
	now      time.Time
	readings []stall.Reading
}

func newPlayer(of []rank, without ...stall.Signal) *player {
	p := &player{
		judge: stall.New(0, time.Second), card: h100(), ranks: of, without: without, interval: time.Second,
		random: rand.New(rand.NewPCG(3, 4)), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for i := range of {
		id := driver.ID{Driver: "gpu.test", Pool: "node", Device: string(rune('a' + i))}
		values := stall.NoValues()
		values[stall.Host], values[stall.Fabric] = 0, 0
		p.readings = append(p.readings, stall.Reading{
			Key: stall.Key{Namespace: "team", Claim: "job", Device: id}, Values: values,
		})
	}
	return p
}

// tick advances an interval with the ranks' activity at a time, and returns verdicts.
func (p *player) tick(at time.Duration) []stall.Verdict {
	for i, does := range p.ranks {
		p.set(&p.readings[i], p.card.of(does(at, p.random)))
	}
	p.now = p.now.Add(p.interval)
	return p.judge.Observe(p.now, p.readings)
}

func (p *player) set(r *stall.Reading, m moment) {
	noise := func(v float64) float64 { return v * (1 + 0.03*p.random.NormFloat64()) }
	r.Limit, r.MaxLimit, r.Throttled = p.card.limit, p.card.most, m.throttled
	r.Values[stall.Busy], r.Values[stall.Power] = min(1, noise(m.busy)), noise(m.power)
	r.Values[stall.Compute], r.Values[stall.Memory] = noise(m.compute), noise(m.memory)
	r.Values[stall.Copy], r.Values[stall.Media] = noise(m.copies), noise(m.media)
	seconds := p.interval.Seconds()
	r.Values[stall.Host] += max(0, noise(m.host)) * seconds
	r.Values[stall.Fabric] += max(0, noise(m.fabric)) * seconds
	if m.network > 0 || r.Measured(stall.Network) {
		r.Add(stall.Network, max(0, noise(m.network))*seconds)
	}
	for _, s := range p.without {
		r.Values[s] = math.NaN()
	}
}
