package exposition

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// labels are the labels of a series as the formats write them. They are rendered once and copied
// into each scrape; for protobuf, when a scrape first needs them. nil has no labels.
type labels struct {
	text string // a="1",b="2", escaped, for both text formats
	wire string // the label fields of an io.prometheus.client.Metric; "": not made yet
}

// with returns the labels and more of them, given as alternating names and values.
func (l *labels) with(namesAndValues ...string) *labels {
	var text []byte
	if l != nil {
		text = append(text, l.text...)
	}
	for pair := range slices.Chunk(namesAndValues, 2) {
		name, value := pair[0], strings.Map(printable, pair[1])
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = append(append(text, name...), `="`...)
		text = append(appendEscaped(text, value, true), '"')
	}
	return &labels{text: string(text)}
}

// protobuf returns the label fields of an io.prometheus.client.Metric.
func (l *labels) protobuf() string {
	if l.wire == "" && l.text != "" {
		var wire, value []byte
		for rest := l.text; rest != ""; rest = strings.TrimPrefix(rest, ",") {
			var name string
			name, rest, _ = strings.Cut(rest, `="`)
			value, rest = unescape(value[:0], rest)
			wire = appendLabelPair(wire, name, string(value))
		}
		l.wire = string(wire)
	}
	return l.wire
}

// unescape appends the value that the text begins with, which appendEscaped wrote, and returns what
// follows its closing quote.
func unescape(value []byte, text string) (_ []byte, rest string) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return value, text[i+1:]
		case '\\':
			i++
			if c = text[i]; c == 'n' {
				c = '\n'
			}
			value = append(value, c)
		default:
			value = append(value, c)
		}
	}
	return value, ""
}

// printable replaces the control characters of a value, such as of an annotation that is copied,
// other than those that separate words and lines.
func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return unicode.ReplacementChar
	}
	return r
}

// appendLabelPair appends field 1 of an io.prometheus.client.Metric: a LabelPair of name (1) and
// value (2).
func appendLabelPair(wire []byte, name, value string) []byte {
	size := 2 + protowire.SizeBytes(len(name)) + protowire.SizeBytes(len(value))
	wire = protowire.AppendVarint(protowire.AppendTag(wire, 1, protowire.BytesType), uint64(size))
	wire = protowire.AppendString(protowire.AppendTag(wire, 1, protowire.BytesType), name)
	return protowire.AppendString(protowire.AppendTag(wire, 2, protowire.BytesType), value)
}

// labelCache keeps rendered labels from scrape to scrape. It is used by one walk of a snapshot at a
// time, between begin and end.
type labelCache struct {
	mu    sync.Mutex
	specs driver.Catalogue
	names [][]string // of the quantities' own labels

	// Of what has the same pointer in all snapshots of the ledger.
	devices sequence[*driver.ID]
	holders sequence[*ledger.HolderKey]
	series  sequence[*ledger.Series]

	// Of all else, by text.
	rows    recent[string, *labels]
	used    int // of the rows, by the last walk
	key     []byte
	renewed time.Time
}

func newLabelCache(catalogue driver.Catalogue) *labelCache {
	c := &labelCache{specs: catalogue}
	for i := range catalogue {
		c.names = append(c.names, labelNames(&catalogue[i]))
	}
	c.rows.renew()
	return c
}

// keepLabels is the longest time after which rows that are not used any more become old. They do so
// earlier if there are more than minUnused and more than half as many as the last walk used: rows
// of claims and pods that ended are never used again.
const (
	keepLabels = 10 * time.Minute
	minUnused  = 256
)

// begin begins a walk of a snapshot of the given time.
func (c *labelCache) begin(now time.Time) {
	c.mu.Lock()
	c.devices.begin()
	c.holders.begin()
	c.series.begin()
	if now.Sub(c.renewed) > keepLabels || len(c.rows.young) > c.used+max(minUnused, c.used/2) {
		c.renewed = now
		c.rows.renew()
	}
	c.used = 0
}

// end ends the walk.
func (c *labelCache) end() { c.mu.Unlock() }

// with returns base.with of the names and values, which it keeps.
func (c *labelCache) with(base *labels, namesAndValues ...string) *labels {
	c.used++
	c.key = c.key[:0]
	if base != nil {
		c.key = append(c.key, base.text...)
	}
	for _, s := range namesAndValues {
		c.key = append(append(c.key, 0xff), s...) // no UTF-8 text has this byte
	}
	row, ok := c.rows.young[string(c.key)] // the conversion does not allocate
	if !ok {
		if row, ok = c.rows.old[string(c.key)]; !ok {
			row = base.with(namesAndValues...)
		}
		c.rows.young[string(c.key)] = row
	}
	return row
}

// recent is a map that drops the entries that were not used between its last two renewals.
type recent[K comparable, V any] struct{ young, old map[K]V }

func (r *recent[K, V]) renew() { r.young, r.old = map[K]V{}, r.young }

// sequence keeps the labels of the keys of a walk for the next walk. Keys mostly come in the same
// order; as long as they do, a look-up is one comparison.
type sequence[K comparable] struct {
	before, now []entry[K]
	next        int       // in before: where the next key is expected
	index       map[K]int // of before; nil until a key is not where it is expected
}

type entry[K comparable] struct {
	key    K
	labels *labels
}

// begin begins a walk. Entries that the previous walk did not add are dropped.
func (s *sequence[K]) begin() {
	clear(s.before)
	s.before, s.now = s.now, s.before[:0]
	s.next, s.index = 0, nil
}

// find returns the labels of a key, nil if the previous walk did not add them.
func (s *sequence[K]) find(key K) *labels {
	if s.next >= len(s.before) || s.before[s.next].key != key {
		if s.index == nil {
			s.index = make(map[K]int, len(s.before))
			for i, e := range slices.Backward(s.before) { // the first, if a key occurs twice
				s.index[e.key] = i
			}
		}
		i, ok := s.index[key]
		if !ok {
			return nil
		}
		s.next = i
	}
	s.next++
	return s.before[s.next-1].labels
}

// add keeps the labels for the next walk and returns them.
func (s *sequence[K]) add(key K, l *labels) *labels {
	s.now = append(s.now, entry[K]{key, l})
	return l
}

func labelNames(spec *driver.Spec) []string {
	var out []string
	for _, l := range spec.Labels {
		out = append(out, l.Name)
	}
	return out
}
