package exposition

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Renderer writes the metrics of the latest snapshot together with those of a registry. It makes no
// calls to anything else. It is safe for concurrent use.
//
// It omits the checks of client_golang's registry, which would take most of the time: the snapshot
// guarantees unique series and consistent labels, and tests check that.
type Renderer struct {
	registry prometheus.Gatherer
	latest   func() *Snapshot
	labels   *labelCache
	config   Config
	families *[numFamilies]Family
	order    []familyID      // by name
	idle     chan *rendering // a rendering for reuse of its memory, if none is in use
}

// Config configures a [Renderer].
type Config struct {
	ZeroHold       time.Duration    // for this time after its first export, a counter is written as 0
	CreatedSamples bool             // _created lines in OpenMetrics text
	Choices        Choices          // of groups; nil: the defaults
	Catalogue      driver.Catalogue // of the snapshots; nil: the standard one

	allSources bool // chosen
}

// New returns a renderer. latest returns nil before the first snapshot.
func New(registry prometheus.Gatherer, latest func() *Snapshot, c Config) *Renderer {
	catalogue := c.Catalogue.OrStandard()
	c.allSources = c.Choices.Of(GroupQuantitySource) == On
	e := &Renderer{
		registry: registry, latest: latest, labels: newLabelCache(catalogue), config: c,
		families: allFamilies(catalogue, c.Choices),
		idle:     make(chan *rendering, 1),
	}
	for id := range numFamilies {
		if e.families[id].Name != "" {
			e.order = append(e.order, id)
		}
	}
	slices.SortFunc(e.order, func(a, b familyID) int { return strings.Compare(e.families[a].Name, e.families[b].Name) })
	return e
}

// Part is the position of a family in an answer. The last part has no family, and ends the answer.
type Part struct {
	Family     string
	Begin, End int
}

// Write writes the metrics in a format of expfmt, with the families sorted by name. It returns the
// parts of the answer, in order. An error describes what the registry could not provide; the rest
// has been written. A bytes.Buffer is grown to the needed size at once.
func (e *Renderer) Write(w io.Writer, f expfmt.Format) ([]Part, error) {
	r := e.rendering(formatOf(f, e.config.CreatedSamples))
	defer e.keep(r)
	if s := e.latest(); s != nil {
		r.take(s, e.labels, e.config)
	}
	if room, ok := w.(interface{ Grow(size int) }); ok {
		room.Grow(r.totals[r.format] + r.totals[r.format]/16)
	}
	out := &counted{w: w}
	parts, err := e.assemble(r, f, out)
	r.totals[r.format] = out.n
	if out.err != nil {
		return nil, fmt.Errorf("write metrics: %w", out.err)
	}
	return parts, err
}

// rendering returns an empty rendering. It reuses memory if it can.
func (e *Renderer) rendering(f format) *rendering {
	var r *rendering
	select {
	case r = <-e.idle:
	default:
		r = &rendering{
			families: e.families, classic: e.config.Choices.Of(GroupHistograms) == Classic, totals: map[format]int{},
		}
	}
	r.format = f
	return r
}

// keep keeps a rendering's memory for the next answer: 1 MiB for 20 000 samples. It keeps nothing
// of the snapshot.
func (e *Renderer) keep(r *rendering) {
	for id, rows := range r.rows {
		if len(rows) < cap(rows)/4 { // most claims and pods have ended
			rows = nil
		}
		clear(rows)
		r.rows[id] = rows[:0]
	}
	select {
	case e.idle <- r:
	default:
	}
}

// counted counts the bytes written to w. After an error, it writes nothing.
type counted struct {
	w   io.Writer
	n   int
	err error
}

// Write implements [io.Writer].
func (c *counted) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	var n int
	n, c.err = c.w.Write(p)
	c.n += n
	return n, c.err
}

// assemble merges the families of the rendering and of the registry, in the order of their names.
func (e *Renderer) assemble(r *rendering, f expfmt.Format, out *counted) ([]Part, error) {
	own, err := e.registry.Gather()
	var options []expfmt.EncoderOption
	if e.config.CreatedSamples {
		options = append(options, expfmt.WithCreatedLines())
	}
	library := expfmt.NewEncoder(out, f, options...)
	var parts []Part
	begin := 0
	end := func(family string) {
		parts = append(parts, Part{family, begin, out.n})
		begin = out.n
	}
	write := func(some []byte) { _, _ = out.Write(some) } // out keeps the error
	encode := func(f *dto.MetricFamily) {
		err = cmp.Or(err, library.Encode(f))
		end(f.GetName())
	}
	for _, id := range e.order {
		name := e.families[id].Name
		body := r.encode(id)
		if len(body) == 0 {
			continue
		}
		for len(own) > 0 && own[0].GetName() < name {
			encode(own[0])
			own = own[1:]
		}
		head, tail := r.format.family(&e.families[id], len(body))
		write(head)
		write(body)
		write(tail)
		end(name)
	}
	for _, f := range own {
		encode(f)
	}
	write(r.format.end())
	end("")
	return parts, err
}

