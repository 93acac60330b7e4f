package recorder

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// OwnerKind says whose a series is.
type OwnerKind string

// The kinds of owners.
const (
	OfDevice OwnerKind = "device"
	OfClaim  OwnerKind = "claim"
	OfPod    OwnerKind = "pod"
)

// Owner is whose a series is: a device's, or a claim's or pod's part of a device.
type Owner struct {
	Kind            OwnerKind
	Namespace, Name string // of the claim or pod
	Device          driver.ID
}

func (o Owner) compare(other Owner) int {
	return cmp.Or(
		cmp.Compare(o.Kind, other.Kind), o.Device.Compare(other.Device),
		strings.Compare(o.Namespace, other.Namespace), strings.Compare(o.Name, other.Name),
	)
}

const (
	// blockTicks is the number of ticks of a block: the ring forgets whole blocks.
	blockTicks = 60
	// seriesOverhead is what a series of a block costs besides its data, in bytes: its metadata,
	// unless the block before has the same series, and its span.
	seriesOverhead = 16
)

// meta identifies a series.
type meta struct {
	*ledger.Series
	owner   *Owner
	counter bool
}

// track is a series that is being recorded.
type track struct {
	*meta
	encoder
	last  float64 // of a counter
	seen  uint64  // the number of the tick at which it was last there
	place int     // in the ring's order
}

// block are the series of some ticks. A sealed one does not change.
type block struct {
	times  []time.Time
	data   []byte
	series []*meta
	spans  []span // of the data of each series
}

// span is a part of a block's data. Series with the same values share one: of a claim and its only
// pod, or of all who are given equal parts of a device.
type span struct{ begin, end uint32 }

func (b *block) size() int { return len(b.data) + len(b.series)*seriesOverhead + len(b.times)*24 }

// ring is a bounded memory of the values of snapshots.
type ring struct {
	keep      time.Duration // what is older is forgotten
	maxBytes  int           // of sealed blocks
	catalogue driver.Catalogue

	tick   uint64
	times  []time.Time // of the present block
	before time.Time   // the tick before
	tracks map[*ledger.Series]*track
	order  []*track // of the present block, in the order in which they came
	free   []track  // memory for more of them
	metas  []meta   // likewise
	next   int      // the place in order of the series that is likely to be the next one of a snapshot
	owners map[any]*Owner
	sealed []block
	bytes  int // of sealed
}

func newRing(keep time.Duration, maxBytes int) *ring {
	return &ring{
		keep: keep, maxBytes: maxBytes, tracks: map[*ledger.Series]*track{}, owners: map[any]*Owner{},
	}
}

// record adds a snapshot.
func (r *ring) record(s *ledger.Snapshot) {
	if len(r.times) == blockTicks {
		r.seal(s.Time)
	}
	r.tick++
	r.next = 0
	r.catalogue = s.Catalogue.OrStandard()
	r.times = append(r.times, s.Time)
	elapsed := s.Time.Sub(r.before).Seconds()
	for i := range s.Devices {
		d := &s.Devices[i]
		r.values(d.Key, OfDevice, d.Values, elapsed)
	}
	for i := range s.Claims {
		r.holder(&s.Claims[i], OfClaim, elapsed)
	}
	for _, pods := range [2][]ledger.Holder{s.Pods, s.Young} {
		for i := range pods {
			if !pods[i].IsAggregated() {
				r.holder(&pods[i], OfPod, elapsed)
			}
		}
	}
	r.before = s.Time
}

// holder records a claim or pod until its end.
func (r *ring) holder(h *ledger.Holder, kind OwnerKind, elapsed float64) {
	if h.Ended.IsZero() || h.Ended.After(r.before) {
		r.values(h.HolderKey, kind, h.Values, elapsed)
	}
}

