package recorder

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// part is a series in one block.
type part struct {
	*meta
	first, ticks int     // range of the window's ticks
	data         []byte  // of a sealed block
	frames       []frame // of the present block
	place        int     // index in each frame
}

// cut is a window of a tape.
type cut struct {
	times []time.Time
	parts []part
}

// cut returns the part of the tape from one time to another, for chosen owners.
func (r *tape) cut(from, to time.Time, chosen func(*Owner) bool) cut {
	return r.cutSeries(from, to, chosen, func(*meta) bool { return true })
}

// cutSeries is cut for some of the owners' series.
func (r *tape) cutSeries(from, to time.Time, chosen func(*Owner) bool, some func(*meta) bool) cut {
	var c cut
	wanted := map[*Owner]bool{}
	var last *Owner // series of one owner are adjacent
	var lastWanted bool
	want := func(m *meta) bool {
		o := m.owner
		if !some(m) {
			return false
		}
		if o == last {
			return lastWanted
		}
		w, known := wanted[o]
		if !known {
			w = chosen(o)
			wanted[o] = w
		}
		last, lastWanted = o, w
		return w
	}
	outside := func(times []time.Time) bool {
		return len(times) == 0 || times[len(times)-1].Before(from) || times[0].After(to)
	}
	c.parts = make([]part, 0, r.count(want, outside))
	for _, b := range r.sealed {
		if outside(b.times) {
			continue
		}
		for j, m := range b.series {
			if at := b.spans[j]; want(m) {
				c.parts = append(c.parts, part{meta: m, first: len(c.times), ticks: len(b.times), data: b.data[at.begin:at.end]})
			}
		}
		c.times = append(c.times, b.times...)
	}
	if outside(r.times) {
		return c.trim(from, to)
	}
	for place, m := range r.series {
		if want(m) {
			c.parts = append(c.parts, part{
				meta: m, first: len(c.times), ticks: len(r.times), frames: r.frames, place: place,
			})
		}
	}
	c.times = append(c.times, r.times...)
	return c.trim(from, to)
}

// count returns the number of parts of a cut.
func (r *tape) count(want func(*meta) bool, outside func([]time.Time) bool) (n int) {
	add := func(times []time.Time, series []*meta) {
		if outside(times) {
			return
		}
		for _, m := range series {
			if want(m) {
				n++
			}
		}
	}
	for _, b := range r.sealed {
		add(b.times, b.series)
	}
	add(r.times, r.series)
	return n
}

// trim limits the times to the window. Parts then exceed the window on both sides.
func (c cut) trim(from, to time.Time) cut {
	first := 0
	for first < len(c.times) && c.times[first].Before(from) {
		first++
	}
	last := len(c.times)
	for last > first && c.times[last-1].After(to) {
		last--
	}
	c.times = c.times[first:last]
	for i := range c.parts {
		c.parts[i].first -= first
	}
	return c
}

// line is a series in a window.
type line struct {
	*meta
	parts []part // ordered by time
}

func (l *line) compare(other *line) int {
	if l.owner != other.owner {
		if c := l.owner.compare(*other.owner); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(l.Quantity, other.Quantity), slices.Compare(l.Labels[:], other.Labels[:]))
}

// lines returns the series of a cut, ordered and not decoded. Parts of the same series are joined.
func (c cut) lines() []line {
	index := map[*book.Series]int{}
	var out []line
	number, sizes := make([]int, len(c.parts)), []int(nil)
	for n := range c.parts {
		i, known := index[c.parts[n].Series]
		if !known {
			i = len(out)
			index[c.parts[n].Series] = i
			out, sizes = append(out, line{meta: c.parts[n].meta}), append(sizes, 0)
		}
		number[n] = i
		sizes[i]++
	}
	free := make([]part, len(c.parts)) // one allocation for all lines
	for i, size := range sizes {
		out[i].parts, free = free[:0:size], free[size:]
	}
	for n, i := range number {
		out[i].parts = append(out[i].parts, c.parts[n])
	}
	slices.SortStableFunc(out, func(a, b line) int { return a.compare(&b) })
	// A later claim or pod of the same name has other keys.
	joined := out[:0]
	for _, l := range out {
		if n := len(joined) - 1; n >= 0 && joined[n].compare(&l) == 0 {
			joined[n].parts = append(joined[n].parts, l.parts...)
			continue
		}
		joined = append(joined, l)
	}
	return joined
}

// decoder decodes series one after the other.
type decoder struct {
	values, part []float64
}

// decode returns the values of a series at the given number of times, NaN where absent. They are
// valid until the next call. some reports whether at least one is present.
func (d *decoder) decode(l *line, times int) (values []float64, some bool) {
	d.values = d.values[:0]
	for range times {
		d.values = append(d.values, math.NaN())
	}
	for i := range l.parts {
		p := &l.parts[i]
		d.part = p.decode(d.part[:0])
		for j, v := range d.part {
			if at := p.first + j; at >= 0 && at < times && !math.IsNaN(v) {
				d.values[at], some = v, true
			}
		}
	}
	return d.values, some
}

// decode appends the values at the block's ticks, NaN where absent.
func (p *part) decode(out []float64) []float64 {
	if p.frames == nil {
		return decode(out, p.data, p.ticks)
	}
	for _, f := range p.frames {
		v := math.NaN()
		if p.place < len(f) && f[p.place] != absent {
			v = f[p.place].value()
		}
		out = append(out, v)
	}
	return out
}