// formats returns the formats that can be negotiated, the preferred one first.
func formats() []expfmt.Format {
	var out []expfmt.Format
	for _, f := range expfmt.DefaultOpenMetricsAcceptedFormats() {
		switch f.FormatType() {
		case expfmt.TypeProtoDelim, expfmt.TypeOpenMetrics, expfmt.TypeTextPlain:
			out = append(out, f)
		}
	}
	return out
}

// Negotiate returns the format that a client prefers. The requested escaping scheme does not
// matter, since the names of metrics and labels need no escaping.
func Negotiate(h http.Header) expfmt.Format { return expfmt.NegotiateAccept(h, formats()...) }

// rendering is a sink that collects the samples of a snapshot, and then writes family after family.
type rendering struct {
	families *[numFamilies]Family
	format   format
	classic  bool // all distributions have classic buckets
	keep     int
	now      int64 // of the snapshot, in nanoseconds of Unix time
	held     int64 // by the clock of age.shown: counters that were first exported after it are written as 0
	rows     [numFamilies][]row
	body     []byte         // of the family being written
	totals   map[format]int // size of the last answer in bytes

	histogram distribution.Histogram // memory for the histogram being written
}

// row is a sample. A scrape has tens of thousands of them.
type row struct {
	labels       *labels
	value        float64
	born         int64              // the created timestamp in nanoseconds of Unix time; 0: none
	distribution *book.Distribution // nil: the value
}

func (r *rendering) take(s *Snapshot, cache *labelCache, c Config) {
	cache.begin(s.Time)
	defer cache.end()
	r.keep, r.now, r.held = s.keep, s.Time.UnixNano(), math.MaxInt64
	if c.ZeroHold > 0 {
		r.held = cache.since(s.Time.Add(-c.ZeroHold))
	}
	s.walk(&emission{sink: r, families: r.families, specs: cache.specs, cache: cache, allSources: c.allSources})
}

func (r *rendering) put(id familyID, l *labels, value float64, a age) {
	f := &r.families[id]
	if r.drops(f) {
		return
	}
	if a.shown > r.held && f.Type == driver.Counter {
		value = 0
	}
	r.add(id, row{labels: l, value: value, born: r.begun(a)})
}

func (r *rendering) putDistribution(id familyID, l *labels, d *book.Distribution, a age) {
	if r.drops(&r.families[id]) {
		return
	}
	if a.shown > r.held {
		d = &book.Distribution{}
	}
	r.add(id, row{labels: l, born: r.begun(a), distribution: d})
}

// add adds a sample. It renders the labels, since only this walk uses the cache now.
func (r *rendering) add(id familyID, s row) {
	if _, ok := r.format.(protobufFormat); ok {
		s.labels.makeProtobuf()
	}
	r.rows[id] = append(r.rows[id], s)
}

// encode returns the samples of a family. The result is valid until the next call.
func (r *rendering) encode(id familyID) []byte {
	f, body := &r.families[id], r.body[:0]
	for i := range r.rows[id] {
		s := &r.rows[id][i]
		if s.distribution != nil {
			s.distribution.Read(&r.histogram)
			body = r.format.histogram(body, f, s.labels, &r.histogram, s.born, r.classic)
		} else {
			body = r.format.sample(body, f, s.labels, s.value, s.born)
		}
	}
	r.body = body
	return body
}

// drops reports whether the limit drops the family.
func (r *rendering) drops(f *Family) bool { return int(f.rank) < r.keep }

// begun returns the created timestamp of a counter, in nanoseconds of Unix time. If the wall clock
// was set back, it is 0 (none), since a counter does not begin in the future.
func (r *rendering) begun(a age) int64 {
	if a.born > r.now {
		return 0
	}
	return a.born
}

// Snapshot is a ledger's snapshot with the decision which of its series are exported.
type Snapshot struct {
	*book.Snapshot
	Series  int // number of exported ones, without the exporter's own
	Dropped int // number of those that the limit drops

	keep int // families of a lower rank are dropped
}

