package exposition

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// labels are the labels of a series as the formats write them. They are rendered once and copied
// into each scrape; those of protobuf are rendered when a scrape first needs them. nil has no
// labels.
type labels struct {
	base *labels // the first labels, which many series have in common
	text string  // a="1",b="2", escaped, for both text formats
	wire string  // the label fields of an io.prometheus.client.Metric; "": not rendered yet
}

// with returns the labels plus others, given as alternating names and values.
func (l *labels) with(namesAndValues ...string) *labels {
	if len(namesAndValues) == 0 {
		return l
	}
	var text []byte
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = append(append(text, namesAndValues[i]...), `="`...)
		text = append(appendEscaped(text, strings.Map(printable, namesAndValues[i+1]), true), '"')
	}
	return &labels{base: l, text: string(text)}
}

// empty reports whether there are no labels.
func (l *labels) empty() bool { return l == nil || l.text == "" && l.base.empty() }

// appendText appends the labels in the form of both text formats.
func (l *labels) appendText(out []byte) []byte {
	if l == nil {
		return out
	}
	out = l.base.appendText(out)
	if l.text != "" && !l.base.empty() {
		out = append(out, ',')
	}
	return append(out, l.text...)
}

// sizeProtobuf returns how many bytes appendProtobuf appends.
func (l *labels) sizeProtobuf() int {
	if l == nil {
		return 0
	}
	return l.base.sizeProtobuf() + len(l.wire)
}

// appendProtobuf appends the label fields of an io.prometheus.client.Metric. makeProtobuf must have
// made them.
func (l *labels) appendProtobuf(out []byte) []byte {
	if l == nil {
		return out
	}
	return append(l.base.appendProtobuf(out), l.wire...)
}

// makeProtobuf makes the label fields, unless they have been made.
func (l *labels) makeProtobuf() {
	if l == nil {
		return
	}
	l.base.makeProtobuf()
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
}

// unescape appends the value at the beginning of text, which appendEscaped has written, and returns
// the text after its closing quote.
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

// printable replaces control characters, such as in a copied annotation, except those that separate
// words and lines.
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

// labelCache keeps rendered labels from scrape to scrape. Only one walk at a time may use it,
// between begin and end. The methods of nil render nothing: owners and series have no labels and no
// age.
type labelCache struct {
	mu    sync.Mutex
	specs driver.Catalogue
	names [][]string // of the quantities' own labels
	epoch time.Time  // time of the first walk, at which the clock of age.shown begins

	// Entries of objects with the same pointer in all snapshots of the ledger.
	devices sequence[*driver.ID, *owner]
	holders sequence[*book.HolderKey, *owner]

	// Entries of facts about claims and pods from the kubelet and the API server.
	shares sequence[shareKey, []fact]
	claims sequence[claimKey, []fact]
	pods   sequence[book.PodInfo, []fact]

	// All other entries, by text.
	young   map[string]*labels // those that the walks since the last renewal used
	old     map[string]*labels
	used    int // number of rows that the last walk used
	key     []byte
	renewed time.Time
}

// owner is the owner of series: a device, or a claim or pod and its device. nil has no labels.
type owner struct {
	labels  *labels // identify the owner
	series  sequence[*book.Series, series]
	sources sequence[*book.Series, *labels] // of a device's series
}

// base returns the labels that identify the owner.
func (o *owner) base() *labels {
	if o == nil {
		return nil
	}
	return o.labels
}

// end ends the walk.
func (o *owner) end() {
	if o == nil {
		return
	}
	o.series.end()
	o.sources.end()
}

// series is the exported form of a [book.Series], which is immutable.
type series struct {
	labels   *labels
	age      age
	quantity driver.Quantity // as in the book.Series, which is not read for each scrape
}

// age is the age of a counter. born is when it began, in nanoseconds of Unix time; 0 if it has no
// created timestamp. shown is when a snapshot first had it, in nanoseconds of the monotonic clock
// since the first walk.
type age struct{ born, shown int64 }

