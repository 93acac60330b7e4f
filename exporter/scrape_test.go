package exporter

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// answerSize is the size of an answer with the metrics: samples, where a histogram is one, and
// bytes.
type answerSize struct{ samples, plain, compressed int }

// before are the sizes of answers for scrapedNode(8) by the commit 750f047, the last before claims
// had errors, peaks and distributions, and pods workloads. It compressed at gzip's level 1.
func before() map[expfmt.FormatType]answerSize {
	return map[expfmt.FormatType]answerSize{
		expfmt.TypeTextPlain:   {16_327, 2_783_014, 153_961},
		expfmt.TypeOpenMetrics: {16_327, 2_793_856, 154_617},
		expfmt.TypeProtoDelim:  {16_327, 2_585_364, 169_269},
	}
}

// scrapedNode returns snapshots of 64 devices with 17 readings each that 500 pods share, every 15
// seconds, the last one after two minutes in which all readings rose and fell between almost
// nothing and all. Every so many devices one had errors, 0: none. Pods have owners, workloads and
// queues.
func scrapedNode(failing int, config ledger.Config) (scraped []*exposition.Snapshot) {
	n := newNode(64, 500)
	for i := range n.samples {
		for _, kind := range []string{"ecc_corrected", "ecc_uncorrected"} {
			n.samples[i].Readings = append(n.samples[i].Readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{kind},
			})
		}
	}
	for i := range n.in.View.Allocations {
		job := fmt.Sprintf("training-%d", i/8)
		for j := range n.in.View.Allocations[i].Holders {
			h := &n.in.View.Allocations[i].Holders[j]
			h.UID = fmt.Sprintf("%08d-1111-2222-3333-444444444444", i)
			h.Meta = &podresources.PodMeta{
				OwnerKind: "Job", OwnerName: job, WorkloadKind: "JobSet", WorkloadName: job, Queue: "team",
			}
		}
	}
	began, random := n.now, rand.New(rand.NewPCG(1, 2))
	l, limiter := ledger.New(config), exposition.NewLimiter(0, nil)
	for tick := range 130 {
		n.tick()
		n.swing(began, random.Float64, func(device int, _ string) bool {
			return failing > 0 && device%failing == 0 && tick%60 == 0
		})
		s := limiter.Apply(l, l.Advance(join.Join(n.in), n.now))
		if tick%15 == 9 && tick > 60 {
			scraped = append(scraped, s)
		}
	}
	return scraped
}

// sizeOf returns the size of an answer, without the exporter's own metrics.
func sizeOf(t *testing.T, s *exposition.Snapshot, f expfmt.FormatType) answerSize {
	t.Helper()
	e := exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot { return s }, exposition.Config{})
	var out, compressed bytes.Buffer
	must.Get(e.Write(&out, expfmt.NewFormat(f).WithEscapingScheme(model.NoEscaping)))(t)
	z := must.Get(gzip.NewWriterLevel(&compressed, web.CompressionLevel))(t)
	must.Get(z.Write(out.Bytes()))(t)
	must.Do(t, z.Close())
	size := answerSize{plain: out.Len(), compressed: compressed.Len()}
	for _, family := range exportertest.Decode(t, e) {
		if f == expfmt.TypeProtoDelim || family.GetType().String() != "HISTOGRAM" {
			size.samples += len(family.GetMetric())
		}
	}
	return size
}

// A scrape of 64 devices and 500 pods, with one failing device in eight, is at most a quarter
// larger than without errors, peaks and distributions of claims, in every format, in samples and in
// bytes, also compressed; at most a quarter of it is distributions. With errors on all devices it
// is larger: 1.29 of the samples and 1.16 of the compressed bytes as text, 1.38 and 1.30 as
// protobuf. BenchmarkScrapeOfLargeNode has the CPU time.
func TestScrapeOfLargeNode(t *testing.T) {
	if testmain.RaceEnabled {
		t.Skip("the sizes are the same, and take minutes")
	}
	last := func(scraped []*exposition.Snapshot) *exposition.Snapshot { return scraped[len(scraped)-1] }
	s := last(scrapedNode(8, exportertest.LedgerConfig()))
	config := exportertest.LedgerConfig()
	config.WithoutDistributions = true
	without := last(scrapedNode(8, config))
	for format, was := range before() {
		is, off := sizeOf(t, s, format), sizeOf(t, without, format)
		t.Logf("%v: %+v, before %+v, with --histograms=off %+v", format, is, was, off)
		texts := 1000 // of help, that are longer
		if 4*is.samples > 5*was.samples || 4*(is.plain-texts) > 5*was.plain || 4*is.compressed > 5*was.compressed {
			t.Errorf("%v: %+v, want at most a quarter more than %+v", format, is, was)
		}
		expect.That(t, 4*is.samples <= 5*off.samples && 4*is.plain <= 5*off.plain && 4*is.compressed <= 5*off.compressed,
			"%v: %+v with distributions, want at most a quarter more than %+v", format, is, off)
		expect.That(t, format == expfmt.TypeProtoDelim || is.samples == off.samples && is.plain == off.plain,
			"%v: %+v, but with --histograms=off %+v", format, is, off)
	}
}

// BenchmarkScrapeOfLargeNode is the CPU time of an answer for scrapedNode(8), with and without
// distributions and compression, and with collecting garbage as the program does. Each is of
// another snapshot than the one before.
func BenchmarkScrapeOfLargeNode(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	off := exportertest.LedgerConfig()
	off.WithoutDistributions = true
	for histograms, config := range map[string]ledger.Config{"on": exportertest.LedgerConfig(), "off": off} {
		scraped := scrapedNode(8, config)
		for name, format := range map[string]expfmt.FormatType{
			"text": expfmt.TypeTextPlain, "protobuf": expfmt.TypeProtoDelim,
		} {
			for _, compressed := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/gzip=%v/histograms=%s", name, compressed, histograms), func(b *testing.B) {
					benchAnswer(b, scraped, expfmt.NewFormat(format).WithEscapingScheme(model.NoEscaping), compressed)
				})
			}
		}
	}
}

func benchAnswer(b *testing.B, scraped []*exposition.Snapshot, format expfmt.Format, compressed bool) {
	s := scraped[0]
	e := exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot { return s }, exposition.Config{})
	z := must.Get(gzip.NewWriterLevel(io.Discard, web.CompressionLevel))(b)
	answer := func() {
		var w io.Writer = &bytes.Buffer{}
		if compressed {
			z.Reset(io.Discard)
			w = z
		}
		must.Get(e.Write(w, format))(b)
		if compressed {
			_ = z.Close() // writing to discards it
		}
	}
	answer() // which makes the labels
	b.ReportAllocs()
	userBefore, systemBefore := cpuTime(b)
	for i := 0; b.Loop(); i++ {
		s = scraped[i%len(scraped)]
		answer()
	}
	user, system := cpuTime(b)
	b.ReportMetric((user+system-userBefore-systemBefore).Seconds()*1e3/float64(b.N), "cpu-ms/op")
}