// Limiter keeps the number of exported series at or below a limit. It first drops ended claims and
// pods, the oldest first, then whole families by rank. Families return when the series would be at
// most nine tenths of the limit. It is not safe for concurrent use.
type Limiter struct {
	max     int // 0: no limit
	choices Choices
	keep    int // the lowest exported rank
	evicted []eviction

	classic, allSources bool // chosen

	families *[numFamilies]Family // of the snapshots' catalogue; nil: no snapshot yet
}

// NewLimiter returns a limiter for the series of the chosen groups. maxSeries 0 means no limit.
func NewLimiter(maxSeries int, choices Choices) *Limiter {
	return &Limiter{
		max: maxSeries, choices: choices,
		classic: choices.Of(GroupHistograms) == Classic, allSources: choices.Of(GroupQuantitySource) == On,
	}
}

// eviction records how many series were dropped before their retention was over.
type eviction struct {
	until  time.Time
	series int
}

// rank is the order in which families are dropped, the lowest first.
type rank int

const (
	rankPod rank = iota
	rankClaim
	rankUnattributed
	rankDevice
	rankHolderInfo
	rankVital // up and info: dropped last
	rankOwn   // the exporter's own: never dropped, and not counted
	numRanks  = rankOwn
)

// counting is a sink that counts series by rank.
type counting struct {
	families *[numFamilies]Family
	classic  bool // distributions have classic buckets
	ranks    [numRanks + 1]int
}

func (c *counting) put(id familyID, _ *labels, _ float64, _ age) {
	c.ranks[c.families[id].rank]++
}

func (c *counting) putDistribution(id familyID, _ *labels, _ *book.Distribution, _ age) {
	f := &c.families[id]
	c.ranks[f.rank] += f.Series(c.classic)
}

// Series returns the number of series that one series of the family counts for. Prometheus stores a
// native histogram as one, and a classic one as one for each bucket, the count and the sum.
func (f *Family) Series(classic bool) int {
	switch {
	case f.Histogram && classic:
		return len(classicBounds(f)) + 3
	case f.Histogram && f.Summed: // in text
		return 3
	default:
		return 1
	}
}

func (c *counting) atLeast(keep int) int {
	n := 0
	for r := keep; r < int(numRanks); r++ {
		n += c.ranks[r]
	}
	return n
}

// deviceRank returns the rank of a device family of a quantity.
func deviceRank(spec *driver.Spec) rank {
	if spec.Rank == driver.RankState {
		return rankVital
	}
	return rankDevice
}

// Apply decides which series of the ledger's newest snapshot are exported. It may drop rows of s,
// which must not be in use elsewhere yet.
func (l *Limiter) Apply(books book.Evicter, s *book.Snapshot) *Snapshot {
	out := &Snapshot{Snapshot: s}
	if l.families == nil {
		l.families = allFamilies(s.Catalogue.OrStandard(), l.choices)
	}
	c := l.count(out, out.walk)
	if l.max <= 0 {
		out.Series = c.atLeast(0)
		return out
	}
	most := l.max
	if l.keep > 0 { // ended holders must not keep families from returning
		most = l.max * 9 / 10
	}
	if over := c.atLeast(0) - most; over > 0 {
		books.Evict(s, func(h *book.Holder, pod bool, until time.Time) bool {
			if over <= 0 {
				return false
			}
			ended := l.count(out, func(e *emission) {
				if pod {
					e.pod(h, s.Time)
				} else {
					e.claim(h, out)
				}
			})
			n := ended.atLeast(0)
			over -= n
			l.evicted = append(l.evicted, eviction{until: until, series: n})
			return true
		})
		c = l.count(out, out.walk)
	}
	for l.keep < int(numRanks) && c.atLeast(l.keep) > l.max {
		l.keep++
	}
	for l.keep > 0 && c.atLeast(l.keep-1) <= l.max*9/10 {
		l.keep--
	}
	out.keep = l.keep
	out.Series = c.atLeast(l.keep)
	out.Dropped = c.atLeast(0) - out.Series
	l.evicted = slices.DeleteFunc(l.evicted, func(e eviction) bool { return e.until.Before(s.Time) })
	for _, e := range l.evicted {
		out.Dropped += e.series
	}
	return out
}

// count returns the numbers of the series that a walk over a snapshot passes.
func (l *Limiter) count(s *Snapshot, walk func(*emission)) counting {
	c := counting{families: l.families, classic: l.classic}
	walk(&emission{sink: &c, families: l.families, specs: s.Catalogue, allSources: l.allSources})
	return c
}