// never is a time before all others.
const never = math.MinInt64

func newLabelCache(catalogue driver.Catalogue) *labelCache {
	c := &labelCache{specs: catalogue, young: map[string]*labels{}}
	for i := range catalogue {
		c.names = append(c.names, labelNames(&catalogue[i]))
	}
	return c
}

// keepLabels is the time after which unused rows become old. They become old earlier if there are
// more than minUnused of them, and more than half as many as the last walk used: rows of ended
// claims and pods are not used again.
const (
	keepLabels = 10 * time.Minute
	minUnused  = 256
)

// begin begins a walk of a snapshot with a time.
func (c *labelCache) begin(now time.Time) {
	c.mu.Lock()
	if c.epoch.IsZero() {
		c.epoch = now
	}
	c.devices.begin()
	c.holders.begin()
	c.shares.begin()
	c.claims.begin()
	c.pods.begin()
	if now.Sub(c.renewed) > keepLabels || len(c.young) > c.used+max(minUnused, c.used/2) {
		c.renewed = now
		c.young, c.old = map[string]*labels{}, c.young
	}
	c.used = 0
}

// end ends the walk.
func (c *labelCache) end() {
	c.devices.end()
	c.holders.end()
	c.shares.end()
	c.claims.end()
	c.pods.end()
	c.mu.Unlock()
}

// age returns the age of a counter.
func (c *labelCache) age(born, shown time.Time) age {
	if c == nil {
		return age{}
	}
	a := age{shown: c.since(shown)}
	if !born.IsZero() {
		a.born = born.UnixNano()
	}
	return a
}

// since returns the time since the first walk in nanoseconds. The zero time is before all others.
func (c *labelCache) since(t time.Time) int64 {
	if c == nil {
		return never
	}
	return int64(t.Sub(c.epoch))
}

// device returns the owner of a device's series. The caller must call its end.
func (c *labelCache) device(d *book.Device) *owner {
	if c == nil {
		return nil
	}
	return ownerOf(&c.devices, d.Key, &d.ID)
}

// holder returns the owner of the series of a claim or pod and its device. name is the label for
// the name of the claim or pod. The caller must call its end.
func (c *labelCache) holder(name string, h *book.Holder) *owner {
	if c == nil {
		return nil
	}
	return ownerOf(&c.holders, h.HolderKey, &h.Device, "namespace", h.Namespace, name, h.Name)
}

// ownerOf returns the owner with a key, whose labels are these and those of its device.
func ownerOf[K comparable](all *sequence[K, *owner], key K, id *driver.ID, before ...string) *owner {
	known := all.find(key)
	if known == nil {
		row := (*labels)(nil).with(append(before, "driver", id.Driver, "pool", id.Pool, "device", id.Device)...)
		known = all.add(key, &owner{labels: row})
	}
	(*known).series.begin()
	(*known).sources.begin()
	return *known
}

// series returns the exported form of a series of an owner. of is the claim if the series is a
// distribution, which is that of all devices of a driver.
func (c *labelCache) series(owner *owner, s *book.Series, of *book.Holder) series {
	if c == nil {
		return series{quantity: s.Quantity}
	}
	known := owner.series.find(s)
	if known == nil {
		base := owner.labels
		if of != nil {
			base = (*labels)(nil).with("namespace", of.Namespace, "resourceclaim_name", of.Name, "driver", of.Device.Driver)
		}
		known = owner.series.add(s, c.newSeries(base, s))
	}
	return *known
}

// source returns the labels of the series that names the source of a device's quantity.
func (c *labelCache) source(device *owner, s *book.Series) *labels {
	if c == nil {
		return nil
	}
	row := device.sources.find(s)
	if row == nil {
		name := c.specs.Spec(s.Quantity).Name
		row = device.sources.add(s, device.labels.with("quantity", name, "source", s.Origin.String()))
	}
	return *row
}

