package exposition

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Plain returns the families of a snapshot as client_golang has them, made of nothing but the
// snapshot: nothing is kept from one call to the next. It panics if there is no such snapshot.
func Plain(s *Snapshot, c Config) []*dto.MetricFamily {
	specs := c.Catalogue.OrStandard()
	p := &plain{
		config: c, keep: s.keep, now: s.Time, cache: newLabelCache(specs), families: map[familyID]*dto.MetricFamily{},
	}
	p.described = allFamilies(specs, c.Choices)
	p.cache.begin(s.Time)
	defer p.cache.end()
	s.walk(newEmission(p, p.described, c.Choices, specs, p.cache))
	p.addLabels()
	var out []*dto.MetricFamily
	for _, f := range p.families {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// plain is a sink that makes the families.
type plain struct {
	config    Config
	keep      int
	now       time.Time
	cache     *labelCache
	described *[numFamilies]Family
	families  map[familyID]*dto.MetricFamily
	metrics   []*dto.Metric   // of all families, without labels
	labels    strings.Builder // a line a metric
}

// addLabels adds their labels to the metrics, as the library reads them.
func (p *plain) addLabels() {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(p.labels.String()))
	if err != nil {
		panic(err)
	}
	for i, read := range parsed["x"].GetMetric() {
		p.metrics[i].Label = read.Label
	}
}

// begin returns a new metric of a family, nil if the limit drops it.
func (p *plain) begin(id familyID, l *labels) *dto.Metric {
	f := &p.described[id]
	if int(f.rank) < p.keep && !f.unlimited {
		return nil
	}
	family := p.families[id]
	if family == nil {
		kind := dto.MetricType_GAUGE
		if f.Histogram {
			kind = dto.MetricType_HISTOGRAM
		} else if f.Type == driver.Counter {
			kind = dto.MetricType_COUNTER
		}
		family = &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: &kind}
		if f.Unit != "" {
			family.Unit = &f.Unit
		}
		p.families[id] = family
	}
	m := &dto.Metric{}
	family.Metric = append(family.Metric, m)
	p.metrics = append(p.metrics, m)
	p.labels.WriteString("x{" + string(l.appendText(nil)) + "} 1\n")
	return m
}

// held reports whether a counter is shown as 0 since it is new.
func (p *plain) held(a age) bool {
	shown := p.cache.epoch.Add(time.Duration(a.shown))
	return p.config.ZeroHold > 0 && p.now.Sub(shown) < p.config.ZeroHold
}

func (p *plain) born(a age) *timestamppb.Timestamp {
	if at := time.Unix(0, a.born); a.born != 0 && !at.After(p.now) {
		return timestamppb.New(at)
	}
	return nil
}

func (p *plain) put(id familyID, l *labels, value float64, a age) {
	m := p.begin(id, l)
	if m == nil {
		return
	}
	if p.described[id].Type != driver.Counter {
		m.Gauge = &dto.Gauge{Value: &value}
		return
	}
	if p.held(a) {
		value = 0
	}
	m.Counter = &dto.Counter{Value: &value, CreatedTimestamp: p.born(a)}
}

func (p *plain) putDistribution(id familyID, l *labels, d *book.Distribution, a age) {
	m := p.begin(id, l)
	if m == nil {
		return
	}
	h := d.Histogram()
	if p.held(a) {
		h = &distribution.Histogram{}
	}
	buckets := map[int]int64{}
	for index, count := range h.Buckets() {
		buckets[index] = int64(count)
	}
	desc := prometheus.NewDesc(p.described[id].Name, p.described[id].Help, nil, nil)
	library := prometheus.MustNewConstNativeHistogram(desc, h.Count(), h.Sum(), buckets, nil, h.Zero(),
		int32(h.Schema()), distribution.ZeroThreshold, p.now)
	var made dto.Metric
	if err := library.Write(&made); err != nil {
		panic(err)
	}
	m.Histogram = made.Histogram
	m.Histogram.CreatedTimestamp = p.born(a)
}
