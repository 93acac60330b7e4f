package exposition

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Renderer writes the metrics of the latest snapshot together with those of a registry. It makes no
// calls to anything else. It is safe for concurrent use.
//
// It omits the checks of client_golang's registry, which would cost more than all the rest: the
// snapshot guarantees that series are unique and labels consistent, and tests check it.
type Renderer struct {
	registry prometheus.Gatherer
	latest   func() *Snapshot
	labels   *labelCache
	config   Config
	families *[numFamilies]Family
	order    []familyID             // by name
	sizes    chan *[numFamilies]int // of the bodies of an earlier rendering, in bytes
}

// Config configures a [Renderer].
type Config struct {
	ZeroHold       time.Duration    // a counter that was first exported less than this ago is written as 0
	CreatedSamples bool             // _created lines in OpenMetrics text
	Choices        Choices          // which groups of metrics are exported; nil: the default
	Catalogue      driver.Catalogue // of the snapshots; nil: the standard one
}

// New returns a renderer. latest returns nil before the first snapshot.
func New(registry prometheus.Gatherer, latest func() *Snapshot, c Config) *Renderer {
	catalogue := c.Catalogue.OrStandard()
	e := &Renderer{
		registry: registry, latest: latest, labels: newLabelCache(catalogue), config: c,
		families: allFamilies(catalogue, c.Choices),
		sizes:    make(chan *[numFamilies]int, 1),
	}
	for id := range numFamilies {
		if e.families[id].Name != "" {
			e.order = append(e.order, id)
		}
	}
	slices.SortFunc(e.order, func(a, b familyID) int { return strings.Compare(e.families[a].Name, e.families[b].Name) })
	return e
}

// Part is where a family is in what was written. The last part, of no family, ends the answer.
type Part struct {
	Family     string
	Begin, End int
}

// Write writes the metrics in a format of expfmt, with the families sorted by name. It returns the
// parts of what was written, in order. An error describes what the registry could not provide; the
// rest is written. A bytes.Buffer is grown at once to what it needs.
func (e *Renderer) Write(w io.Writer, f expfmt.Format) ([]Part, error) {
	r := e.rendering(formatOf(f, e.config.CreatedSamples))
	defer e.keepSizes(r)
	r.classic = e.config.Choices.Of(GroupHistograms) == Classic
	if s := e.latest(); s != nil {
		r.take(s, e.labels, e.config)
	}
	if room, ok := w.(interface{ Grow(size int) }); ok {
		room.Grow(r.size())
	}
	out := &counted{w: w}
	parts, err := e.assemble(r, f, out)
	if out.err != nil {
		return nil, fmt.Errorf("write metrics: %w", out.err)
	}
	return parts, err
}

// rendering returns an empty rendering, with memory for bodies of the sizes that they had before.
// The memory itself is not kept: between two scrapes it would be most of what the program has.
func (e *Renderer) rendering(f format) *rendering {
	r := &rendering{families: e.families, format: f}
	select {
	case sizes := <-e.sizes:
		for id, n := range sizes {
			r.bodies[id] = make([]byte, 0, n+n/16)
		}
	default:
	}
	return r
}

// keepSizes keeps the sizes of a rendering's bodies for the next answer.
func (e *Renderer) keepSizes(r *rendering) {
	var sizes [numFamilies]int
	for id := range r.bodies {
		sizes[id] = len(r.bodies[id])
	}
	select {
	case e.sizes <- &sizes:
	default:
	}
}

// counted is a writer that counts what was written to w, and writes nothing after an error.
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

// assemble merges the rendering's families and the registry's in the order of their names.
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
		if len(r.bodies[id]) == 0 {
			continue
		}
		for len(own) > 0 && own[0].GetName() < name {
			encode(own[0])
			own = own[1:]
		}
		head, tail := r.format.family(&e.families[id], len(r.bodies[id]))
		write(head)
		write(r.bodies[id])
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

// Negotiate returns the format that a client prefers. The names of metrics and labels are plain, so
// the scheme by which a client wants others escaped changes nothing of what is written.
func Negotiate(h http.Header) expfmt.Format { return expfmt.NegotiateAccept(h, formats()...) }

// rendering is a sink that writes samples.
type rendering struct {
	families *[numFamilies]Family
	format   format
	classic  bool // distributions have classic buckets
	keep     int
	now      time.Time // of the snapshot, without the monotonic clock
	held     time.Time // counters first exported after it are written as 0; zero: none
	bodies   [numFamilies][]byte
}

// size returns about how many bytes the answer will have.
func (r *rendering) size() int {
	size := 64 << 10 // the registry's, and the families' heads
	for _, body := range r.bodies {
		size += len(body)
	}
	return size
}

func (r *rendering) take(s *Snapshot, cache *labelCache, c Config) {
	r.keep, r.now, r.held = s.keep, s.Time.Round(0), time.Time{}
	if c.ZeroHold > 0 {
		r.held = s.Time.Add(-c.ZeroHold)
	}
	cache.begin(s.Time)
	defer cache.end()
	s.walk(emission{sink: r, families: r.families, choices: c.Choices, specs: cache.specs, cache: cache})
}

func (r *rendering) put(id familyID, l *labels, value float64, born, shown time.Time) {
	f := &r.families[id]
	if r.drops(f) {
		return
	}
	if f.Type == driver.Counter && r.holds(shown) {
		value = 0
	}
	r.bodies[id] = r.format.sample(r.bodies[id], f, l, value, r.begun(born))
}

func (r *rendering) putDistribution(id familyID, l *labels, d *ledger.Distribution) {
	f := &r.families[id]
	if r.drops(f) {
		return
	}
	h := &d.Histogram
	if r.holds(d.Shown) {
		h = &distribution.Histogram{}
	}
	r.bodies[id] = r.format.histogram(r.bodies[id], f, l, h, r.begun(d.Born), r.classic)
}

// drops reports whether the limit drops the family.
func (r *rendering) drops(f *Family) bool { return !f.unlimited && int(f.rank) < r.keep }

// holds reports whether a counter that was first exported at that time is written as 0.
func (r *rendering) holds(shown time.Time) bool { return !r.held.IsZero() && shown.After(r.held) }

// begun returns the created timestamp of a counter that was born then. If the wall clock went back,
// there is none: a counter does not begin in the future.
func (r *rendering) begun(born time.Time) time.Time {
	if born.Round(0).After(r.now) {
		return time.Time{}
	}
	return born
}
