package scrape

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/scrape/scrapetest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// dcgm returns a simulated dcgm-exporter of two GPUs, one of them partitioned, that work.
func dcgm(c *clock) *scrapetest.DCGM {
	start := c.now()
	return &scrapetest.DCGM{Now: c.now, Read: func(at time.Time) []scrapetest.GPU {
		busy := at.Sub(start).Seconds()
		return []scrapetest.GPU{
			{
				UUID: "GPU-1", PCI: "00000000:3B:00.0", Model: "NVIDIA H100", Utilization: 0.5, Power: 400 + busy,
				Energy: 1000 + 400*busy, MemoryUsed: 1 << 30, MemoryTotal: 80 << 30, Temperature: 60,
			},
			{
				UUID: "GPU-2", PCI: "00000000:AF:00.0", Power: 90, Energy: 90 * (1 + busy), Temperature: 55,
				Instances: []scrapetest.Instance{
					{ID: 7, Profile: "1g.10gb", Utilization: 0.9, MemoryUsed: 1 << 30, MemoryTotal: 10 << 30},
					{ID: 9, Profile: "2g.20gb", Utilization: 0.4, MemoryUsed: 2 << 30, MemoryTotal: 20 << 30},
				},
			},
		}
	}}
}

func TestDriverSuite(t *testing.T) {
	var c *clock
	endpoint := func(tb testing.TB, h http.Handler) driver.Source {
		return source(tb, serve(tb, h), "\n  preset: dcgm-exporter\n  interval: 1s\n", c.now)
	}
	fresh := func(tb testing.TB) driver.Source {
		c = newClock()
		return endpoint(tb, dcgm(c))
	}
	// broken returns a fault that changes the text of an exporter that works.
	broken := func(name string, change func(string) string,
		hits func(driver.Sample, driver.Reading) bool,
	) drivertest.Fault {
		return drivertest.Fault{Name: name, Silent: true, Hits: hits, New: func(tb testing.TB) (driver.Source, func()) {
			c = newClock()
			p, good := &page{}, dcgm(c)
			p.handle(good.ServeHTTP)
			return endpoint(tb, p), func() {
				p.handle(func(w http.ResponseWriter, _ *http.Request) {
					io.WriteString(w, change(string(scrapetest.Exposition(good.Read(c.now())))))
				})
			}
		}}
	}
	drivertest.Run(t, drivertest.Config{
		New:     fresh,
		Advance: func() { c.advance(time.Second) },
		Now:     func() time.Time { return c.now() },
		Absent: func(tb testing.TB) driver.Source {
			c = newClock()
			return endpoint(tb, &scrapetest.DCGM{Now: c.now, Read: func(time.Time) []scrapetest.GPU { return nil }})
		},
		Hang: func(tb testing.TB) driver.Source {
			c = newClock()
			return endpoint(tb, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		},
		Faults: []drivertest.Fault{
			broken("a metric is gone", func(s string) string { return strings.ReplaceAll(s, "TOTAL_ENERGY_CONSUMPTION", "X") },
				func(_ driver.Sample, r driver.Reading) bool { return r.Quantity == driver.Energy }),
			broken("a GPU is gone", func(s string) string { return strings.ReplaceAll(s, `UUID="GPU-2"`, `UUID=""`) },
				func(s driver.Sample, _ driver.Reading) bool {
					return s.Hardware.UUID == "GPU-2" || s.Hardware.Parent == "GPU-2"
				}),
			broken("a metric is cut", func(s string) string { return strings.ReplaceAll(s, "POWER_USAGE{", "POWER_USAGE{{") },
				func(_ driver.Sample, r driver.Reading) bool { return r.Quantity == driver.Power }),
		},
	})
}

func BenchmarkSample(b *testing.B) {
	e := presetEndpoint(b, "dcgm-exporter", "")
	var gpus []scrapetest.GPU
	for i := range 64 {
		gpus = append(gpus, scrapetest.GPU{
			UUID: fmt.Sprintf("GPU-6f0c3bd8-1f1e-4d8a-9b3e-2f2f7a1c%04d", i), PCI: fmt.Sprintf("00000000:%02X:00.0", i),
			Model:       "NVIDIA H100 80GB HBM3",
			Utilization: 0.5, Power: 400, Energy: 12345.678, MemoryUsed: 1 << 34, MemoryTotal: 80 << 30, Temperature: 60,
		})
	}
	text := string(scrapetest.Exposition(gpus))
	var body strings.Builder
	body.WriteString(text)
	for _, m := range e.Metrics { // the preset's other metrics, and as many unwanted ones
		if !strings.Contains(text, m.Name+"{") {
			body.WriteString(strings.ReplaceAll(power(text), "DCGM_FI_DEV_POWER_USAGE", m.Name))
		}
	}
	for i := range 13 {
		body.WriteString(strings.ReplaceAll(power(text), "DCGM_FI_DEV_POWER_USAGE", fmt.Sprintf("DCGM_FI_OTHER_%d", i)))
	}
	rules := must.Get(compile(&e))(b)
	b.SetBytes(int64(body.Len()))
	b.ReportAllocs()
	before := answer{}
	for b.Loop() {
		c := newCollector(e, rules, newAMDGPUs(""), testNow())
		must.Get(parse(strings.NewReader(body.String()), "text/plain", c))(b)
		a := c.finish()
		a.date(before, testNow(), testNow())
		before = a
		if n := len(a.samples(a.sorted(), e.Driver, true)); n != 64 {
			b.Fatalf("%d samples", n)
		}
	}
	b.ReportMetric(float64(len(before.values)), "series")
}

// power returns the lines of one family.
func power(text string) string {
	start := strings.Index(text, "# HELP DCGM_FI_DEV_POWER_USAGE")
	end := strings.Index(text, "# HELP DCGM_FI_DEV_TOTAL_ENERGY")
	return text[start:end]
}