// newSeries returns the exported form of a series with these labels and its own.
func (c *labelCache) newSeries(base *labels, s *book.Series) series {
	row := base
	if names := c.names[s.Quantity]; len(names) > 0 {
		var more []string
		for i, name := range names {
			if s.Labels[i] != "" || !c.specs.Spec(s.Quantity).Labels[i].Optional {
				more = append(more, name, s.Labels[i])
			}
		}
		row = base.with(more...)
	}
	return series{row, c.age(s.Born, s.Shown), s.Quantity}
}

func (c *labelCache) shareFacts() *sequence[shareKey, []fact]   { return &c.shares }
func (c *labelCache) claimFacts() *sequence[claimKey, []fact]   { return &c.claims }
func (c *labelCache) podFacts() *sequence[book.PodInfo, []fact] { return &c.pods }

// with returns base.with of the names and values, from the cache if it has them.
func (c *labelCache) with(base *labels, namesAndValues ...string) *labels {
	if c == nil {
		return nil
	}
	c.used++
	c.key = base.appendText(c.key[:0])
	for _, s := range namesAndValues {
		c.key = append(append(c.key, 0xff), s...) // a byte that UTF-8 does not use
	}
	row, ok := c.young[string(c.key)] // the conversion does not allocate
	if !ok {
		if row, ok = c.old[string(c.key)]; !ok {
			row = base.with(namesAndValues...)
		}
		c.young[string(c.key)] = row
	}
	return row
}

// sequence keeps the values of a walk's keys for the next walk. Keys mostly come in the same order.
// Then a lookup is one comparison, and nothing is written.
type sequence[K comparable, V any] struct {
	before, now []entry[K, V]
	next        int       // index in before at which the next key is expected
	changed     bool      // the keys differ from the beginning of before, and are in now
	index       map[K]int // of before; nil until a key is not where it was expected
}

type entry[K comparable, V any] struct {
	key  K
	made V
}

// begin begins a walk.
func (s *sequence[K, V]) begin() { s.next, s.changed, s.index = 0, false, nil }

// end ends the walk. Entries that the walk did not look up are dropped.
func (s *sequence[K, V]) end() {
	if s.changed {
		s.before, s.now = slices.Clone(s.now), nil // changes are rare: no room is kept for more
		s.next = len(s.before)
	}
	clear(s.before[s.next:])
	s.before, s.index = s.before[:s.next], nil
}

// find returns the value of a key, nil if the previous walk did not have the key; then the caller
// must add it. The pointer is valid until the next call.
func (s *sequence[K, V]) find(key K) *V {
	if s.next < len(s.before) && s.before[s.next].key == key {
		s.next++
		if s.changed {
			s.now = append(s.now, s.before[s.next-1])
		}
		return &s.before[s.next-1].made
	}
	s.change()
	if s.index == nil {
		s.index = make(map[K]int, len(s.before))
		for i := range slices.Backward(s.before) { // the first, if a key occurs twice
			s.index[s.before[i].key] = i
		}
	}
	i, ok := s.index[key]
	if !ok {
		return nil
	}
	s.next = i + 1
	s.now = append(s.now, s.before[i])
	return &s.before[i].made
}

// add adds a key and its value for the next walk.
func (s *sequence[K, V]) add(key K, made V) *V {
	s.change()
	s.now = append(s.now, entry[K, V]{key, made})
	return &s.now[len(s.now)-1].made
}

// change copies the keys so far to now, since the next one differs from before.
func (s *sequence[K, V]) change() {
	if !s.changed {
		s.changed = true
		s.now = append(s.now, s.before[:s.next]...)
	}
}

func labelNames(spec *driver.Spec) []string {
	var out []string
	for _, l := range spec.Labels {
		out = append(out, l.Name)
	}
	return out
}
