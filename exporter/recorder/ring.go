package recorder

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// OwnerKind is the kind of a series' owner.
type OwnerKind string

// The kinds of owners.
const (
	OfDevice OwnerKind = "device"
	OfClaim  OwnerKind = "claim"
	OfPod    OwnerKind = "pod"
)

// Owner is the owner of a series: a device, or a claim or pod with its part of a device.
type Owner struct {
	Kind            OwnerKind
	Namespace, Name string // of the claim or pod
	Device          driver.ID
}

// compare orders owners, devices first.
func (o Owner) compare(other Owner) int {
	rank := func(k OwnerKind) int { return slices.Index([]OwnerKind{OfDevice, OfClaim, OfPod}, k) }
	return cmp.Or(
		cmp.Compare(rank(o.Kind), rank(other.Kind)), o.Device.Compare(other.Device),
		strings.Compare(o.Namespace, other.Namespace), strings.Compare(o.Name, other.Name),
	)
}

const (
	// blockTicks is the largest number of ticks of a block. The ring forgets whole blocks.
	blockTicks = 60
	// seriesOverhead is the memory of a series in a block besides its codes, in bytes.
	seriesOverhead = 12
	// maxCodes is the number of codes from which on the present block has fewer ticks.
	maxCodes = 2 << 20
)

// meta identifies a series.
type meta struct {
	*book.Series
	owner   *Owner
	counter bool
}

// track is a series being recorded.
type track struct {
	*meta
	seen uint64 // the last tick that had it

	// For a counter: its clock, and the value and time at which the clock last advanced. rate is the
	// rate between the last two advances, and is valid until the next.
	clock *clock
	last  float64
	at    time.Duration
	rate  code
	place int32 // position in the ring's order
}

// clock is the time up to which a device's counter counts, since the ring began. Counters of its
// holders share it. It advances with readings, not with ticks.
type clock struct {
	at   time.Duration
	seen uint64 // the last tick that had the counter
}

// clockKey identifies a counter of a device.
type clockKey struct {
	device driver.ID
	labelled
}

// block has the series of some ticks. Those of a tape are immutable: the ring only appends ticks
// and series behind their ends.
type block struct {
	times  []time.Time
	series []*meta
	// codes has a column of each series, which begins at an index. Series with equal values share a
	// column, such as those of a claim and its only pod, or of holders with equal parts of a device.
	begins []uint32
	codes  []code
}

// column returns the codes of a series at the ticks of the block.
func (b *block) column(i int) []code { return b.codes[b.begins[i]:][:len(b.times)] }

func (b *block) size() int { return 2*len(b.codes) + len(b.series)*seriesOverhead + len(b.times)*24 }

// packed returns the block without the series that have no value. Equal columns are one.
func (b *block) packed() *block {
	out := &block{
		times: slices.Clip(b.times), series: make([]*meta, 0, len(b.series)), begins: make([]uint32, 0, len(b.series)),
	}
	known, seed := map[uint64]uint32{}, maphash.MakeSeed()
	for i, m := range b.series {
		column := b.column(i)
		var key [blockTicks]code
		copy(key[:], column)
		sum := maphash.Comparable(seed, key)
		at, found := known[sum]
		switch {
		case !slices.ContainsFunc(column, func(c code) bool { return c != absent }):
			continue
		case !found || !slices.Equal(column, out.codes[at:][:len(column)]):
			at = uint32(len(out.codes))
			known[sum] = at
			out.codes = append(out.codes, column...)
		}
		out.series, out.begins = append(out.series, m), append(out.begins, at)
	}
	out.codes = slices.Clone(out.codes)
	return out
}

// tape is the recording of a ring. It is immutable.
type tape struct {
	sealed    []*block
	present   block
	catalogue driver.Catalogue
}

// blocks yields the blocks with ticks, the oldest first.
func (r *tape) blocks() iter.Seq[*block] {
	return func(yield func(*block) bool) {
		for _, b := range r.sealed {
			if !yield(b) {
				return
			}
		}
		if len(r.present.times) > 0 {
			yield(&r.present)
		}
	}
}

// begins returns the time of the first tick; the zero time: there is none.
func (r *tape) begins() time.Time {
	for b := range r.blocks() {
		return b.times[0]
	}
	return time.Time{}
}

