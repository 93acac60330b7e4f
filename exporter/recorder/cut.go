package recorder

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// cut is a window of a tape.
type cut struct {
	times []time.Time
	lines []line // ordered by owner, quantity and labels

	room   Values // of codes
	floats []float64
}

// line is a series in a window.
type line struct {
	*meta
	parts []part // ordered by time
}

// part is a series in one block.
type part struct {
	first  int // index of its first tick in the times of the window, which may be outside
	column []code
}

// cut returns the part of the tape from one time to another, for chosen owners, and some of their
// series; nil: all of them.
func (r *tape) cut(from, to time.Time, chosen func(*Owner) bool, some func(*meta) bool) cut {
	var c cut
	index := map[*book.Series]int{}
	var last *Owner // series of one owner are adjacent
	var wanted bool
	for b := range r.blocks() {
		if b.times[len(b.times)-1].Before(from) || b.times[0].After(to) {
			continue
		}
		for i, m := range b.series {
			if m.owner != last {
				last, wanted = m.owner, chosen(m.owner)
			}
			if !wanted || some != nil && !some(m) {
				continue
			}
			n, known := index[m.Series]
			if !known {
				n = len(c.lines)
				index[m.Series] = n
				c.lines = append(c.lines, line{m, make([]part, 0, len(r.sealed)+1)})
			}
			c.lines[n].parts = append(c.lines[n].parts, part{len(c.times), b.column(i)})
		}
		c.times = append(c.times, b.times...)
	}
	c.trim(from, to)
	c.sort()
	return c
}

// trim limits the times to the window.
func (c *cut) trim(from, to time.Time) {
	first, last := 0, len(c.times)
	for first < last && c.times[first].Before(from) {
		first++
	}
	for last > first && c.times[last-1].After(to) {
		last--
	}
	c.times = c.times[first:last]
	for i := range c.lines {
		for j := range c.lines[i].parts {
			c.lines[i].parts[j].first -= first
		}
	}
}

// sort orders the lines. It joins those of the same name: a later claim or pod has other keys.
func (c *cut) sort() {
	slices.SortStableFunc(c.lines, func(a, b line) int { return a.compare(&b) })
	joined := c.lines[:0]
	for _, l := range c.lines {
		if n := len(joined) - 1; n >= 0 && joined[n].compare(&l) == 0 {
			joined[n].parts = append(joined[n].parts, l.parts...)
			continue
		}
		joined = append(joined, l)
	}
	c.lines = joined
}

func (l *line) compare(other *line) int {
	if l.owner != other.owner {
		if c := l.owner.compare(*other.owner); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(l.Quantity, other.Quantity), slices.Compare(l.Labels[:], other.Labels[:]))
}

// codes returns the codes of a line at the times of the cut, and whether one of them is present.
// They are valid until the next call.
func (c *cut) codes(l *line) (codes Values, some bool) {
	codes = c.room[:0]
	for range c.times {
		codes = append(codes, absent)
	}
	for _, p := range l.parts {
		for i, v := range p.column {
			if at := p.first + i; v != absent && at >= 0 && at < len(codes) {
				codes[at], some = v, true
			}
		}
	}
	c.room = codes
	return codes, some
}

// values returns the values of a line at the times of the cut, NaN where they are absent. They are
// valid until the next call.
func (c *cut) values(l *line) []float64 {
	codes, _ := c.codes(l)
	c.floats = codes.appendTo(c.floats[:0])
	return c.floats
}