// values records the values of an owner, whose key is a pointer that stays the same.
func (r *ring) values(key any, kind OwnerKind, values []ledger.Value, elapsed float64) {
	for i := range values {
		v := &values[i]
		t := r.track(v.Series)
		if t == nil {
			t = r.open(v, r.owner(key, kind))
		}
		r.next = t.place + 1
		t.seen = r.tick
		n := len(r.times) - 1 // ticks of the block before this one
		t.skip(n - t.ticks)
		if !t.counter {
			t.put(v.Value)
			continue
		}
		rate := (v.Value - t.last) / elapsed
		t.last = v.Value
		if !(rate >= 0) || math.IsInf(rate, 0) { // of the first reading it is NaN
			t.skip(1)
			continue
		}
		t.put(rate)
	}
}

// track returns a series, nil if it is new. Snapshots mostly have the series in the order of the
// one before.
func (r *ring) track(key *ledger.Series) *track {
	if r.next < len(r.order) && r.order[r.next].Series == key {
		return r.order[r.next]
	}
	return r.tracks[key]
}

func (r *ring) owner(key any, kind OwnerKind) *Owner {
	if o := r.owners[key]; o != nil {
		return o
	}
	o := &Owner{Kind: kind}
	switch key := key.(type) {
	case *driver.ID:
		o.Device = *key
	case *ledger.HolderKey:
		o.Namespace, o.Name, o.Device = key.Namespace, key.Name, key.Device
	}
	r.owners[key] = o
	return o
}

// open begins a series. A counter that began since the tick before counts from 0; of another one
// the first increment is unknown.
func (r *ring) open(v *ledger.Value, owner *Owner) *track {
	counter := r.catalogue.Spec(v.Quantity).Type == driver.Counter
	t := r.newTrack()
	*t.meta = meta{v.Series, owner, counter}
	t.encoder, t.place = newEncoder(nil), len(r.order)
	if counter && (r.before.IsZero() || !v.Born.After(r.before)) {
		t.last = math.NaN()
	}
	r.tracks[v.Series] = t
	r.order = append(r.order, t)
	return t
}

// trackChunk is how many tracks are allocated together: many small objects are what takes the
// garbage collector time. One that remains keeps the memory of all.
const trackChunk = 32

// newTrack returns an empty track.
func (r *ring) newTrack() *track {
	if len(r.free) == 0 {
		r.free, r.metas = make([]track, trackChunk), make([]meta, trackChunk)
	}
	t := &r.free[0]
	t.meta = &r.metas[0]
	r.free, r.metas = r.free[1:], r.metas[1:]
	return t
}

// seal ends the present block, and forgets what is too old or too much.
func (r *ring) seal(now time.Time) {
	b := block{
		times: r.times, series: make([]*meta, 0, len(r.order)), spans: make([]span, 0, len(r.order)),
	}
	known := map[string]span{} // by data
	var distinct []*track
	n := 0
	for _, t := range r.order {
		t.flush()
		if len(t.out) == 0 || t.ticks == 0 {
			continue
		}
		at, found := known[string(t.out)]
		if !found {
			at = span{uint32(n), uint32(n + len(t.out))}
			known[string(t.out)] = at
			distinct = append(distinct, t)
			n += len(t.out)
		}
		b.series, b.spans = append(b.series, t.meta), append(b.spans, at)
	}
	b.data = make([]byte, 0, n)
	for _, t := range distinct {
		b.data = append(b.data, t.out...)
	}
	r.renewEncoders()
	if last := len(r.sealed) - 1; last >= 0 && slices.Equal(r.sealed[last].series, b.series) {
		b.series = r.sealed[last].series
	}
	r.times = make([]time.Time, 0, blockTicks)
	r.sealed = append(r.sealed, b)
	r.bytes += b.size()
	for len(r.sealed) > 0 {
		oldest := &r.sealed[0]
		if r.bytes <= r.maxBytes && now.Sub(oldest.times[len(oldest.times)-1]) <= r.keep {
			break
		}
		r.bytes -= oldest.size()
		r.sealed = slices.Delete(r.sealed, 0, 1)
	}
	r.forget()
}

// renewEncoders begins the series of a block, with memory for as much as in the block before, all
// of it in one piece.
func (r *ring) renewEncoders() {
	room := func(t *track) int { return len(t.out) + len(t.out)/8 + binary.MaxVarintLen16 }
	size := 0
	for _, t := range r.order {
		size += room(t)
	}
	memory := make([]byte, size)
	for _, t := range r.order {
		n := room(t)
		t.encoder = newEncoder(memory[:0:n])
		memory = memory[n:]
	}
}

