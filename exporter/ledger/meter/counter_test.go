package meter_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const watts = 300 // the highest rate of these counters

func at(second int) time.Time { return time.Unix(1000, 0).Add(time.Duration(second) * time.Second) }

// counted returns the sum of what readings of a second each add, and the reasons of those that do
// not count.
func counted(t must.TB, values []float64, since map[int]time.Time) (sum float64, reasons []driver.Reason) {
	var c meter.Counter
	var last driver.Reading
	for i, v := range values {
		r := driver.Reading{Quantity: driver.Energy, Value: v, At: at(i), Since: since[i]}
		if i == 0 {
			c.Begin(r)
			last = r
			continue
		}
		step := c.Next(last, r, meter.Limits{Most: watts, Known: watts})
		if step.Reason != "" {
			reasons = append(reasons, step.Reason)
			continue
		}
		must.That(t, step.Amount >= 0 && !step.From.Before(last.At) && !step.From.After(r.At),
			"reading %d counts %v since %v", i, step.Amount, step.From)
		sum, last = sum+step.Amount, step.Last
	}
	return sum, reasons
}

// The sum of what a counter's readings count, at most 300 a second.
func TestCounter(t *testing.T) {
	const high = 22_543_283
	for name, test := range map[string]struct {
		values  []float64
		since   map[int]time.Time // by position
		want    float64
		reasons []driver.Reason
	}{
		"rises":                        {values: []float64{1000, 1010, 1030}, want: 30},
		"stands still":                 {values: []float64{1000, 1000}, want: 0},
		"restarts at zero":             {values: []float64{1000, 1010, 5, 8}, want: 10 + 5 + 3},
		"falls a little":               {values: []float64{1000, 1010, 1009, 1012}, want: 12},
		"falls by half":                {values: []float64{1000, 500, 1001}, want: 1},
		"falls by more":                {values: []float64{1000, 499, 500}, want: 499 + 1},
		"falls a little several times": {values: []float64{1000, 999, 998, 997, 1001}, want: 1},
		"restarts, as its source says": {
			values: []float64{1000, 1010, 900}, since: map[int]time.Time{2: at(1).Add(500 * time.Millisecond)}, want: 910,
		},
		"same origin as before": {values: []float64{1000, 1010}, since: map[int]time.Time{0: at(-5), 1: at(-5)}, want: 10},
		"restarts, as its source says, with too much": {
			values: []float64{1000, 1010, 9e5, 9e5}, since: map[int]time.Time{2: at(1).Add(500 * time.Millisecond)}, want: 10,
			reasons: []driver.Reason{driver.ReasonRate},
		},

		// A real fault of Level Zero on an idle card: the true sum is 52 a second.
		"drops out for two readings": {
			values: []float64{high, high + 52, 200, 200, high + 4*52, high + 5*52, high + 6*52}, want: 6 * 52,
		},
		"drops out to zero":        {values: []float64{high, 0, high + 104, high + 156}, want: 156},
		"drops out and rises":      {values: []float64{high, 200, 250, 300, high + 4*52, high + 20*52}, want: 20 * 52},
		"drops out, not very deep": {values: []float64{high, high / 3, high + 104}, want: 104, reasons: fall(1)},
		"drops out, not very deep, for three readings": {
			values: []float64{high, high / 3, high / 3, high / 3, high + 4*52, high + 5*52}, want: 5 * 52, reasons: fall(1),
		},
		"restarts for good after a while": {
			values: []float64{high, 200, 250, 300, 350, 400}, want: 400,
		},
		"restarts, and its old value is soon reached again": {
			values: []float64{1000, 200, 400, 600, 800, 1000, 1200}, want: 1200,
		},
		"restarts somewhere else":       {values: []float64{high, 5e6, 5e6 + 52, 5e6 + 104}, want: 104, reasons: fall(1)},
		"restarts at nearly half":       {values: []float64{1e4, 4900, 5100, 5300}, want: 400, reasons: fall(1)},
		"drops out to nearly half":      {values: []float64{1e4, 4900, 9999, 10020}, want: 20, reasons: fall(1)},
		"jumps and returns":             {values: []float64{1000, 1e6, 1104, 1156}, want: 156, reasons: rate(1)},
		"jumps, stands and returns":     {values: []float64{1000, 1e6, 1e6, 1e6, 1208, 1260}, want: 260, reasons: rate(1)},
		"jumps for good":                {values: []float64{1000, 1e6, 1e6 + 52, 1e6 + 104}, want: 104, reasons: rate(1)},
		"counts in another unit":        {values: []float64{1000, 1.052e6, 1.104e6, 1.156e6}, want: 0, reasons: rate(3)},
		"counts in a larger unit":       {values: []float64{1e6, 1e3, 1000.05, 1000.1}, want: 1000.1},
		"wraps at 32 bits":              {values: []float64{1<<32 - 50, 2, 54}, want: 54},
		"does not fit a double":         {values: []float64{1 << 53, 1<<53 + 52, 1<<53 + 104}, want: 104},
		"counts at three times its max": {values: []float64{0, 900, 1800, 2700, 3600, 4500}, want: 1800, reasons: rate(3)},
	} {
		t.Run(name, func(t *testing.T) {
			got, reasons := counted(t, test.values, test.since)
			if diff := got - test.want; diff > 1e-6 || diff < -1e-6 || len(reasons) != len(test.reasons) {
				t.Errorf("counted %v, want %v; rejected %q, want %q", got, test.want, reasons, test.reasons)
			}
			for i := range test.reasons {
				expect.That(t, i >= len(reasons) || reasons[i] == test.reasons[i], "rejected %q, want %q", reasons, test.reasons)
			}
		})
	}
}

