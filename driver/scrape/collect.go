package scrape

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The bounds of an answer.
const (
	maxIdentity   = 256              // bytes of the label that names the hardware
	maxLabelValue = 128              // bytes of a label's value that becomes a reading's
	maxAge        = 10 * time.Minute // of a sample's own timestamp
)

// rule maps the series of one metric to one quantity.
type rule struct {
	rank     int // place in the configured list
	quantity driver.Quantity
	spec     driver.Spec
	scale    float64
	where    map[string]string
	constant driver.Labels
	from     [driver.MaxLabels]string // names of the series' labels; "": the constant
	created  bool                     // the value is the time at which the count stood at zero
}

// compile returns the rules by the metric names that they want, each list in rank order. A counter
// is wanted together with OpenMetrics' time of its creation.
func compile(metrics []Metric) (map[string][]rule, error) {
	rules := map[string][]rule{}
	for i, m := range metrics {
		r, err := m.rule(i)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", m.Name, err)
		}
		rules[m.Name] = append(rules[m.Name], r)
		if r.spec.Type == driver.Counter {
			r.created = true
			name := strings.TrimSuffix(m.Name, "_total") + "_created"
			rules[name] = append(rules[name], r)
		}
	}
	return rules, nil
}

// collector makes an answer of the samples of one exposition.
type collector struct {
	endpoint Endpoint
	bounds   bounds
	rules    map[string][]rule
	now      time.Time

	answer   answer
	known    map[string]string // hardware of a label's value as it is written
	text     map[string]string // values of labels, each once in memory
	bytes    int               // of known and text
	created  map[key]time.Time // by counter
	refused  map[string]bool   // metrics whose type can't be used
	rejected driver.Rejections
}

// newCollector returns a collector for an answer of about as many series as expected.
func newCollector(e Endpoint, rules map[string][]rule, now time.Time, expected int) *collector {
	return &collector{
		endpoint: e, bounds: e.bounds(), rules: rules, now: now,
		answer:  answer{match: e.Match, values: make(map[key]value, expected)},
		known:   map[string]string{},
		text:    map[string]string{},
		created: map[key]time.Time{}, refused: map[string]bool{}, rejected: driver.Rejections{},
	}
}

func (c *collector) wants(name []byte) bool { return c.rules[string(name)] != nil }

func (c *collector) reject(reason driver.Reason) { c.rejected[reason]++ }

// typed refuses histograms and summaries, whose series of the family's own name are no values of a
// quantity. Gauge, counter and untyped pass for one another, since vendors mistake them.
func (c *collector) typed(name []byte, kind string) {
	switch kind {
	case "histogram", "gaugehistogram", "summary":
	default:
		return
	}
	for _, wanted := range []string{string(name), string(name) + "_bucket"} {
		if c.rules[wanted] != nil && !c.refused[wanted] {
			c.refused[wanted] = true
			c.reject(driver.ReasonType)
		}
	}
}

func (c *collector) sample(s *sample) {
	if c.refused[string(s.name)] {
		return
	}
	for i := range c.rules[string(s.name)] {
		r := &c.rules[string(s.name)][i]
		if !r.selects(s) {
			continue
		}
		if reason := c.apply(r, s); reason != "" && !r.created {
			c.reject(reason)
		}
	}
}

// selects reports whether the series has the values that the rule asks for.
func (r *rule) selects(s *sample) bool {
	for name, want := range r.where {
		if string(s.get(name)) != want {
			return false
		}
	}
	return true
}

// apply takes a sample in, or returns the reason for which it can not.
func (c *collector) apply(r *rule, s *sample) (reason driver.Reason) {
	if c.endpoint.Partition.holds(s) {
		return driver.ReasonPartition
	}
	k := key{quantity: r.quantity}
	if k.hardware, reason = c.identify(s.get(c.endpoint.Match.Label)); reason != "" {
		return reason
	}
	if k.labels, reason = c.labels(r, s); reason != "" {
		return reason
	}
	if r.created {
		c.takeCreated(k, s.value)
		return ""
	}
	v, reason := c.value(r, s)
	if reason != "" {
		return reason
	}
	return c.take(k, v)
}

// take keeps the value unless one of a better rule, or an earlier one of the same, is there.
func (c *collector) take(k key, v value) (reason driver.Reason) {
	before, there := c.answer.values[k]
	switch {
	case there && before.rank == v.rank:
		return driver.ReasonDuplicate
	case there && before.rank < v.rank:
		return ""
	case !there && len(c.answer.values) >= c.bounds.series:
		return driver.ReasonTooMany
	}
	c.answer.values[k] = v
	return ""
}

func (c *collector) takeCreated(k key, seconds float64) {
	if at, ok := fromSeconds(seconds); ok && at.Unix() > 0 && len(c.created) < c.bounds.series {
		c.created[k] = at
	}
}

