package ledger_test

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The rate of the tensor cores' seconds is the mean of their busy share times the clock, also where
// these vary together, so that the product of their means is wrong by up to a half.
func TestTensorSeconds(t *testing.T) {
	for _, e := range stalltest.Efficiencies() {
		t.Run(e.Name, func(t *testing.T) {
			length, step := 20*time.Minute, time.Second
			if e.Name == "flops-throttled-later" { // after two hours
				length, step = 4*time.Hour, 10*time.Second
			}
			h := exportertest.NewHistory(t)
			h.Hold("c0", "p0")
			for s := range e.Trace(1, length).Samples {
				if s.At.Sub(stalltest.Start())%step != 0 {
					continue
				}
				h.Read(
					driver.Reading{
						Quantity: driver.EngineUtilization, Labels: driver.Labels{"tensor"}, Value: s.Values[stalltest.Tensor],
					},
					driver.Reading{Quantity: driver.Clock, Labels: driver.Labels{"sm"}, Value: s.Values[stalltest.Clock]},
					driver.Reading{Quantity: driver.ClockMax, Labels: driver.Labels{"sm"}, Value: s.Values[stalltest.ClockMax]},
				)
				h.Pass(step)
			}
			x := h.Tick(time.Second)
			for _, family := range []string{"dra_device_tensor_seconds_total", "dra_claim_tensor_seconds_total"} {
				seconds := math.NaN()
				for _, v := range x[family] {
					seconds = v
				}
				if got := seconds / length.Seconds(); !(math.Abs(got-e.FLOPs) <= 0.02*e.FLOPs) {
					t.Errorf("the rate of %s is %v, want %v", family, got, e.FLOPs)
				}
			}
		})
	}
}

// Without the clock, its maximum or the tensor cores, there is no throughput: it is not 0.
func TestNoTensorSeconds(t *testing.T) {
	readings := []driver.Reading{
		{Quantity: driver.EngineUtilization, Labels: driver.Labels{"tensor"}, Value: 0.5},
		{Quantity: driver.Clock, Labels: driver.Labels{"sm"}, Value: 1e9},
		{Quantity: driver.ClockMax, Labels: driver.Labels{"sm"}, Value: 2e9},
	}
	for without := range len(readings) + 1 {
		h := exportertest.NewHistory(t)
		h.Hold("c0", "p0")
		var x exportertest.Scraped
		for range 3 {
			var present []driver.Reading
			for i, r := range readings {
				if i != without {
					present = append(present, r)
				}
			}
			h.Read(present...)
			x = h.Tick(time.Second)
		}
		got, want := len(x["dra_claim_tensor_seconds_total"]) > 0, without == len(readings)
		expect.That(t, got == want, "without reading %d there are tensor seconds: %v", without, got)
	}
}
