package exporter

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Exposition writes the metrics of the last snapshot, and those of a registry among them. It makes no call to anything:
// what a scrape costs is the making of the answer.
//
// It leaves out a registry's checks, which would cost more than all the rest: that series are unique and labels
// consistent is held by the snapshot, and by tests.
type Exposition struct {
	registry prometheus.Gatherer
	latest   func() *Snapshot
	config   ExpositionConfig
	families [numFamilies]Family
	order    []familyID // by name
	memory   sync.Pool  // of *rendering
}

// ExpositionConfig are the settings of an Exposition.
type ExpositionConfig struct {
	ZeroHold       time.Duration // a counter that was first exported less than this ago is shown as 0
	CreatedSamples bool          // _created lines in OpenMetrics text
	Error          func(error)   // is told what of an answer is missing; nil: nobody is
}

// NewExposition returns an Exposition. latest returns nil before the first snapshot.
func NewExposition(registry prometheus.Gatherer, latest func() *Snapshot, c ExpositionConfig) *Exposition {
	e := &Exposition{registry: registry, latest: latest, config: c}
	for id := range numFamilies {
		if e.families[id] = family(id); e.families[id].Name != "" {
			e.order = append(e.order, id)
		}
	}
	slices.SortFunc(e.order, func(a, b familyID) int { return strings.Compare(e.families[a].Name, e.families[b].Name) })
	return e
}

// Write writes the metrics in a format of expfmt's, with the families sorted by name. wanted tells by name which; nil
// wants all. An error says what of the registry's could not be had: the rest is written.
func (e *Exposition) Write(w io.Writer, f expfmt.Format, wanted func(name string) bool) error {
	r, _ := e.memory.Get().(*rendering)
	if r == nil {
		r = &rendering{families: &e.families}
	}
	defer e.memory.Put(r)
	r.begin(formatOf(f, e.config.CreatedSamples))
	if s := e.latest(); s != nil {
		r.take(s, e.config.ZeroHold)
	}
	err := e.assemble(r, f, wanted)
	if _, failed := w.Write(r.out.Bytes()); failed != nil {
		return fmt.Errorf("write metrics: %w", failed)
	}
	return err
}

// assemble puts the rendering's families and the registry's together in the order of their names.
func (e *Exposition) assemble(r *rendering, f expfmt.Format, wanted func(string) bool) error {
	own, err := e.registry.Gather()
	if wanted != nil {
		own = slices.DeleteFunc(own, func(f *dto.MetricFamily) bool { return !wanted(f.GetName()) })
	}
	var options []expfmt.EncoderOption
	if e.config.CreatedSamples {
		options = append(options, expfmt.WithCreatedLines())
	}
	library := expfmt.NewEncoder(&r.out, f, options...)
	encode := func(f *dto.MetricFamily) { err = cmp.Or(err, library.Encode(f)) }
	for _, id := range e.order {
		name := e.families[id].Name
		if len(r.bodies[id]) == 0 || wanted != nil && !wanted(name) {
			continue
		}
		for len(own) > 0 && own[0].GetName() < name {
			encode(own[0])
			own = own[1:]
		}
		r.out.Write(r.format.family(r.out.AvailableBuffer(), &e.families[id], r.bodies[id]))
	}
	for _, f := range own {
		encode(f)
	}
	r.out.Write(r.format.end(r.out.AvailableBuffer()))
	return err
}

// formats are those that can be agreed upon, the preferred one first.
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

// ServeHTTP answers a scrape in the format that the client prefers. A query of name[] asks for these families alone.
func (e *Exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := expfmt.NegotiateAccept(r.Header, formats()...)
	var wanted func(string) bool
	if names := r.URL.Query()["name[]"]; len(names) > 0 {
		wanted = func(name string) bool { return slices.Contains(names, name) }
	}
	w.Header().Set("Content-Type", string(f))
	if err := e.Write(w, f, wanted); err != nil && e.config.Error != nil {
		e.config.Error(err)
	}
}

// rendering is a sink that writes samples. It can be used again, with the memory that it has.
type rendering struct {
	families *[numFamilies]Family
	format   format
	keep     int
	held     time.Time // counters first exported after it are held at 0; zero: none is
	bodies   [numFamilies][]byte
	out      bytes.Buffer
}

// begin empties the rendering.
func (r *rendering) begin(f format) {
	r.format = f
	for id := range r.bodies {
		r.bodies[id] = r.bodies[id][:0]
	}
	r.out.Reset()
}

func (r *rendering) take(s *Snapshot, zeroHold time.Duration) {
	r.keep, r.held = s.keep, time.Time{}
	if zeroHold > 0 {
		r.held = s.Time.Add(-zeroHold)
	}
	s.walk(emission{sink: r, cache: s.labels})
}

func (r *rendering) put(id familyID, l *labels, value float64, born, shown time.Time) {
	if n, limited := rankOf(id); limited && int(n) < r.keep {
		return
	}
	f := &r.families[id]
	if f.Type == driver.Counter && !r.held.IsZero() && shown.After(r.held) {
		value = 0
	}
	r.bodies[id] = r.format.sample(r.bodies[id], f, l, value, born)
}