// value checks and scales a sample's value, and its timestamp where it has one. A timestamp from
// the future is not believed; the sample is then dated like those that have none.
func (c *collector) value(r *rule, s *sample) (v value, reason driver.Reason) {
	v = value{value: s.value * r.scale, rank: r.rank}
	switch {
	case math.IsNaN(s.value):
		return v, driver.ReasonNotFinite
	case math.IsInf(v.value, 0):
		return v, driver.ReasonNotFinite
	case r.spec.NonNegative && v.value < 0:
		return v, driver.ReasonNegative
	case r.spec.Max > 0 && v.value > r.spec.Max:
		return v, driver.ReasonOutOfRange
	case s.at.IsZero() || s.at.After(c.now):
		return v, ""
	case s.at.Before(c.now.Add(-maxAge)):
		return v, driver.ReasonStale
	}
	v.at, v.own = s.at, true
	return v, ""
}

// labels returns the reading's labels; those of a closed list must be in it.
func (c *collector) labels(r *rule, s *sample) (labels driver.Labels, reason driver.Reason) {
	labels = r.constant
	for i, name := range r.from {
		if name == "" {
			continue
		}
		v := s.get(name)
		if len(v) > maxLabelValue {
			return labels, driver.ReasonLabel
		}
		if closed := r.spec.Labels[i].Values; closed != nil && !slices.Contains(closed, string(v)) {
			return labels, driver.ReasonLabel
		}
		if labels[i], reason = c.intern(v); reason != "" {
			return labels, reason
		}
	}
	return labels, ""
}

// intern returns the text, once in memory.
func (c *collector) intern(b []byte) (string, driver.Reason) {
	if s, ok := c.text[string(b)]; ok {
		return s, ""
	}
	if !c.spend(len(b)) {
		return "", driver.ReasonTooLarge
	}
	s := string(b)
	c.text[s] = s
	return s, ""
}

// identify returns the hardware that a label's value names, in one spelling.
func (c *collector) identify(b []byte) (string, driver.Reason) {
	if id, ok := c.known[string(b)]; ok {
		return id, ""
	}
	id := c.endpoint.Match.normalize(b)
	switch {
	case id == "":
		return "", driver.ReasonNoMatch
	case len(c.known) >= c.bounds.identities:
		return "", driver.ReasonTooMany
	case !c.spend(len(b) + len(id)):
		return "", driver.ReasonTooLarge
	}
	c.known[string(b)] = id
	return id, ""
}

// spend takes bytes of text from what is left of the bound, if they fit in.
func (c *collector) spend(n int) bool {
	if c.bytes+n > c.bounds.text {
		return false
	}
	c.bytes += n
	return true
}

// finish returns the answer with the counters' beginnings.
func (c *collector) finish() answer {
	for k, at := range c.created {
		if v, ok := c.answer.values[k]; ok {
			v.since = at
			c.answer.values[k] = v
		}
	}
	return c.answer
}

// normalize returns the identity of the hardware that a label's value names, "" where it names
// none.
func (m Match) normalize(b []byte) string {
	if len(b) == 0 || len(b) > maxIdentity || !utf8.Valid(b) {
		return ""
	}
	v := string(b)
	if len(v) < len(m.Prefix) || !strings.EqualFold(v[:len(m.Prefix)], m.Prefix) {
		v = m.Prefix + v
	}
	switch m.Hardware {
	case MatchPCI:
		return driver.NormalizePCI(v)
	case MatchUUID:
		return canonicalUUID(v)
	default:
		return v
	}
}

// canonicalUUID spells UUIDs that differ in case alone alike: the digits in lower case, the
// vendor's letters (GPU-, MIG-) in upper case, as NVIDIA prints them.
func canonicalUUID(v string) string {
	v = strings.ToLower(v)
	for _, prefix := range []string{"gpu-", "mig-"} {
		if rest, ok := strings.CutPrefix(v, prefix); ok {
			return strings.ToUpper(prefix) + rest
		}
	}
	return v
}

// sample returns the sample, still without driver and readings, of the hardware.
func (m Match) sample(hardware string) driver.Sample {
	switch m.Hardware {
	case MatchPCI:
		return driver.Sample{Hardware: driver.Hardware{PCI: hardware}}
	case MatchNetDev:
		return driver.Sample{Hardware: driver.Hardware{NetDev: hardware}}
	case MatchDevice:
		return driver.Sample{Device: hardware}
	default:
		return driver.Sample{Hardware: driver.Hardware{UUID: hardware}}
	}
}

// holds reports whether the series is one of a partition.
func (p Partition) holds(s *sample) bool {
	if p.Label == "" {
		return false
	}
	v := s.get(p.Label)
	if len(v) == 0 {
		return false
	}
	return !slices.ContainsFunc(p.Whole, func(whole string) bool { return bytes.EqualFold(v, []byte(whole)) })
}