// forget drops the series that were not in the block that ended.
func (r *ring) forget() {
	oldest := uint64(0)
	if r.tick > blockTicks {
		oldest = r.tick - blockTicks
	}
	gone := func(t *track) bool { return t.seen <= oldest }
	for key, t := range r.tracks {
		if gone(t) {
			delete(r.tracks, key)
		}
	}
	r.order = slices.DeleteFunc(r.order, gone)
	for place, t := range r.order {
		t.place = place
	}
	used := map[*Owner]bool{}
	for _, t := range r.order {
		used[t.owner] = true
	}
	for key, o := range r.owners {
		if !used[o] {
			delete(r.owners, key)
		}
	}
}

// part is the data of one series in one block.
type part struct {
	*meta
	first, ticks int // of the window's ticks
	data         []byte
}

// cut is what a window needs of the ring: data that does not change any more.
type cut struct {
	times []time.Time
	parts []part
}

// cut returns what the ring has of the chosen series from a time on, until another.
func (r *ring) cut(from, to time.Time, chosen func(*Owner) bool) cut {
	var c cut
	wanted := map[*Owner]bool{}
	want := func(o *Owner) bool {
		w, known := wanted[o]
		if !known {
			w = chosen(o)
			wanted[o] = w
		}
		return w
	}
	outside := func(times []time.Time) bool {
		return len(times) == 0 || times[len(times)-1].Before(from) || times[0].After(to)
	}
	for i := range r.sealed {
		b := &r.sealed[i]
		if outside(b.times) {
			continue
		}
		for j, m := range b.series {
			if at := b.spans[j]; want(m.owner) {
				c.parts = append(c.parts, part{m, len(c.times), len(b.times), b.data[at.begin:at.end]})
			}
		}
		c.times = append(c.times, b.times...)
	}
	if outside(r.times) {
		return c.trim(from, to)
	}
	for _, t := range r.order {
		if t.ticks > 0 && want(t.owner) {
			now := t.encoder
			now.out = slices.Clone(now.out)
			now.flush()
			c.parts = append(c.parts, part{t.meta, len(c.times), len(r.times), now.out})
		}
	}
	c.times = append(c.times, r.times...)
	return c.trim(from, to)
}

// trim limits the times to those of the window; parts then reach beyond it on both sides.
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

// line is a series of a window, in its parts.
type line struct {
	*meta
	parts []part // in order of time
}

func (l *line) compare(other *line) int {
	return cmp.Or(
		l.owner.compare(*other.owner), cmp.Compare(l.Quantity, other.Quantity),
		slices.Compare(l.Labels[:], other.Labels[:]),
	)
}

// lines returns the series of a cut, not decoded and in order. Parts of the same series are joined.
func (c cut) lines() []line {
	type key struct {
		owner    Owner
		quantity driver.Quantity
		labels   driver.Labels
	}
	index := map[key]int{}
	var out []line
	for _, p := range c.parts {
		k := key{*p.owner, p.Quantity, p.Labels}
		i, known := index[k]
		if !known {
			i = len(out)
			index[k] = i
			out = append(out, line{meta: p.meta})
		}
		out[i].parts = append(out[i].parts, p)
	}
	slices.SortFunc(out, func(a, b line) int { return a.compare(&b) })
	return out
}

// decoder decodes one series after the other.
type decoder struct {
	values, part []float64
}

// decode returns the values of a series at so many times, NaN where they are absent, until the next
// call. Some says that there are any.
func (d *decoder) decode(l *line, times int) (values []float64, some bool) {
	d.values = d.values[:0]
	for range times {
		d.values = append(d.values, math.NaN())
	}
	for _, p := range l.parts {
		d.part = decode(d.part[:0], p.data, p.ticks)
		for j, v := range d.part {
			if at := p.first + j; at >= 0 && at < times && !math.IsNaN(v) {
				d.values[at], some = v, true
			}
		}
	}
	return d.values, some
}
