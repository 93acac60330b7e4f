package exporter

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// replayYoung runs one random history through two ledgers, one of which keeps pods young for a
// random time, and calls check after each tick.
func replayYoung(t *rapid.T, check func(plain, young *exposition.Snapshot)) {
	w := exportertest.NewWorld(t)
	config := exportertest.LedgerConfig()
	plain := ledger.New(config)
	config.MinLifetime = rapid.SampledFrom([]time.Duration{
		time.Nanosecond, 500 * time.Millisecond, 2 * time.Second, 5 * time.Second, time.Minute, time.Hour,
	}).Draw(t, "min lifetime")
	young := ledger.New(config)
	for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
		w.Step(exportertest.Pauses())
		in := w.Input()
		for i := range in.View.Allocations {
			holders := in.View.Allocations[i].Holders
			for j := range holders {
				if pod := holders[j].Name; pod != "p2" {
					holders[j].Meta = &podresources.PodMeta{WorkloadKind: "Job", WorkloadName: pod[:1]}
				}
			}
		}
		r := join.Join(in)
		check(exportertest.Whole(plain.Advance(r, w.Now)), exportertest.Whole(young.Advance(r, w.Now)))
	}
}

// Whatever the lifetimes of pods: devices and claims are the same with and without young pods; of
// gauges, the series of pods and workloads sum to the claims'; of counters, together with those of
// young pods, they sum to what all pods have without them; no counter falls; and a pod that was
// never old enough never has a series.
func TestConservationOfYoungPods(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plainBooks, books := map[exportertest.SumKey]*podBook{}, map[exportertest.SumKey]*podBook{}
		replayYoung(t, func(plain, s *exposition.Snapshot) {
			want, got := exportertest.Scrape(t, plain), exportertest.Scrape(t, s)
			sameOthers(t, want, got)
			wantSums, sums := want.Sums(), got.Sums()
			whole := *s
			whole.Snapshot = withYoung(s.Snapshot)
			all := exportertest.Scrape(t, &whole).Sums()
			exportertest.AddPlugins(sums, s.Plugins)
			for key, p := range sums {
				if p.Gauge {
					claims, pods := exportertest.SumOf(p.Claims), exportertest.SumOf(p.Pods)
					must.That(t, exportertest.Close(claims, pods, 0), "%v: claims have %v, pods and workloads %v", key, claims, pods)
					continue
				}
				for pod := range p.Pods {
					if _, shown := podsOf(wantSums, key)[pod]; !shown && pod != "team/aggregated/" && pod != "team/aggregated/Job/p" {
						t.Fatalf("%v has a series of %s", key, pod)
					}
				}
			}
			for key, p := range all {
				if p.Gauge {
					continue
				}
				if books[key] == nil {
					books[key], plainBooks[key] = newPodBook(), newPodBook()
				}
				books[key].observe(t, key, p.Pods, s.Snapshot)
				plainBooks[key].observe(t, key, podsOf(wantSums, key), plain.Snapshot)
				must.That(t, exportertest.Close(books[key].sum(), plainBooks[key].sum(), p.Device),
					"%v: pods and workloads were charged %v, without workloads %v", key, books[key], plainBooks[key])
			}
		})
	})
}

func podsOf(sums map[exportertest.SumKey]*exportertest.Division, key exportertest.SumKey) map[string]float64 {
	if sums[key] == nil {
		return nil
	}
	return sums[key].Pods
}

// sameOthers fails if families that are not of pods differ.
func sameOthers(t *rapid.T, want, got exportertest.Scraped) {
	t.Helper()
	for family, rows := range want {
		_, who := exportertest.HolderOf(family)
		if who != "pod" && family != "dra_exporter_series" && !maps.Equal(rows, got[family]) {
			t.Fatalf("%s is\n%v, without young pods\n%v", family, got[family], rows)
		}
	}
}

// withYoung returns the snapshot with rows of young pods, as if they were old.
func withYoung(s *book.Snapshot) *book.Snapshot {
	out := *s
	out.Pods = append(append([]book.Holder{}, s.Pods...), s.Young...)
	return &out
}

// podBook has what pods and workloads were charged of a counter of a device.
type podBook struct {
	gone  float64 // by those that are not shown any more
	left  map[string]departed
	last  map[string]float64
	since map[string]time.Time
	young map[string]bool
}

// departed has the last shown charges of a pod. If it returns soon, it continues with them.
type departed struct {
	since   time.Time
	charged float64
}

func newPodBook() *podBook {
	return &podBook{
		left: map[string]departed{}, last: map[string]float64{}, since: map[string]time.Time{}, young: map[string]bool{},
	}
}

func (b *podBook) sum() float64 { return b.gone + exportertest.SumOf(b.last) }

// observe notes the present counters. A young pod that vanishes was added to its workload.
func (b *podBook) observe(t *rapid.T, key exportertest.SumKey, now map[string]float64, s *book.Snapshot) {
	t.Helper()
	born, young := map[string]time.Time{}, map[string]bool{}
	for _, rows := range [2][]book.Holder{s.Pods, s.Young} {
		for i := range rows {
			if h := &rows[i]; h.Device.String() == key.Device {
				born[h.Namespace+"/"+h.Name] = h.Metrics().Born
			}
		}
	}
	for i := range s.Young {
		if h := &s.Young[i]; h.Device.String() == key.Device {
			young[h.Namespace+"/"+h.Name] = true
		}
	}
	for pod, v := range b.last {
		if _, shown := now[pod]; shown && born[pod].Equal(b.since[pod]) {
			continue
		}
		if !b.young[pod] {
			b.gone += v
			b.left[pod] = departed{b.since[pod], v}
		}
		delete(b.last, pod)
	}
	for pod, v := range now {
		if left, ok := b.left[pod]; ok {
			if left.since.Equal(born[pod]) {
				b.gone -= left.charged
				b.last[pod] = left.charged
			}
			delete(b.left, pod)
		}
		must.That(t, v >= b.last[pod], "%v of %s fell from %v to %v", key, pod, b.last[pod], v)
		b.last[pod] = v
	}
	b.since, b.young = born, young
}
