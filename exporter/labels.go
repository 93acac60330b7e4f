package exporter

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
)

// labels are those of a series, as the formats write them: they are made when a series is, and only copied when it is
// scraped. They never change. nil has no labels.
type labels struct {
	text string // a="1",b="2", escaped, for both text formats
	wire string // the label fields of an io.prometheus.client.Metric
}

// with returns the labels and more, given as names and values in turns.
func (l *labels) with(namesAndValues ...string) *labels {
	var text, wire []byte
	if l != nil {
		text, wire = append(text, l.text...), append(wire, l.wire...)
	}
	for pair := range slices.Chunk(namesAndValues, 2) {
		name, value := pair[0], pair[1]
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = append(append(text, name...), `="`...)
		text = append(appendEscaped(text, value, true), '"')
		wire = appendLabelPair(wire, name, value)
	}
	return &labels{text: string(text), wire: string(wire)}
}

// appendLabelPair appends field 1 of an io.prometheus.client.Metric: a LabelPair of name (1) and value (2).
func appendLabelPair(wire []byte, name, value string) []byte {
	size := 2 + protowire.SizeBytes(len(name)) + protowire.SizeBytes(len(value))
	wire = protowire.AppendVarint(protowire.AppendTag(wire, 1, protowire.BytesType), uint64(size))
	wire = protowire.AppendString(protowire.AppendTag(wire, 1, protowire.BytesType), name)
	return protowire.AppendString(protowire.AppendTag(wire, 2, protowire.BytesType), value)
}

func deviceLabels(id driver.ID) *labels {
	return (*labels)(nil).with("driver", id.Driver, "pool", id.Pool, "device", id.Device)
}

func holderLabels(holder string, k accountKey) *labels {
	return (*labels)(nil).with("namespace", k.Namespace, holder, k.Name, "driver", k.Device.Driver, "pool", k.Device.Pool, "device", k.Device.Device)
}

// ofQuantity returns the labels with the quantity's own; where it has none they are the same.
func (l *labels) ofQuantity(key seriesKey) *labels {
	names := labelNames(key.quantity)
	if len(names) == 0 {
		return l
	}
	more := make([]string, 0, 2*len(names))
	for i, name := range names {
		more = append(more, name, key.labels[i])
	}
	return l.with(more...)
}

// labelCache keeps the labels of what has no series that is kept from snapshot to snapshot.
type labelCache struct {
	mu      sync.Mutex
	rows    recent[string, *labels]
	key     []byte
	renewed time.Time
}

// recent is a map that forgets what was not asked for between its last two renewals.
type recent[K comparable, V any] struct{ young, old map[K]V }

func (r *recent[K, V]) renew() { r.young, r.old = map[K]V{}, r.young }

func newLabelCache() *labelCache {
	c := &labelCache{}
	c.rows.renew()
	return c
}

// tick lets the cache forget, from time to time, what is not used any more.
func (c *labelCache) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.renewed) > forget {
		c.renewed = now
		c.rows.renew()
	}
}

// with is base.with, for what is asked for again at every scrape.
func (c *labelCache) with(base *labels, namesAndValues ...string) *labels {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = c.key[:0]
	if base != nil {
		c.key = append(c.key, base.text...)
	}
	for _, s := range namesAndValues {
		c.key = append(append(c.key, 0xff), s...) // no UTF-8 has this byte
	}
	row, ok := c.rows.young[string(c.key)] // looked up without making a string
	if !ok {
		if row, ok = c.rows.old[string(c.key)]; !ok {
			row = base.with(namesAndValues...)
		}
		c.rows.young[string(c.key)] = row
	}
	return row
}

func labelNames(q driver.Quantity) []string {
	var out []string
	for _, l := range q.Spec().Labels {
		out = append(out, l.Name)
	}
	return out
}

func (k seriesKey) compare(other seriesKey) int {
	return cmp.Or(
		cmp.Compare(k.quantity, other.quantity),
		strings.Compare(k.labels[0], other.labels[0]),
		strings.Compare(k.labels[1], other.labels[1]),
	)
}