// ring keeps the values of snapshots within a memory limit. It is not safe for concurrent use;
// others read its tapes.
type ring struct {
	tape

	keep     time.Duration // older values are forgotten
	maxBytes int           // limit of sealed blocks

	tick   uint64
	began  time.Time     // time of the first tick
	before time.Time     // time of the previous tick
	now    time.Duration // since the first tick
	width  int           // number of ticks for which the present block has room
	tracks map[*book.Series]*track
	order  []*track // of the present block, in the order of its series
	free   []track  // memory for reuse
	metas  []meta   // memory for their metadata
	next   int      // position in order of the series that probably comes next
	owners map[any]*Owner
	clocks map[clockKey]*clock
	bytes  int // of sealed blocks
}

func newRing(keep time.Duration, maxBytes int) *ring {
	return &ring{
		keep: keep, maxBytes: maxBytes, width: blockTicks, tracks: map[*book.Series]*track{}, owners: map[any]*Owner{},
		clocks: map[clockKey]*clock{},
	}
}

// record adds a snapshot.
func (r *ring) record(s *book.Snapshot) {
	if n := len(r.present.times); n == r.width || n > 0 && len(r.present.codes) > maxCodes {
		r.seal(s.Time)
	}
	r.tick++
	r.next = 0
	r.catalogue = s.Catalogue.OrStandard()
	if r.began.IsZero() {
		r.began = s.Time
	}
	r.now = s.Time.Sub(r.began)
	for i := range s.Devices {
		r.device(&s.Devices[i])
	}
	for i := range s.Claims {
		r.holder(&s.Claims[i], OfClaim, s)
	}
	for _, pods := range [2][]book.Holder{s.Pods, s.Young} {
		for i := range pods {
			if !pods[i].IsAggregated() {
				r.holder(&pods[i], OfPod, s)
			}
		}
	}
	r.present.times = append(r.present.times, s.Time)
	r.before = s.Time
}

// device records a device.
func (r *ring) device(d *book.Device) {
	for i := range d.Values {
		v := &d.Values[i]
		t := r.track(v.Series)
		if t == nil {
			t = r.open(v, r.owner(d.Key, OfDevice))
			t.clock = r.clocks[clockKey{d.ID, labelled{v.Quantity, v.Labels}}]
			if t.clock == nil && t.counter {
				t.clock = &clock{}
				r.clocks[clockKey{d.ID, labelled{v.Quantity, v.Labels}}] = t.clock
			}
		}
		if t.counter {
			t.clock.at, t.clock.seen = r.now, r.tick
			if i < len(d.Ages) {
				t.clock.at -= d.Ages[i]
			}
		}
		r.put(t, v)
	}
}

// holder records a claim or pod, until it ends.
func (r *ring) holder(h *book.Holder, kind OwnerKind, s *book.Snapshot) {
	if !h.Ended.IsZero() && !h.Ended.After(r.before) {
		return
	}
	for i := range h.Values {
		v := &h.Values[i]
		t := r.track(v.Series)
		if t == nil {
			t = r.open(v, r.owner(h.HolderKey, kind))
			t.clock = r.clockOf(h.Device, v, s)
		}
		r.put(t, v)
	}
}

// clockOf returns the clock of a holder's counter: that of the device, or of its parent; nil if
// neither has the counter.
func (r *ring) clockOf(id driver.ID, v *book.Value, s *book.Snapshot) *clock {
	if c := r.clocks[clockKey{id, labelled{v.Quantity, v.Labels}}]; c != nil {
		return c
	}
	i := s.IndexOf(id)
	if i < 0 || s.Devices[i].Parent == "" {
		return nil
	}
	id.Device = s.Devices[i].Parent
	return r.clocks[clockKey{id, labelled{v.Quantity, v.Labels}}]
}

// put records the value of a series.
func (r *ring) put(t *track, v *book.Value) {
	r.next = int(t.place) + 1
	t.seen = r.tick
	code := &r.present.codes[int(t.place)*r.width+len(r.present.times)]
	if !t.counter {
		*code = codeOf(v.Value)
		return
	}
	at := r.now
	if t.clock != nil {
		if t.clock.seen != r.tick {
			return // the device was not read
		}
		at = t.clock.at
	}
	if at > t.at {
		t.rate = absent
		if rate := (v.Value - t.last) / (at - t.at).Seconds(); rate >= 0 { // NaN for the first reading
			t.rate = codeOf(rate)
		}
		t.last, t.at = v.Value, at
	}
	*code = t.rate
}

