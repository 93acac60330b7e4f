package scrape

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The bounds of a series.
const (
	maxIdentity   = 256              // bytes of the value that identifies the hardware
	maxLabelValue = 128              // bytes of other label values
	maxAge        = 10 * time.Minute // of a sample's own timestamp
)

// rule maps the series of one metric to one quantity.
type rule struct {
	rank     int // position in the configured list; the lowest has precedence
	quantity driver.Quantity
	spec     driver.Spec
	scale    float64
	match    *matcher
	where    map[string]string
	combine  combination
	name     string // of the metric
	needs    string // name of a metric without which there is no reading; see Metric.Needs

	partition string // see Metric.Partition
	constant  driver.Labels
	from      [driver.MaxLabels]string // names of labels of the series; "": the label is constant
}

// Values of Metric.Combine.
const (
	combineMax = "max"
	combineSum = "sum"
)

// combination defines how the values of several series of one reading are combined.
type combination uint8

const (
	notCombined combination = iota
	maximum
	sum
)

// ruleset has the rules of an endpoint.
type ruleset struct {
	byName map[string][]rule     // by name of metric, in order of rank
	sizes  map[string][]*matcher // matchers with Per, by the metric that has the number of parts
	groups []*matcher            // matchers with Per; matcher.group is the position
	gpus   bool                  // a matcher uses the serial numbers of AMD GPUs
}

// compile returns the rules of an endpoint.
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
	}
	return rules, nil
}

// matcher returns the compiled match. Equal matches share one matcher.
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

// collector is a visitor that collects the values of one exposition.
type collector struct {
	endpoint Endpoint
	bounds   bounds
	rules    *ruleset
	gpus     *amdGPUs
	now      time.Time

	answer   answer
	matched  []bool                // metrics, by rank, that have a usable series
	known    map[spelling]identity // cache of find
	sizes    map[*matcher]uint64   // number of parts of a device
	text     map[string]string     // interned label values
	bytes    int                   // size of known and text
	rejected driver.Rejections
	unnamed  map[string]int // number of series whose label does not identify hardware, by label

	parts, needed map[key][]string // of sums with Needs: names of summed metrics, and of needed ones
}

// spelling is a label value as it is written, for a matcher.
type spelling struct {
	matcher *matcher
	text    string
}

func newCollector(e Endpoint, rules *ruleset, gpus *amdGPUs, now time.Time) *collector {
	return &collector{
		endpoint: e, bounds: e.bounds(), rules: rules, gpus: gpus, now: now,
		answer:  answer{values: map[key]value{}},
		matched: make([]bool, len(e.Metrics)),
		known:   map[spelling]identity{}, sizes: map[*matcher]uint64{},
		text: map[string]string{}, rejected: driver.Rejections{},
		unnamed: map[string]int{}, parts: map[key][]string{}, needed: map[key][]string{},
	}
}

func (c *collector) wants(name []byte) bool {
	return c.rules.byName[string(name)] != nil || c.rules.sizes[string(name)] != nil
}

func (c *collector) reject(reason driver.Reason) { c.rejected[reason]++ }

func (c *collector) add(s *sample) {
	for _, m := range c.rules.sizes[s.name] {
		if size, err := strconv.ParseUint(s.labels.Get(m.Per.Label), 10, 31); err == nil && size > 0 {
			c.sizes[m] = size
		}
	}
	for i := range c.rules.byName[s.name] {
		r := &c.rules.byName[s.name][i]
		if !r.selects(s) {
			continue
		}
		if reason := c.apply(r, s); reason != "" {
			c.reject(reason)
		}
	}
}

// selects reports whether the labels of the series match the rule's Where.
func (r *rule) selects(s *sample) bool {
	for name, want := range r.where {
		if s.labels.Get(name) != want {
			return false
		}
	}
	return true
}

