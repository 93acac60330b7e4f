package scrape

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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
	match    *matcher
	where    map[string]string
	combine  combination
	name     string // of the metric
	needs    string // the name of another one, without which there is no reading

	partition string // of what series of partitions are
	constant  driver.Labels
	from      [driver.MaxLabels]string // names of the series' labels; "": the constant
	created   bool                     // the value is the time at which the count stood at zero
}

// What a metric's Combine may be.
const (
	combineMax = "max"
	combineSum = "sum"
)

// combination is how the values of a reading's series are combined.
type combination uint8

const (
	notCombined combination = iota
	maximum
	sum
)

// ruleset is what the metrics of an endpoint want.
type ruleset struct {
	byName map[string][]rule     // in rank order
	sizes  map[string][]*matcher // metrics that say how many parts a device has
	groups []*matcher            // the same matchers, each once
	gpus   bool                  // serial numbers of AMD GPUs are asked for
}

// compile returns the rules of an endpoint. A counter is wanted together with OpenMetrics' time of
// its creation.
func compile(e *Endpoint) (*ruleset, error) {
	rules := &ruleset{byName: map[string][]rule{}, sizes: map[string][]*matcher{}}
	whole, err := rules.matcher(&e.Match)
	if err != nil {
		return nil, err
	}
	for i, m := range e.Metrics {
		r, err := m.rule(i)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", m.Name, err)
		}
		r.match = whole
		if m.Match != nil {
			if r.match, err = rules.matcher(m.Match); err != nil {
				return nil, fmt.Errorf("metric %q: %w", m.Name, err)
			}
		}
		rules.byName[m.Name] = append(rules.byName[m.Name], r)
		if r.spec.Type == driver.Counter {
			r.created = true
			name := strings.TrimSuffix(m.Name, "_total") + "_created"
			rules.byName[name] = append(rules.byName[name], r)
		}
	}
	return rules, nil
}

// matcher compiles a match, those that are equal once.
func (s *ruleset) matcher(m *Match) (*matcher, error) {
	for _, rules := range s.byName {
		for i := range rules {
			if rules[i].match.Match == *m {
				return rules[i].match, nil
			}
		}
	}
	compiled, err := m.compile()
	if err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	if m.Per != (Per{}) {
		s.groups = append(s.groups, compiled)
		compiled.group = uint16(len(s.groups))
		s.sizes[m.Per.Metric] = append(s.sizes[m.Per.Metric], compiled)
	}
	s.gpus = s.gpus || m.Hardware == MatchSerial
	return compiled, nil
}

// collector makes an answer of the samples of one exposition.
type collector struct {
	endpoint Endpoint
	bounds   bounds
	rules    *ruleset
	gpus     *amdGPUs
	now      time.Time

	answer   answer
	matched  []bool                // metrics, by rank, of which a series could be used
	known    map[spelling]identity // hardware of a label's value as it is written
	pair     []byte                // of two labels' values, for known
	sizes    map[*matcher]uint64   // how many parts a device has
	text     map[string]string     // values of labels, each once in memory
	bytes    int                   // of known and text
	created  map[key]time.Time     // by counter
	refused  map[string]bool       // metrics whose type can't be used
	rejected driver.Rejections
	examples []string       // values out of range
	nameless map[string]int // series without a name of hardware, by label

	parts, needed map[key][]string // names of metrics: of sums, and those that these need
}

const maxExamples = 8 // of an answer

// spelling is a label's value, as a matcher finds it.
type spelling struct {
	matcher *matcher
	text    string
}

// newCollector returns a collector whose answer has the memory of one that is not used any more.
func newCollector(e Endpoint, rules *ruleset, gpus *amdGPUs, now time.Time, spare answer) *collector {
	if clear(spare.values); spare.values == nil {
		spare.values = map[key]value{}
	}
	return &collector{
		endpoint: e, bounds: e.bounds(), rules: rules, gpus: gpus, now: now,
		answer:  spare,
		matched: make([]bool, len(e.Metrics)),
		known:   map[spelling]identity{}, sizes: map[*matcher]uint64{},
		text:    map[string]string{},
		created: map[key]time.Time{}, refused: map[string]bool{}, rejected: driver.Rejections{},
		nameless: map[string]int{}, parts: map[key][]string{}, needed: map[key][]string{},
	}
}