// track returns the track of a series, nil if the series is new. Snapshots mostly have the same
// order of series.
func (r *ring) track(key *book.Series) *track {
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
	case *book.HolderKey:
		o.Namespace, o.Name, o.Device = key.Namespace, key.Name, key.Device
	}
	r.owners[key] = o
	return o
}

// open begins a series. A counter that began since the previous tick counts from 0. The first
// increment of any other counter is unknown.
func (r *ring) open(v *book.Value, owner *Owner) *track {
	counter := r.catalogue.Spec(v.Quantity).Type == driver.Counter
	t := r.newTrack()
	*t.meta = meta{v.Series, owner, counter}
	t.place, t.rate, t.at = int32(len(r.order)), absent, math.MinInt64
	if counter && !r.before.IsZero() && v.Born.After(r.before) {
		t.at = v.Born.Sub(r.began)
	} else if counter {
		t.last = math.NaN()
	}
	r.tracks[v.Series] = t
	r.order = append(r.order, t)
	r.column(t.meta)
	return t
}

// column adds a series without values to the present block.
func (r *ring) column(m *meta) {
	b := &r.present
	b.series, b.begins = append(b.series, m), append(b.begins, uint32(len(b.codes)))
	for range r.width {
		b.codes = append(b.codes, absent)
	}
}

// trackChunk is the number of tracks that are allocated together, since many small objects cost
// time in garbage collection. One track in use keeps the memory of all.
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

// seal ends the present block, and forgets blocks that are too old or too many.
func (r *ring) seal(now time.Time) {
	b := r.present.packed()
	sealed := r.sealed
	if last := len(sealed) - 1; last >= 0 && slices.Equal(sealed[last].series, b.series) {
		b.series = sealed[last].series
	}
	r.bytes += b.size()
	for len(sealed) > 0 {
		oldest := sealed[0]
		if r.bytes <= r.maxBytes && now.Sub(oldest.times[len(oldest.times)-1]) <= r.keep {
			break
		}
		r.bytes -= oldest.size()
		sealed = sealed[1:]
	}
	r.sealed = append(slices.Clone(sealed), b) // tapes share the other one
	r.forget(len(b.times))
	room := len(r.order) + len(r.order)/16 + 1
	r.width = min(blockTicks, max(1, maxCodes/room))
	r.present = block{
		times: make([]time.Time, 0, r.width), series: make([]*meta, 0, room), begins: make([]uint32, 0, room),
		codes: make([]code, 0, room*r.width),
	}
	for place, t := range r.order {
		t.place = int32(place)
		r.column(t.meta)
	}
}

// forget drops series that the ended block, with the given number of ticks, did not have.
func (r *ring) forget(ticks int) {
	gone := func(t *track) bool { return t.seen+uint64(ticks) <= r.tick }
	maps.DeleteFunc(r.tracks, func(_ *book.Series, t *track) bool { return gone(t) })
	r.order = slices.DeleteFunc(r.order, gone)
	owners, clocks := map[*Owner]bool{}, map[*clock]bool{}
	for _, t := range r.order {
		owners[t.owner], clocks[t.clock] = true, true
	}
	maps.DeleteFunc(r.owners, func(_ any, o *Owner) bool { return !owners[o] })
	maps.DeleteFunc(r.clocks, func(_ clockKey, c *clock) bool { return !clocks[c] })
}

// code is a recorded value: its sign, 6 bits of its exponent, and mantissaBits of its mantissa,
// rounded. It has the values from a millionth to 10^13; smaller ones are 0. This suffices for all
// quantities in their units.
type code uint16

const (
	mantissaBits = 9
	dropped      = 52 - mantissaBits
	// lowest is the code that the smallest value would have with all bits of its exponent.
	lowest = (1023 - 20) << mantissaBits

	// absent is the code of an absent value, that of a negative zero.
	absent code = 1 << 15
)

// codeOf returns the code of a value, absent for one that is no finite number.
func codeOf(v float64) code {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return absent
	}
	rounded := (math.Float64bits(math.Abs(v)) + 1<<(dropped-1)) >> dropped
	if rounded <= lowest {
		return 0
	}
	c := code(min(rounded-lowest, uint64(absent)-1))
	if v < 0 {
		c |= absent
	}
	return c
}

// value returns the value of a code, NaN if it is absent.
func (c code) value() float64 {
	switch c {
	case absent:
		return math.NaN()
	case 0:
		return 0
	default:
	}
	return math.Copysign(math.Float64frombits((uint64(c&^absent)+lowest)<<dropped), float64(int16(c)))
}
