package meter_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// However readings are wrong, at most what the device can count in that time, and the slack, is
// counted. If all are right, everything is counted.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c meter.Counter
		value := rapid.SampledFrom([]float64{0, 40, 1e4, 2e7, 1 << 32}).Draw(t, "first")
		last := driver.Reading{Value: value, At: at(0)}
		c.Begin(last)
		now, truth, counted, wrong := at(0), 0.0, 0.0, 0.0 // wrong: seconds
		offset := 0.0                                      // of the hardware's counter, which restarts
		restarts := 0
		for range rapid.IntRange(3, 60).Draw(t, "readings") {
			pause := rapid.SampledFrom([]time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Second}).Draw(t, "pause")
			now = now.Add(pause)
			more := watts * pause.Seconds() * rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(t, "load")
			truth, value = truth+more, value+more
			r := driver.Reading{Value: value - offset, At: now}
			switch rapid.IntRange(0, 12).Draw(t, "fault") {
			case 0:
				of := []float64{0, 200, 1e3, r.Value / 3, r.Value * 1e3, r.Value / 1e3, r.Value + 1e6, math.MaxInt64}
				r.Value = rapid.SampledFrom(of).Draw(t, "wrong")
				wrong += pause.Seconds()
			case 1:
				offset, restarts = value, restarts+1
				r.Value = 0
			}
			step := c.Next(last, r, meter.Limits{Most: watts, Known: watts})
			if step.Reason != "" {
				continue
			}
			must.That(t, step.Amount >= 0 && !step.From.After(r.At) && !math.IsNaN(step.Amount),
				"%v counts %v since %v", r, step.Amount, step.From)
			counted, last = counted+step.Amount, step.Last
		}
		span := now.Sub(at(0)).Seconds()
		slack := meter.Slack.Seconds()
		most := watts * (span + slack)
		must.That(t, counted <= most*(1+1e-9), "counted %v in %v s, at most %v are possible", counted, span, most)
		if wrong == 0 && restarts == 0 && math.Abs(counted-truth) > 1e-6*(1+truth) {
			t.Fatalf("counted %v, want %v", counted, truth)
		}
	})
}
