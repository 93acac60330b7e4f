// Package scrape reads metrics of other exporters: a [Source] scrapes one Prometheus endpoint and
// maps the configured metrics to quantities of the catalogue.
//
// A response is not trusted: its bytes, line lengths, series, identities and text are bounded
// (config.go). A line that cannot be used is rejected alone and counted by reason
// ([Source.Rejected]).
//
// The time of a reading is the estimated time at which the exporter refreshed the value.
//
// Bounds (max…) are for what other exporters send.
package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// staleIntervals is the number of intervals after which the readings of the last usable response
// are omitted.
const staleIntervals = 3

// Source reads one endpoint.
type Source struct {
	endpoint Endpoint
	client   *http.Client
	rules    *ruleset
	gpus     *amdGPUs
	now      func() time.Time

	// The fields below are used only by Sample.
	due      time.Time // time of the next request
	answered time.Time // time of the last usable response
	answer   answer    // values of that response, with times
	order    []key     // of its values, sorted
	matched  []bool    // metrics, by rank, that had a usable series in any response
	err      error     // of the last request
	fresh    freshness

	mu       sync.Mutex // guards the fields below
	rejected driver.Rejections
	unnamed  []string // lines of Describe
}

var (
	_ driver.Source           = (*Source)(nil)
	_ driver.RejectionCounter = (*Source)(nil)
	_ driver.Describer        = (*Source)(nil)
)

// New returns the source of an endpoint, which must come from [ParseConfig]. sysfs is where sysfs
// is mounted, by which AMD GPUs are found by serial number. New reads the files of the client
// settings, sends no request and starts no goroutine.
func New(endpoint Endpoint, sysfs string) (*Source, error) {
	client, err := newClient(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: client settings: %w", endpoint.Name, err)
	}
	rules, err := compile(&endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", endpoint.Name, err)
	}
	return &Source{
		endpoint: endpoint, client: client, rules: rules, now: time.Now, gpus: newAMDGPUs(sysfs),
		fresh: freshness{refresh: time.Duration(endpoint.Refresh)}, matched: make([]bool, len(endpoint.Metrics)),
		rejected: driver.Rejections{},
	}, nil
}

// Name returns scrape/NAME with the name of the endpoint.
func (s *Source) Name() string { return "scrape/" + s.endpoint.Name }

// Fills returns the quantities of the endpoint's configuration, without duplicates.
func (s *Source) Fills() []driver.Quantity {
	var out []driver.Quantity
	for _, m := range s.endpoint.Metrics {
		if q, known := driver.Standard().Named(m.Quantity); known && !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}

// Sample returns the readings of the last response. It sends a request once per interval, however
// often it is called.
//
// While requests fail, it returns the error of the last one and the readings of the last usable
// response, until that is older than three intervals plus one timeout; after that it returns the
// hardware without readings.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	now := s.now()
	if err := ctx.Err(); err != nil {
		return s.samples(now), err
	}
	if !now.Before(s.due) {
		s.schedule(now)
		s.err = s.refresh(ctx, now)
	}
	return s.samples(s.now()), s.err
}

// schedule sets the time of the next request to one interval after this one was due or, if that is
// in the past, to one interval from now.
func (s *Source) schedule(now time.Time) {
	interval := time.Duration(s.endpoint.Interval)
	if s.due = s.due.Add(interval); !s.due.After(now) {
		s.due = now.Add(interval)
	}
}

// refresh scrapes the endpoint and, on success, replaces the values.
func (s *Source) refresh(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.endpoint.Timeout))
	defer cancel()
	var unread error
	if s.rules.gpus {
		unread = s.gpus.refresh(now)
	}
	c := newCollector(s.endpoint, s.rules, s.gpus, now)
	err := fetch(ctx, s.client, s.endpoint.URL, c)
	next := c.finish()
	s.count(c)
	if err != nil {
		return errors.Join(fmt.Errorf("scrape %s: %w", s.endpoint.URL, err), unread)
	}
	for i, matched := range c.matched {
		s.matched[i] = s.matched[i] || matched
	}
	next.date(s.answer, s.fresh.date(now, next.differs(s.answer)), now)
	s.answer, s.order, s.answered = next, next.sorted(), now
	return unread
}

// Unmatched returns the names of metrics that had no usable series in any response, except for
// those whose reading another metric had. It returns nil before the first usable response. It is
// not safe for concurrent use with Sample.
func (s *Source) Unmatched() []string {
	if s.answered.IsZero() {
		return nil
	}
	type reading struct {
		quantity string
		labels   driver.Labels
	}
	given := map[reading]bool{}
	reads := func(m *Metric) reading {
		var labels driver.Labels
		quantity, _ := driver.Standard().Named(m.Quantity)
		for i, l := range quantity.Spec().Labels {
			labels[i] = m.Labels[l.Name]
		}
		return reading{m.Quantity, labels}
	}
	for i := range s.endpoint.Metrics {
		if s.matched[i] {
			given[reads(&s.endpoint.Metrics[i])] = true
		}
	}
	var out []string
	for i := range s.endpoint.Metrics {
		m := &s.endpoint.Metrics[i]
		if !s.matched[i] && !given[reads(m)] && !slices.Contains(out, m.Name) {
			out = append(out, m.Name)
		}
	}
	return out
}

