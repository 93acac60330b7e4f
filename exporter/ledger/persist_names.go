package ledger

import (
	"cmp"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Fields of recordDistribution and recordObserved.
const (
	distributionNamespace = 2
	distributionName      = 3
	distributionDriver    = 4
	distributionSeries    = 5
	distributionHistogram = 6

	observedValue   = 2
	observedSeconds = 3
)

func (w *writer) distributions(key claimKey, c *claimDistributions) {
	for _, d := range c.quantities {
		fresh := d.observed
		d.observed, d.keeps = d.observed[:0], true
		if w.whole || len(fresh) > maxObservations || d.recorded.number == 0 || d.shown != !d.series.Shown.IsZero() {
			w.distribution(key, d)
			continue
		}
		w.number(&d.recorded)
		for _, o := range fresh {
			b := wire.Float(w.begin(&d.recorded), observedValue, o.value)
			w.scratch = wire.Float(b, observedSeconds, o.seconds)
			w.out = wire.Bytes(w.out, recordObserved, w.scratch)
		}
	}
}

// distributionRecord is the persistent form of a distribution. Its series has no value.
type distributionRecord struct {
	key    claimKey
	series []Value
	of     *distribution.Histogram
}

func (d *distributionRecord) fields(m *record) {
	m.string(distributionNamespace, &d.key.namespace)
	m.string(distributionName, &d.key.name)
	m.string(distributionDriver, &d.key.driver)
	m.values(distributionSeries, &d.series)
	m.histogram(distributionHistogram, d.of)
}

func (w *writer) distribution(key claimKey, d *distributed) {
	d.shown = !d.series.Shown.IsZero()
	d.histogram.View().Read(&w.histogram)
	of := distributionRecord{key, []Value{{Series: d.series}}, &w.histogram}
	b := w.append(w.begin(&d.recorded), &of)
	d.recorded.hashes[slotSeldom] = 0 // it replaces the observations since
	w.end(recordDistribution, &d.recorded, slotSeldom, b)
}

// distribution restores the distribution of a claim. The claim's accounts must exist.
func (r *reader) distribution(_ uint64, b []byte, observed []observation) error {
	of := distributionRecord{of: &distribution.Histogram{}}
	_, err := r.parse(b, &of)
	c := r.ledger.claims.distributions[of.key]
	if err != nil || c == nil || len(of.series) == 0 {
		return err
	}
	for _, o := range observed {
		of.of.Observe(o.value, o.seconds)
	}
	c.add(&distributed{series: of.series[0].Series, histogram: distribution.NewGrowing(of.of)})
	return nil
}

// Fields of recordLives.
const (
	livesDriver      = 2
	livesBorn        = 3
	livesPreparation = 4 // a histogram
	livesPrepared    = 5 // when it was first in a snapshot
	livesActivity    = 6
	livesActive      = 7
)

func (d *driverLives) fields(m *record) {
	m.string(livesDriver, &d.Driver)
	m.stamp(livesBorn, &d.Born)
	m.stamp(livesPrepared, &d.Preparation.Shown)
	m.stamp(livesActive, &d.FirstActivity.Shown)
	m.histogram(livesPreparation, &d.Preparation.Histogram)
	m.histogram(livesActivity, &d.FirstActivity.Histogram)
}

func (w *writer) lives(d *driverLives) {
	w.end(recordLives, &d.recorded, slotSeldom, w.append(w.begin(&d.recorded), d))
}

// lives restores the distributions of a driver.
func (r *reader) lives(_ uint64, b []byte) error {
	d := &driverLives{}
	_, err := r.parse(b, d)
	if err == nil && d.Driver != "" {
		r.ledger.lives.byDriver[d.Driver] = d
	}
	return err
}

// Fields of recordClaim and recordPod.
const (
	nameNamespace    = 2
	nameName         = 3
	nameUID          = 4
	nameAllocated    = 5
	nameText         = 6 // alternating names and values of labels
	nameOwnerKind    = 7
	nameOwnerName    = 8
	nameWorkloadKind = 9
	nameWorkloadName = 10
	nameQueue        = 11
	nameMeta         = 12
	nameLabels       = 13
)

func (n *name) fields(m *record) {
	m.string(nameUID, &n.uid)
	m.stamp(nameAllocated, &n.allocatedAt)
}

// podMeta is the persistent form of a PodMeta.
type podMeta podresources.PodMeta

func (p *podMeta) fields(m *record) {
	m.string(nameOwnerKind, &p.OwnerKind)
	m.string(nameOwnerName, &p.OwnerName)
	m.string(nameWorkloadKind, &p.WorkloadKind)
	m.string(nameWorkloadName, &p.WorkloadName)
	m.string(nameQueue, &p.Queue)
}

func (w *writer) name(kind int, namespace, text string, n *name) {
	b := wire.String(wire.String(w.begin(&n.recorded), nameNamespace, namespace), nameName, text)
	b = w.append(b, n)
	labels := n.labels
	if m := n.meta; m != nil {
		b = wire.Bool(w.append(b, (*podMeta)(m)), nameMeta, true)
		labels = m.Labels
	}
	b = wire.Bool(b, nameLabels, labels != nil)
	for _, text := range labels {
		b = wire.Bytes(b, nameText, []byte(text))
	}
	w.end(kind, &n.recorded, slotSeldom, b)
}

// named reads a claim or pod and its identity.
func (r *reader) named(b []byte, ofPod bool) (namespace, text string, n *name, err error) {
	n = &name{seen: r.kept.Time, kept: r.kept.Time, needed: r.kept.Time}
	meta := &podresources.PodMeta{}
	var labels []string
	m, err := r.record(b)
	m.string(nameNamespace, &namespace)
	m.string(nameName, &text)
	n.fields(&m)
	(*podMeta)(meta).fields(&m)
	if m.last(nameMeta) != nil {
		n.meta = meta
	}
	if m.last(nameLabels) != nil {
		labels = []string{}
	}
	for f := range m.each(nameText) {
		labels = append(labels, f.String())
	}
	if len(labels)%2 != 0 {
		err = cmp.Or(err, errRecord)
	}
	if ofPod {
		meta.Labels = labels
	} else {
		n.labels = labels
	}
	return namespace, text, n, err
}

func (r *reader) claim(_ uint64, b []byte) error {
	namespace, text, n, err := r.named(b, false)
	r.ledger.names.claims.names[podresources.Claim{Namespace: namespace, Name: text}] = n
	return err
}

func (r *reader) pod(_ uint64, b []byte) error {
	namespace, text, n, err := r.named(b, true)
	r.ledger.names.pods.names[podresources.Pod{Namespace: namespace, Name: text}] = n
	return err
}