func fall(n int) []driver.Reason { return many(n, driver.ReasonFall) }
func rate(n int) []driver.Reason { return many(n, driver.ReasonRate) }

func many(n int, of driver.Reason) (out []driver.Reason) {
	for range n {
		out = append(out, of)
	}
	return out
}

// A patient counter is not sure of a restart before four readings have gone on. Until then it may
// return.
func TestPatience(t *testing.T) {
	for name, test := range map[string]struct {
		values []float64
		want   float64
	}{
		"returns":                         {[]float64{1000, 100, 100, 100, 1001}, 1},
		"restarts":                        {[]float64{1000, 100, 100, 101, 102, 103}, 103},
		"restarts at zero":                {[]float64{1000, 0, 1, 2}, 2},
		"restarts, soon above half of it": {[]float64{1000, 450, 510, 520, 530, 540}, 540},
		"drops to zero":                   {[]float64{1000, 0, 0, 1000, 1001}, 1},
	} {
		var c meter.Counter
		last, sum := driver.Reading{Value: test.values[0], At: at(0)}, 0.0
		c.Begin(last)
		for i, v := range test.values[1:] {
			step := c.Next(last, driver.Reading{Value: v, At: at(i + 1)}, meter.Limits{Most: watts, Patient: true})
			if step.Reason == "" {
				sum, last = sum+step.Amount, step.Last
			}
		}
		expect.Is(t, sum, test.want, "%s: counted", name)
	}
}

// What a counter counts after a fall that nothing explains is known from the reading to which it
// fell, whatever part of the old value it reaches.
func TestGoesOnAfterFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := rapid.Float64Range(1e4, 1e9).Draw(t, "old")
		values := []float64{old, old * rapid.Float64Range(0.35, 0.4999).Draw(t, "part")}
		fell := values[1]
		for range rapid.IntRange(1, 10).Draw(t, "readings") {
			values = append(values, values[len(values)-1]+rapid.Float64Range(0, watts).Draw(t, "more"))
		}
		got, _ := counted(t, values, nil)
		want := values[len(values)-1] - fell
		must.That(t, math.Abs(got-want) <= 1e-9*old, "%v count %v, want %v", values, got, want)
	})
}

// Another exporter that refreshes a value every 30 s, with times that are later than the refresh,
// counts everything.
func TestRepeatedValues(t *testing.T) {
	var c meter.Counter
	last := driver.Reading{Value: 0, At: at(0)}
	c.Begin(last)
	sum := 0.0
	for second := 1; second <= 300; second++ {
		r := driver.Reading{Value: 290 * 30 * float64(second/30), At: at(second)}
		step := c.Next(last, r, meter.Limits{Most: watts, Known: watts})
		must.That(t, step.Reason == "", "second %d: %s", second, step.Reason)
		sum, last = sum+step.Amount, step.Last
	}
	expect.Is(t, sum, 290*300, "counted")
}

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

func TestMain(m *testing.M) { exportertest.Main(m) }