// samples returns new samples, which the caller owns.
func (s *Source) samples(now time.Time) []driver.Sample {
	limit := time.Duration(staleIntervals*s.endpoint.Interval + s.endpoint.Timeout)
	return s.answer.samples(s.order, s.endpoint.Driver, now.Sub(s.answered) <= limit)
}

// Rejected returns the numbers of rejected values since the start. It is safe for concurrent use
// with Sample.
func (s *Source) Rejected() driver.Rejections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}

// Describe returns a line for each label that had placeholders instead of identifiers of hardware
// in the last response. It is safe for concurrent use with Sample.
func (s *Source) Describe() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unnamed
}

// Driver returns the DRA driver of the endpoint's devices; "": any driver.
func (s *Source) Driver() string { return s.endpoint.Driver }

// count counts and describes the values that were rejected.
func (s *Source) count(c *collector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejected.AddAll(c.rejected)
	s.unnamed = nil
	for _, label := range slices.Sorted(maps.Keys(c.unnamed)) {
		s.unnamed = append(s.unnamed, fmt.Sprintf("label %s is empty or a placeholder in %d series, which therefore "+
			"identify no hardware", label, c.unnamed[label]))
	}
}

// answer has the values of one response.
type answer struct{ values map[key]value }

// key identifies a reading.
type key struct {
	identity
	quantity driver.Quantity
	labels   driver.Labels
}

func (k key) compare(other key) int {
	return cmp.Or(k.identity.compare(other.identity), cmp.Compare(k.quantity, other.quantity),
		k.labels.Compare(&other.labels))
}

// value is one reading's value and times.
type value struct {
	value    float64
	at       time.Time
	rank     uint16 // of its rule
	own      bool   // at is the sample's own timestamp
	repeated bool   // a partition's series repeats the value of its parent
	unusable bool   // it will be rejected
	combine  combination
}

// combinesWith reports whether the values of two series of one reading are combined: those of one
// rule, or of several that sum.
func (v value) combinesWith(other value) bool {
	return v.combine != notCombined && v.combine == other.combine && (v.rank == other.rank || v.combine == sum)
}

// combined returns the combined value of two series of one reading, with the later time. If one of
// them is unusable, the result is that one: the rest is no sum, and no maximum.
func (v value) combined(other value) value {
	switch {
	case v.unusable:
		return v
	case other.unusable:
		return other
	}
	if other.at.After(v.at) {
		v.at = other.at
	}
	if v.combine == sum {
		v.value += other.value
	} else {
		v.value = max(v.value, other.value)
	}
	return v
}

// differs reports whether a value without its own timestamp was added, removed or changed.
func (a answer) differs(before answer) bool {
	seen := 0
	for k, v := range a.values {
		if v.own {
			continue
		}
		seen++
		if b, ok := before.values[k]; !ok || b.own || b.value != v.value && !(math.IsNaN(b.value) && math.IsNaN(v.value)) {
			return true
		}
	}
	for _, b := range before.values {
		if !b.own {
			seen--
		}
	}
	return seen != 0
}

// date sets the time of the values that have no timestamp of their own to at. The time of a value
// does not decrease, unless the wall clock was set back.
func (a answer) date(before answer, at, now time.Time) {
	for k, v := range a.values {
		if !v.own {
			v.at = at
		}
		if b, ok := before.values[k]; ok && v.at.Before(b.at) && !b.at.Round(0).After(now.Round(0)) {
			v.at = b.at
		}
		a.values[k] = v
	}
}

// sorted returns the keys of the values in order.
func (a answer) sorted() []key { return slices.SortedFunc(maps.Keys(a.values), key.compare) }

// samples returns the samples, given the keys in order: those of one hardware follow each other.
// They have no readings if valid is false.
func (a answer) samples(order []key, driverName string, valid bool) []driver.Sample {
	var out []driver.Sample
	var last identity
	all := make([]driver.Reading, 0, len(a.values)) // of all samples
	for _, k := range order {
		if len(out) == 0 || k.identity != last {
			s := k.sample()
			s.Driver, last = driverName, k.identity
			out = append(out, s)
		}
		if !valid {
			continue
		}
		v, s := a.values[k], &out[len(out)-1]
		all = append(all, driver.Reading{Quantity: k.quantity, Labels: k.labels, Value: v.value, At: v.at})
		s.Readings = all[len(all)-len(s.Readings)-1 : len(all) : len(all)]
	}
	return out
}

// freshness dates the values of an exporter. dcgm-exporter collects values every 30 s and repeats
// them in between; node_exporter reads the kernel for each scrape.
//
// The values of an endpoint are refreshed together. A response that differs from the one before has
// the time of its scrape; an equal one has the time of the one before, since hardware that idles
// may give equal values. If nothing has changed for longer than the refresh period R, there was a
// refresh with equal values within the last R: the response then has the time now − R. R = 0 means
// that values are refreshed for each scrape.
type freshness struct {
	refresh time.Duration // R
	at      time.Time     // time of the last response
}

// date returns the time of measurement of the values of a response, given the time of the scrape,
// which never decreases. changed reports whether the values differ from those of the response
// before. The result never decreases.
func (f *freshness) date(now time.Time, changed bool) time.Time {
	if changed {
		f.at = driver.Later(f.at, now)
	}
	f.at = driver.Later(f.at, now.Add(-f.refresh))
	return f.at
}
