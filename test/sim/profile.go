package sim

import (
	"math/rand/v2"
	"sort"
	"time"
)

// Profile is a load over time, from 0 (idle) to 1 (full load). It consists of straight pieces, so
// that its integral is exact. The zero Profile is always idle.
type Profile struct {
	once, loop course
	hangs      time.Duration // time from which on it spins, see [Hang]; 0: never
}

// Level returns the load at a time since the profile began: 0 before it, and while it hangs.
func (p Profile) Level(at time.Duration) float64 {
	once := p.once.length()
	switch {
	case at < 0 || p.Spins(at):
		return 0
	case at < once:
		return p.once.level(at)
	case len(p.loop.pieces) == 0:
		return 0
	default:
		return p.loop.level((at - once) % p.loop.length())
	}
}

// Integral returns the integral of the load, in seconds, from the beginning of the profile to a
// time since then.
func (p Profile) Integral(until time.Duration) float64 {
	if p.hangs > 0 {
		until = min(until, p.hangs)
	}
	once := p.once.length()
	switch {
	case until < 0:
		return 0
	case until < once:
		return p.once.integral(until)
	case len(p.loop.pieces) == 0:
		return p.once.total()
	default:
		turns, rest := (until-once)/p.loop.length(), (until-once)%p.loop.length()
		return p.once.total() + float64(turns)*p.loop.total() + p.loop.integral(rest)
	}
}

// Spins reports whether the profile hangs at a time since it began.
func (p Profile) Spins(at time.Duration) bool { return p.hangs > 0 && at >= p.hangs }

// Spun returns the seconds for which the profile has spun until a time since it began.
func (p Profile) Spun(until time.Duration) float64 {
	if p.hangs == 0 {
		return 0
	}
	return max(0, until-p.hangs).Seconds()
}

// Idle is no load.
func Idle() Profile { return Profile{} }

// Hang returns a profile that hangs after a time above 0, like a job whose ranks wait for a rank
// that is gone: the device is always busy with kernels that spin, compute nothing and move no data.
func Hang(after time.Duration, p Profile) Profile {
	p.hangs = after
	return p
}

// HangsAt returns the time after which the profile hangs, or 0 if it never hangs.
func (p Profile) HangsAt() time.Duration { return p.hangs }

// Constant returns a constant load.
func Constant(level float64) Profile {
	return Profile{loop: newCourse(piece{time.Hour, level, level})}
}

// Ramp returns a load that changes linearly to another load in a time, and then stays constant.
func Ramp(from, to float64, over time.Duration) Profile {
	return Profile{once: newCourse(piece{over, from, to}), loop: Constant(to).loop}
}

// After returns a profile that is idle for a time before it begins.
func After(delay time.Duration, p Profile) Profile {
	p.once = newCourse(append([]piece{{delay, 0, 0}}, p.once.pieces...)...)
	if p.hangs > 0 {
		p.hangs += delay
	}
	return p
}

// burstPeriods is the number of periods after which bursts repeat.
const burstPeriods = 64

// Bursts alternates between high and low loads, like inference: each period begins with a burst.
// The lengths of the bursts (by ±50 %) and both levels (by ±20 %, within 0 and 1) vary randomly.
// They are the same for the same seed.
func Bursts(seed uint64, period time.Duration, duty, low, high float64) Profile {
	random := rand.New(rand.NewPCG(seed, burstPeriods))
	vary := func(mean, by float64) float64 { return min(1, max(0, mean*(1+by*(2*random.Float64()-1)))) }
	pieces := make([]piece, 0, 2*burstPeriods)
	for range burstPeriods {
		burst := time.Duration(vary(duty, 0.5) * float64(period))
		up, down := vary(high, 0.2), vary(low, 0.2)
		pieces = append(pieces, piece{burst, up, up}, piece{period - burst, down, down})
	}
	return Profile{loop: newCourse(pieces...)}
}

// piece is a straight line of a load.
type piece struct {
	length   time.Duration
	from, to float64
}

// integral returns the integral, in seconds, from the piece's beginning.
func (p piece) integral(until time.Duration) float64 {
	return (p.from + p.level(until)) / 2 * until.Seconds()
}

func (p piece) level(at time.Duration) float64 {
	return p.from + (p.to-p.from)*(float64(at)/float64(p.length))
}

// course is a sequence of pieces.
type course struct {
	pieces []piece
	ends   []time.Duration // when each piece ends
	sums   []float64       // the integral until then
}

// newCourse returns a course of the pieces, without those of zero length.
func newCourse(pieces ...piece) course {
	var c course
	end, sum := time.Duration(0), 0.0
	for _, p := range pieces {
		if p.length <= 0 {
			continue
		}
		end, sum = end+p.length, sum+p.integral(p.length)
		c.pieces, c.ends, c.sums = append(c.pieces, p), append(c.ends, end), append(c.sums, sum)
	}
	return c
}

func (c course) length() time.Duration {
	if len(c.ends) == 0 {
		return 0
	}
	return c.ends[len(c.ends)-1]
}

func (c course) total() float64 {
	if len(c.sums) == 0 {
		return 0
	}
	return c.sums[len(c.sums)-1]
}

// find returns the piece in which a time within the course lies, and the time since it began.
func (c course) find(at time.Duration) (int, time.Duration) {
	i := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > at })
	return i, at - (c.ends[i] - c.pieces[i].length)
}

func (c course) level(at time.Duration) float64 {
	i, since := c.find(at)
	return c.pieces[i].level(since)
}

func (c course) integral(until time.Duration) float64 {
	i, since := c.find(until)
	return c.sums[i] - c.pieces[i].integral(c.pieces[i].length) + c.pieces[i].integral(since)
}