func (c *collector) wants(name []byte) bool {
	return c.rules.byName[string(name)] != nil || c.rules.sizes[string(name)] != nil
}

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
		if c.wants([]byte(wanted)) && !c.refused[wanted] {
			c.refused[wanted] = true
			c.reject(driver.ReasonType)
		}
	}
}

func (c *collector) sample(s *sample) {
	if c.refused[string(s.name)] {
		return
	}
	for _, m := range c.rules.sizes[string(s.name)] {
		if size, err := strconv.ParseUint(string(s.get(m.Per.Label)), 10, 31); err == nil && size > 0 {
			c.sizes[m] = size
		}
	}
	for i := range c.rules.byName[string(s.name)] {
		r := &c.rules.byName[string(s.name)][i]
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
	k := key{quantity: r.quantity}
	var repeated bool
	if k.identity, repeated, reason = c.identify(r, s); k.kind == kindNone {
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
	c.matched[r.rank] = true
	if r.combine != sum && r.spec.IsAbsent(v.value) {
		return ""
	}
	v.repeated = repeated
	if r.needs != "" {
		c.parts[k] = append(c.parts[k], r.name)
		c.needed[k] = append(c.needed[k], r.needs)
	}
	return c.take(k, v)
}

// take keeps the value unless one of a better rule, or an earlier one of the same that it can't be
// combined with, is there. A parent's own series is better than what its partitions repeat.
func (c *collector) take(k key, v value) (reason driver.Reason) {
	before, there := c.answer.values[k]
	switch {
	case there && before.rank == v.rank && v.repeated:
		return ""
	case there && before.combines(v):
		spec := k.quantity.Spec()
		if reason = spec.Check(before.with(v).value); reason != "" {
			return reason
		}
		v = before.with(v)
	case there && before.rank == v.rank && !before.repeated:
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
	v = value{value: s.value * r.scale, rank: uint16(r.rank), combine: r.combine}
	if reason := r.spec.Check(v.value); reason != "" {
		if reason == driver.ReasonOutOfRange && len(c.examples) < maxExamples {
			c.examples = append(c.examples, fmt.Sprintf("%s (%s) = %v", s.name, r.spec.Name, s.value))
		}
		return v, reason
	}
	switch {
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
		if closed := r.spec.Labels[i].Values; closed != nil && !slices.Contains(closed, string(v)) {
			return labels, driver.ReasonLabel
		}
		if labels[i], reason = c.bounded(v); reason != "" {
			return labels, reason
		}
	}
	return labels, ""
}

// bounded returns the text, once in memory, if it is not too long for a label's value.
func (c *collector) bounded(b []byte) (string, driver.Reason) {
	if len(b) > maxLabelValue {
		return "", driver.ReasonLabel
	}
	return c.intern(b)
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

// identify returns the hardware of a series, and whether it is that of a partition, which repeats
// what its parent has. Without identity and reason, it is none of the rule's.
func (c *collector) identify(r *rule, s *sample) (id identity, repeated bool, reason driver.Reason) {
	p := c.endpoint.Partition
	part := p.of(s)
	if part != nil && r.partition == "" {
		return identity{}, false, driver.ReasonPartition
	}
	m := r.match
	b := s.get(m.Label)
	for m.or != nil && !m.names(b) {
		m = m.or
		b = s.get(m.Label)
	}
	if !m.names(b) {
		c.nameless[m.Label]++
		return identity{}, false, driver.ReasonNoMatch
	}
	if m.With != "" {
		c.pair = append(append(append(c.pair[:0], b...), '/'), s.get(m.With)...)
		b = c.pair
	}
	id, reason = c.find(m, b)
	switch {
	case part == nil || reason != "" || id.kind == kindNone:
	case p.Number != "":
		id, reason = c.partition(r, id, s.get(p.Number))
	case r.partition == partitionParent:
		repeated = true
	default:
		id, reason = c.own(id, part)
	}
	return id, repeated, reason
}

// own returns the partition with a number within the hardware.
func (c *collector) own(parent identity, number []byte) (identity, driver.Reason) {
	if parent.kind != kindUUID && parent.kind != kindPCI {
		return identity{}, driver.ReasonPartition // nothing has it for its parent
	}
	var reason driver.Reason
	if parent.part, reason = c.bounded(number); reason != "" {
		return identity{}, reason
	}
	return parent, ""
}

// partition returns the hardware of a series of a partition, given its GPU. What the exporter has
// for whole GPUs alone it gives to partition 0, so that nothing there is sure to be the partition's
// own.
func (c *collector) partition(r *rule, gpu identity, number []byte) (identity, driver.Reason) {
	n, err := strconv.ParseUint(string(number), 10, 8)
	switch {
	case err != nil:
		return identity{}, driver.ReasonNoMatch
	case n == 0 && r.partition == partitionParent:
		return gpu, ""
	case n == 0 || r.partition == partitionParent:
		return identity{}, driver.ReasonPartition
	}
	node := c.gpus.node(gpu.value, int(n)) // of no address, where the serial number has none
	if node == "" {
		return identity{}, driver.ReasonNoMatch
	}
	return identity{kind: kindNode, value: node}, ""
}

// find returns the hardware that a label's value names.
func (c *collector) find(m *matcher, b []byte) (identity, driver.Reason) {
	if id, ok := c.known[spelling{m, string(b)}]; ok {
		return id, ""
	}
	id, reason := m.identify(b, c.gpus)
	switch {
	case reason != "":
		return identity{}, reason
	case len(c.known) >= c.bounds.identities:
		return identity{}, driver.ReasonTooMany
	case !c.spend(len(b) + len(id.value)):
		return identity{}, driver.ReasonTooLarge
	}
	c.known[spelling{m, string(b)}] = id
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

// finish returns the answer, with the counters' beginnings, and readings of parts as those of their
// devices.
func (c *collector) finish() answer {
	for k, needed := range c.needed {
		isDevice := func(name string) bool { return !slices.Contains(c.parts[k], name) }
		if v := c.answer.values[k]; v.combine == sum && slices.ContainsFunc(needed, isDevice) {
			delete(c.answer.values, k)
		}
	}
	if len(c.rules.groups) > 0 {
		c.regroup()
	}
	for k, at := range c.created {
		if v, ok := c.answer.values[k]; ok {
			v.since = at
			c.answer.values[k] = v
		}
	}
	return c.answer
}

// regroup gives the readings of parts to their devices, in an order that does not change sums.
func (c *collector) regroup() {
	for _, k := range slices.SortedFunc(maps.Keys(c.answer.values), key.compare) {
		if k.group == 0 {
			continue
		}
		v, since := c.answer.values[k], c.created[k]
		delete(c.answer.values, k)
		reason := driver.ReasonNoMatch
		if m := c.rules.groups[k.group-1]; c.sizes[m] > 0 {
			k.identity = m.device(k.value, c.sizes[m])
			if reason = c.take(k, v); !since.IsZero() {
				c.created[k] = since
			}
		}
		if reason != "" {
			c.reject(reason)
		}
	}
}

// of returns which partition the series is of, nil if it is of none.
func (p Partition) of(s *sample) []byte {
	if p.Label == "" {
		return nil
	}
	v := s.get(p.Label)
	if len(v) == 0 || slices.ContainsFunc(p.Whole, func(whole string) bool { return bytes.EqualFold(v, []byte(whole)) }) {
		return nil
	}
	return v
}
