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
