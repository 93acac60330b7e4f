// Package scrape joins what a vendor's own exporter already serves: one [driver.Source] reads one
// Prometheus endpoint and maps the metrics that its configuration names to the quantities of the
// catalogue.
//
// An endpoint is untrusted input. Its answer is bounded in bytes, line length, series, identities
// and text (bounds.go); a line that can not be used costs itself alone and is counted by reason
// ([Source.Rejected]).
//
// Readings are dated by when the vendor refreshed them, as near as that can be known; freshness.go
// says how.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// staleIntervals is how many intervals without an answer make the readings of the last one absent.
const staleIntervals = 3

// maxSpare is of how many series an answer has at most whose memory is used again.
const maxSpare = 4096

const defaultSysfs = "/sys"

// Source reads one endpoint.
type Source struct {
	endpoint Endpoint
	client   *http.Client
	rules    *ruleset
	gpus     *amdGPUs
	now      func() time.Time

	// What follows belongs to the one goroutine that samples.
	due        time.Time // of the next request
	answered   time.Time // of the last answer that could be used
	answer     answer    // that answer, with final times
	spare      answer    // its memory is used again
	matched    []bool    // metrics of which any answer had a series that could be used
	err        error     // of the last request
	fresh      freshness
	rejections rejections
}

var (
	_ driver.Source           = (*Source)(nil)
	_ driver.RejectionCounter = (*Source)(nil)
	_ driver.Exampler         = (*Source)(nil)
	_ driver.Describer        = (*Source)(nil)
)

// Option changes a Source.
type Option func(*Source)

// WithClock gives the source a clock other than [time.Now].
func WithClock(now func() time.Time) Option { return func(s *Source) { s.now = now } }

// WithSysfs says where sysfs is mounted, in which AMD GPUs are found by their serial numbers.
func WithSysfs(root string) Option { return func(s *Source) { s.gpus = newAMDGPUs(root) } }

// New returns the source of an endpoint that [ParseConfig] accepted. It sends nothing and starts
// nothing; it reads the files that the client settings name, and fails where that fails.
func New(endpoint Endpoint, options ...Option) (*Source, error) {
	client, err := newClient(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: client settings: %w", endpoint.Name, err)
	}
	rules, err := compile(&endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", endpoint.Name, err)
	}
	s := &Source{
		endpoint: endpoint, client: client, rules: rules, now: time.Now, fresh: newFreshness(endpoint),
		gpus: newAMDGPUs(defaultSysfs), matched: make([]bool, len(endpoint.Metrics)),
	}
	for _, option := range options {
		option(s)
	}
	return s, nil
}

// Name returns scrape/ and the endpoint's name.
func (s *Source) Name() string { return "scrape/" + s.endpoint.Name }

// Fills returns the quantities that the endpoint's configuration names, each once.
func (s *Source) Fills() []driver.Quantity {
	var out []driver.Quantity
	for _, m := range s.endpoint.Metrics {
		if q, known := driver.Standard().Named(m.Quantity); known && !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}

// Sample returns the readings of the endpoint's last answer. It asks for a new one when the
// endpoint's interval has passed since the last request was due, and never because it is called
// more often.
//
// While requests fail it returns, with the error of the last request, the readings that it has
// until they are older than three intervals and one timeout; after that the hardware is named
// without readings. The error stays until a request succeeds.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	now := s.now()
	if err := ctx.Err(); err != nil {
		return s.samples(now), classify(err)
	}
	if !now.Before(s.due) {
		s.schedule(now)
		s.err = s.refresh(ctx, now)
	}
	return s.samples(s.now()), s.err
}

// schedule sets the next request one interval after this one was due, so that the times of the
// calls do not lengthen it, and one interval from now where the calls came too late for that.
func (s *Source) schedule(now time.Time) {
	s.due = s.due.Add(s.endpoint.Interval)
	if !s.due.After(now) {
		s.due = now.Add(s.endpoint.Interval)
	}
}

// refresh asks the endpoint, and on success replaces the answer.
func (s *Source) refresh(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, s.endpoint.Timeout)
	defer cancel()
	var unread error
	if s.rules.gpus {
		unread = s.gpus.refresh(now)
	}
	c := newCollector(s.endpoint, s.rules, s.gpus, now, s.spare)
	err := fetch(ctx, s.client, s.endpoint.URL, c)
	s.spare = answer{}
	next := c.finish()
	s.rejections.add(c)
	if err != nil {
		return errors.Join(fmt.Errorf("scrape %s: %w", s.endpoint.URL, err), unread)
	}
	for i, matched := range c.matched {
		s.matched[i] = s.matched[i] || matched
	}
	next.date(s.answer, s.fresh.date(now, next.differs(s.answer)), now)
	s.answer, s.spare, s.answered = next, s.answer, now
	if len(s.spare.values) > maxSpare {
		s.spare = answer{}
	}
	return unread
}

