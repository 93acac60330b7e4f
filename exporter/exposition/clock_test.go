package exposition_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// When the wall clock goes back, no counter was created in the future, and nothing was active then.
func TestWallClockGoesBack(t *testing.T) {
	l := ledger.New(exportertest.LedgerConfig())
	start := time.Now() // with a monotonic clock
	gpu := jointest.ID("gpu-0")
	tick := func(now time.Time, busy float64) *book.Snapshot {
		return l.Advance(join.Join(join.Input{
			Inventory: driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-0"}}},
			View: podresources.View{
				At: now, Allocations: []podresources.Allocation{jointest.Allocation(gpu.Device, "c", "p")},
			},
			Sources: []join.SourceSamples{{Name: "x", Samples: []driver.Sample{
				{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{
					{Quantity: driver.Utilization, Value: busy, At: now},
					{Quantity: driver.Energy, Value: float64(now.Sub(start)), At: now},
				}},
			}}},
		}), now)
	}
	created := func(s *book.Snapshot) (n int) {
		for _, f := range exportertest.Decode(t, exportertest.Render(exportertest.Whole(s), exposition.Config{})) {
			for _, m := range f.GetMetric() {
				at := m.GetCounter().GetCreatedTimestamp()
				if at == nil {
					continue
				}
				if n++; at.AsTime().After(s.Time) {
					t.Errorf("%s was created at %v, and it is %v", f.GetName(), at.AsTime(), s.Time)
				}
			}
		}
		return n
	}
	tick(start, 0.9)
	expect.That(t, created(tick(start.Add(10*time.Second), 0.9)) != 0, "no counter says when it was created")
	s := tick(testclock.Stepped(start.Add(70*time.Second), -time.Hour), 0)
	created(s)
	for name, series := range exportertest.Scrape(t, exportertest.Whole(s)) {
		if !strings.HasSuffix(name, "_last_active_timestamp_seconds") {
			continue
		}
		for labels, value := range series {
			idle := exportertest.Unix(s.Time) - value
			expect.That(t, idle >= 59.9 && idle <= 60.1, "%s{%s}: %v s ago, want 60", name, labels, idle)
		}
	}
	expect.That(t, !s.Claims[0].LastActive.IsZero(), "the claim was never active")
}