// apply applies a rule to a sample. It returns the reason if the sample is rejected.
func (c *collector) apply(r *rule, s *sample) (reason driver.Reason) {
	k := key{quantity: r.quantity}
	var repeated bool
	if k.identity, repeated, reason = c.identify(r, s); k.kind == "" {
		return reason
	}
	if k.labels, reason = c.labels(r, s); reason != "" {
		return reason
	}
	v, reason := c.value(r, s)
	if reason != "" {
		return reason
	}
	v.repeated, v.unusable = repeated, r.isUnusable(v.value, k.kindOfDevice())
	c.matched[r.rank] = c.matched[r.rank] || !v.unusable || r.spec.Check(v.value) == ""
	if r.needs != "" {
		c.parts[k] = append(c.parts[k], r.name)
		c.needed[k] = append(c.needed[k], r.needs)
	}
	return c.put(k, v)
}

// put stores the value of a reading. An unusable value gives way to any other. A value of a rule of
// lower rank has precedence, and a parent's own series over one that its partitions repeat. Two
// values of one rule are combined or, if the rule does not combine, the second is rejected.
func (c *collector) put(k key, v value) (reason driver.Reason) {
	before, there := c.answer.values[k]
	switch {
	case there && before.rank == v.rank && v.repeated:
		return ""
	case there && before.combinesWith(v):
		v = before.combined(v)
	case there && before.unusable && !v.unusable:
	case there && v.unusable && before.rank != v.rank:
		return ""
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

// value scales the value of a sample, and checks its timestamp. A timestamp in the future is
// ignored. A number that stands for "no value" stays as it is, so that it is recognized.
func (c *collector) value(r *rule, s *sample) (v value, reason driver.Reason) {
	v = value{value: s.value * r.scale, rank: uint16(r.rank), combine: r.combine}
	if driver.IsCode(s.value) {
		v.value = s.value
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

// isUnusable reports whether the value of a series will be rejected. A part of a sum may be 0.
func (r *rule) isUnusable(value float64, of driver.Kind) bool {
	return r.spec.Check(value) != "" || r.combine != sum && r.spec.IsAbsent(value, of)
}

// labels returns the labels of the reading. It rejects a value outside a closed list.
func (c *collector) labels(r *rule, s *sample) (labels driver.Labels, reason driver.Reason) {
	labels = r.constant
	for i, name := range r.from {
		if name == "" {
			continue
		}
		v := s.labels.Get(name)
		if !r.spec.Labels[i].Accepts(v) {
			return labels, driver.ReasonLabel
		}
		if labels[i], reason = c.bounded(v); reason != "" {
			return labels, reason
		}
	}
	return labels, ""
}

// bounded returns one copy of equal label values, or the reason if the value is too long.
func (c *collector) bounded(v string) (string, driver.Reason) {
	if len(v) > maxLabelValue {
		return "", driver.ReasonLabel
	}
	if _, ok := c.text[v]; !ok {
		if !c.spend(len(v)) {
			return "", driver.ReasonTooLarge
		}
		v = strings.Clone(v)
		c.text[v] = v
	}
	return c.text[v], ""
}

// identify returns the hardware of a series. repeated reports whether it is the series of a
// partition that repeats the value of its parent. If both id and reason are empty, the rule does
// not apply to the series.
func (c *collector) identify(r *rule, s *sample) (id identity, repeated bool, reason driver.Reason) {
	p := c.endpoint.Partition
	part := p.of(s)
	if part != "" && r.partition == "" {
		return identity{}, false, driver.ReasonPartition
	}
	m := r.match
	v := s.labels.Get(m.Label)
	for m.or != nil && !m.isName(v) {
		m = m.or
		v = s.labels.Get(m.Label)
	}
	if !m.isName(v) {
		c.unnamed[m.Label]++
		return identity{}, false, driver.ReasonNoMatch
	}
	if m.With != "" {
		v += "/" + s.labels.Get(m.With)
	}
	id, reason = c.find(m, v)
	switch {
	case part == "" || reason != "" || id.kind == "":
	case p.Number != "":
		id, reason = c.amdPartition(r, id, s.labels.Get(p.Number))
	case r.partition == partitionParent:
		repeated = true
	default:
		id, reason = c.partitionOf(id, part)
	}
	return id, repeated, reason
}

// partitionOf returns the partition with a number within its parent.
func (c *collector) partitionOf(parent identity, number string) (identity, driver.Reason) {
	if parent.kind != MatchUUID && parent.kind != MatchPCI {
		return identity{}, driver.ReasonPartition // Hardware.Parent is a UUID or a PCI address
	}
	var reason driver.Reason
	if parent.part, reason = c.bounded(number); reason != "" {
		return identity{}, reason
	}
	return parent, ""
}

// amdPartition returns the partition with a number within an AMD GPU. AMD's exporter reports the
// values of whole GPUs as those of partition 0, so that none is known to be partition 0's own.
func (c *collector) amdPartition(r *rule, gpu identity, number string) (identity, driver.Reason) {
	n, err := strconv.ParseUint(number, 10, 8)
	switch {
	case err != nil:
		return identity{}, driver.ReasonNoMatch
	case n == 0 && r.partition == partitionParent:
		return gpu, ""
	case n == 0 || r.partition == partitionParent:
		return identity{}, driver.ReasonPartition
	}
	node := c.gpus.node(gpu.value, int(n)) // "" also if gpu is a serial number without known address
	if node == "" {
		return identity{}, driver.ReasonNoMatch
	}
	return identity{kind: MatchNode, value: node}, ""
}

// find returns the hardware that a label value identifies.
func (c *collector) find(m *matcher, v string) (identity, driver.Reason) {
	if id, ok := c.known[spelling{m, v}]; ok {
		return id, ""
	}
	v = strings.Clone(v) // apart from the line
	id, reason := m.identify(v, c.gpus)
	switch {
	case reason != "":
		return identity{}, reason
	case !c.spend(len(v) + len(id.value)):
		return identity{}, driver.ReasonTooLarge
	}
	c.known[spelling{m, v}] = id
	return id, ""
}

// spend adds n bytes to the size of the text. It returns false if that exceeds the bound.
func (c *collector) spend(n int) bool {
	if c.bytes+n > c.bounds.text {
		return false
	}
	c.bytes += n
	return true
}

// finish returns the collected values: without sums that lack a needed metric, and with the values
// of parts attributed to their devices.
func (c *collector) finish() answer {
	for k, needed := range c.needed {
		missing := func(name string) bool { return !slices.Contains(c.parts[k], name) }
		if v := c.answer.values[k]; v.combine == sum && slices.ContainsFunc(needed, missing) {
			delete(c.answer.values, k)
		}
	}
	if len(c.rules.groups) > 0 {
		c.regroup()
	}
	return c.answer
}

// regroup replaces the values of parts by those of their devices, in a constant order, so that sums
// of floating-point numbers do not depend on the order of the map.
func (c *collector) regroup() {
	for _, k := range slices.SortedFunc(maps.Keys(c.answer.values), key.compare) {
		if k.group == 0 {
			continue
		}
		v := c.answer.values[k]
		delete(c.answer.values, k)
		reason := driver.ReasonNoMatch
		if m := c.rules.groups[k.group-1]; c.sizes[m] > 0 {
			k.identity = m.device(k.value, c.sizes[m])
			reason = c.put(k, v)
		}
		if reason != "" {
			c.reject(reason)
		}
	}
}

// of returns the label value that names the partition of a series, "" if it is not a partition's.
func (p Partition) of(s *sample) string {
	if p.Label == "" {
		return ""
	}
	v := s.labels.Get(p.Label)
	if slices.ContainsFunc(p.Whole, func(whole string) bool { return strings.EqualFold(v, whole) }) {
		return ""
	}
	return v
}
