package exporter

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
)

// labelPool makes label pairs. One pair serves all series that have it: most of the time of a scrape is spent waiting
// for the memory of the pairs, and so few of them lie in the processor's cache.
type labelPool struct {
	mu      sync.Mutex
	pairs   recent[[2]string, *dto.LabelPair]
	rows    recent[string, []*dto.LabelPair]
	key     []byte // of a row
	renewed time.Time
}

// recent is a map that forgets what was not asked for between its last two renewals.
type recent[K comparable, V any] struct{ young, old map[K]V }

func (r *recent[K, V]) renew() { r.young, r.old = map[K]V{}, r.young }

func (r *recent[K, V]) get(key K) (V, bool) {
	v, ok := r.young[key]
	if !ok {
		if v, ok = r.old[key]; ok {
			r.young[key] = v
		}
	}
	return v, ok
}

func newLabelPool() *labelPool {
	p := &labelPool{}
	p.pairs.renew()
	p.rows.renew()
	return p
}

// tick lets the pool forget, from time to time, what is not used any more. Who has a pair keeps it.
func (p *labelPool) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.renewed) > forget {
		p.renewed = now
		p.pairs.renew()
		p.rows.renew()
	}
}

// row is with, for what is asked for again at every scrape. It must not be changed.
func (p *labelPool) row(base []*dto.LabelPair, namesAndValues ...string) []*dto.LabelPair {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key = p.key[:0]
	for _, pair := range base {
		p.key = append(append(append(append(p.key, *pair.Name...), 0xff), *pair.Value...), 0xff) // no UTF-8 has this byte
	}
	for _, s := range namesAndValues {
		p.key = append(append(p.key, s...), 0xff)
	}
	row, ok := p.rows.young[string(p.key)] // looked up without making a string
	if !ok {
		if row, ok = p.rows.get(string(p.key)); !ok {
			row = p.make(base, namesAndValues)
			p.rows.young[string(p.key)] = row
		}
	}
	return row
}

// with returns base with label pairs of names and values in turns, sorted by name as Prometheus wants them. The base is
// not changed.
func (p *labelPool) with(base []*dto.LabelPair, namesAndValues ...string) []*dto.LabelPair {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.make(base, namesAndValues)
}

func (p *labelPool) make(base []*dto.LabelPair, namesAndValues []string) []*dto.LabelPair {
	out := append(make([]*dto.LabelPair, 0, len(base)+len(namesAndValues)/2), base...)
	for i := 0; i < len(namesAndValues); i += 2 {
		out = append(out, p.pair(namesAndValues[i], namesAndValues[i+1]))
	}
	sortLabels(out)
	return out
}

func (p *labelPool) pair(name, value string) *dto.LabelPair {
	key := [2]string{name, value}
	pair, ok := p.pairs.get(key)
	if !ok {
		pair = &dto.LabelPair{Name: &key[0], Value: &key[1]}
		p.pairs.young[key] = pair
	}
	return pair
}

func sortLabels(l []*dto.LabelPair) {
	slices.SortFunc(l, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
}

func (p *labelPool) device(id driver.ID) []*dto.LabelPair {
	return p.with(nil, "driver", id.Driver, "pool", id.Pool, "device", id.Device)
}

func (p *labelPool) holder(holder string, k accountKey) []*dto.LabelPair {
	return p.with(nil, "namespace", k.Namespace, holder, k.Name, "driver", k.Device.Driver, "pool", k.Device.Pool, "device", k.Device.Device)
}

// join returns base with the quantity's labels; without any it is base itself.
func (p *labelPool) join(base []*dto.LabelPair, names []string, values driver.Labels) []*dto.LabelPair {
	if len(names) == 0 {
		return base
	}
	more := make([]string, 0, 2*len(names))
	for i, name := range names {
		more = append(more, name, values[i])
	}
	return p.with(base, more...)
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