// Unmatched returns the names of metrics of which no answer had a series that could be used, those
// left out that give a reading which another metric gave. It is nil before the first answer, and
// belongs to the goroutine of Sample.
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

// samples renders the answer anew, since samples belong to the caller.
func (s *Source) samples(now time.Time) []driver.Sample {
	limit := staleIntervals*s.endpoint.Interval + s.endpoint.Timeout
	return s.answer.samples(s.endpoint.Driver, now.Sub(s.answered) <= limit)
}

// Rejected returns how many values of the endpoint's answers were rejected since the start. It is
// safe for concurrent use with Sample.
func (s *Source) Rejected() driver.Rejections { return s.rejections.snapshot() }

// Examples returns values of the last answer that were out of range. It is safe for concurrent use
// with Sample.
func (s *Source) Examples() []string {
	s.rejections.mu.Lock()
	defer s.rejections.mu.Unlock()
	return s.rejections.examples
}

// Describe returns a line for each label that should name hardware and does not, in the last
// answer. It is safe for concurrent use with Sample.
func (s *Source) Describe() []string {
	s.rejections.mu.Lock()
	defer s.rejections.mu.Unlock()
	return s.rejections.nameless
}

// Driver returns the DRA driver whose devices the endpoint has; "": any driver's.
func (s *Source) Driver() string { return s.endpoint.Driver }

// rejections counts what was rejected.
type rejections struct {
	mu       sync.Mutex
	counts   driver.Rejections
	examples []string
	nameless []string // lines of Describe
}

func (r *rejections) add(c *collector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.examples, r.nameless = c.examples, nil
	for _, label := range slices.Sorted(maps.Keys(c.nameless)) {
		r.nameless = append(r.nameless, fmt.Sprintf("%s is empty, or says that it is unknown, in %d series, which name no "+
			"hardware", label, c.nameless[label]))
	}
	if r.counts == nil {
		r.counts = driver.Rejections{}
	}
	r.counts.AddAll(c.rejected)
}

func (r *rejections) snapshot() driver.Rejections {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// answer is what one exposition said, by series.
type answer struct{ values map[key]value }

// key tells one reading from another.
type key struct {
	identity
	quantity driver.Quantity
	labels   driver.Labels
}

func (k key) compare(other key) int {
	if c := k.identity.compare(other.identity); c != 0 {
		return c
	}
	if c := int(k.quantity) - int(other.quantity); c != 0 {
		return c
	}
	return slices.Compare(k.labels[:], other.labels[:])
}

// value is one reading's value and times.
type value struct {
	value    float64
	at       time.Time
	since    time.Time
	rank     uint16 // of the rule that gave it; lower wins
	own      bool   // at came with the sample
	repeated bool   // it is the hardware's, by a series of a partition
	combine  combination
}

// combines reports whether two series of a reading give one value together: those of one metric, or
// of several that are summed.
func (v value) combines(other value) bool {
	return v.combine != notCombined && v.combine == other.combine && (v.rank == other.rank || v.combine == sum)
}

// with returns what two series of a reading give together, true when the later of them is.
func (v value) with(other value) value {
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

// differs reports whether any value without a timestamp of its own came, went or changed.
func (a answer) differs(before answer) bool {
	seen := 0
	for k, v := range a.values {
		if v.own {
			continue
		}
		seen++
		if b, ok := before.values[k]; !ok || b.own || b.value != v.value {
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

// date dates the values that have no timestamp of their own. No time goes back, unless the wall
// clock did (timestamps have no other one), and no count begins after its reading.
func (a answer) date(before answer, at, now time.Time) {
	for k, v := range a.values {
		if !v.own {
			v.at = at
		}
		if b, ok := before.values[k]; ok && v.at.Before(b.at) && !b.at.Round(0).After(now.Round(0)) {
			v.at = b.at
		}
		if v.since.After(v.at) {
			v.since = time.Time{}
		}
		a.values[k] = v
	}
}

// samples renders the answer, in order; when it is too old, without readings.
func (a answer) samples(driverName string, valid bool) []driver.Sample {
	var out []driver.Sample
	var last identity
	all := make([]driver.Reading, 0, len(a.values)) // of all samples
	order := slices.AppendSeq(make([]key, 0, len(a.values)), maps.Keys(a.values))
	slices.SortFunc(order, key.compare)
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
		all = append(all, driver.Reading{Quantity: k.quantity, Labels: k.labels, Value: v.value, At: v.at, Since: v.since})
		s.Readings = all[len(all)-len(s.Readings)-1 : len(all) : len(all)]
	}
	return out
}
