package recorder

import (
	"bytes"
	"cmp"
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

// rank orders kinds, devices first.
func (k OwnerKind) rank() int {
	switch k {
	case OfDevice:
		return 0
	case OfClaim:
		return 1
	default:
		return 2
	}
}

// Owner is the owner of a series: a device, or a claim or pod with its part of a device.
type Owner struct {
	Kind            OwnerKind
	Namespace, Name string // of the claim or pod
	Device          driver.ID
}

func (o Owner) compare(other Owner) int {
	return cmp.Or(
		cmp.Compare(o.Kind.rank(), other.Kind.rank()), o.Device.Compare(other.Device),
		strings.Compare(o.Namespace, other.Namespace), strings.Compare(o.Name, other.Name),
	)
}

const (
	// blockTicks is the number of ticks of a block. The ring forgets whole blocks.
	blockTicks = 60
	// seriesOverhead is the memory of a series in a block besides its data, in bytes: its metadata,
	// unless the previous block has the same series, and its span.
	seriesOverhead = 16
	// maxCodes is the number of values that ends a block early: in the present block, each takes 4
	// bytes.
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

// frame has the codes of the values of one tick, in the order of the block's series. It lacks
// series that were added later. It is immutable.
type frame []code

// block has the series of some ticks. It is immutable.
type block struct {
	times  []time.Time
	data   []byte
	series []*meta
	spans  []span // position of each series' data
}

// span is a part of a block's data. Series with equal values share one, such as those of a claim
// and its only pod, or of holders with equal parts of a device.
type span struct{ begin, end uint32 }

func (b *block) size() int { return len(b.data) + len(b.series)*seriesOverhead + len(b.times)*24 }

// tape is the recording of a ring. It is immutable: the ring only appends behind the end of a tape.
type tape struct {
	sealed []*block
	// The present block: one frame per tick.
	times     []time.Time
	frames    []frame
	series    []*meta
	catalogue driver.Catalogue
}

// begins returns the time of the first tick; the zero time: there is none.
func (r *tape) begins() time.Time {
	switch {
	case len(r.sealed) > 0:
		return r.sealed[0].times[0]
	case len(r.times) > 0:
		return r.times[0]
	default:
		return time.Time{}
	}
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
	frame  frame         // of this tick
	codes  int           // number of codes in the present block
	tracks map[*book.Series]*track
	order  []*track // of the present block, in the order of their first values
	free   []track  // memory for reuse
	metas  []meta   // memory for their metadata
	next   int      // position in order of the series that probably comes next
	owners map[any]*Owner
	clocks map[clockKey]*clock
	bytes  int // of sealed blocks
}

func newRing(keep time.Duration, maxBytes int) *ring {
	return &ring{
		keep: keep, maxBytes: maxBytes, tracks: map[*book.Series]*track{}, owners: map[any]*Owner{},
		clocks: map[clockKey]*clock{},
	}
}

// record adds a snapshot.
func (r *ring) record(s *book.Snapshot) {
	if len(r.times) == blockTicks || r.codes >= maxCodes {
		r.seal(s.Time)
	}
	r.tick++
	r.next = 0
	r.catalogue = s.Catalogue.OrStandard()
	r.frame = make(frame, len(r.order), len(r.order)+len(r.order)/16)
	for i := range r.frame {
		r.frame[i] = absent
	}
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
	r.times, r.frames = append(r.times, s.Time), append(r.frames, r.frame)
	r.codes += len(r.frame)
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
	i := slices.IndexFunc(s.Devices, func(d book.Device) bool { return d.ID == id })
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
	if !t.counter {
		r.frame[t.place] = codeOf(v.Value)
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
	r.frame[t.place] = t.rate
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
	r.order, r.series, r.frame = append(r.order, t), append(r.series, t.meta), append(r.frame, absent)
	return t
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
	b := r.encode()
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
	r.times, r.frames, r.codes = make([]time.Time, 0, blockTicks), make([]frame, 0, blockTicks), 0
	r.forget(len(b.times))
}

// encode encodes the present block.
func (r *ring) encode() *block {
	b := &block{
		times: slices.Clip(r.times), series: make([]*meta, 0, len(r.order)), spans: make([]span, 0, len(r.order)),
	}
	known := map[string]span{} // by encoded data
	data := make([]byte, 0, r.codes/2)
	for place, m := range r.series {
		begin := len(data)
		e := encoder{out: data, absent: true}
		for n, f := range r.frames {
			if place < len(f) && f[place] != absent {
				e.skip(n - e.ticks)
				e.put(f[place])
			}
		}
		if e.ticks == 0 {
			continue
		}
		e.flush()
		at, found := known[string(e.out[begin:])]
		if !found {
			data = e.out
			at = span{uint32(begin), uint32(len(data))}
			known[string(data[begin:])] = at
		}
		b.series, b.spans = append(b.series, m), append(b.spans, at)
	}
	b.data = bytes.Clone(data)
	return b
}

// forget drops series that the ended block, with the given number of ticks, did not have.
func (r *ring) forget(ticks int) {
	gone := func(t *track) bool { return t.seen+uint64(ticks) <= r.tick }
	for key, t := range r.tracks {
		if gone(t) {
			delete(r.tracks, key)
		}
	}
	r.order = slices.DeleteFunc(r.order, gone)
	r.series = make([]*meta, len(r.order), len(r.order)+len(r.order)/16)
	used, clocks := map[*Owner]bool{}, map[*clock]bool{}
	for place, t := range r.order {
		t.place, r.series[place] = int32(place), t.meta
		used[t.owner], clocks[t.clock] = true, true
	}
	for key, o := range r.owners {
		if !used[o] {
			delete(r.owners, key)
		}
	}
	maps.DeleteFunc(r.clocks, func(_ clockKey, c *clock) bool { return !clocks[c] })
}
