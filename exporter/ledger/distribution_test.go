package ledger_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// distributionOf formats a claim's distribution: the seconds, the sum, and the seconds of each
// bucket with its upper bound. Without a distribution it returns "".
func distributionOf(t *testing.T, s *book.Snapshot, claim string, q driver.Quantity) string {
	t.Helper()
	var found []string
	for i := range s.Claims {
		h := &s.Claims[i]
		for j := range h.Distributions {
			d := &h.Distributions[j]
			if h.Name != claim || d.Quantity != q {
				continue
			}
			seen := d.Histogram()
			text := fmt.Sprintf("%.4g s, sum %.4g:", seen.Seconds(), seen.Sum())
			if n := seen.Zero(); n > 0 {
				text += fmt.Sprintf(" 0: %d", n)
			}
			for index, seconds := range seen.Buckets() {
				text += fmt.Sprintf(" %.4g: %d", boundOf(seen, index), seconds)
			}
			found = append(found, text)
		}
	}
	switch len(found) {
	case 0:
		return ""
	case 1:
		return found[0]
	default:
		t.Fatalf("%s has %d distributions of %v: %q", claim, len(found), q, found)
		return ""
	}
}

func boundOf(h *distribution.Histogram, index int) float64 {
	return distribution.Bound(h.Schema(), index)
}

func expectDistribution(t *testing.T, h *exportertest.History, claim string, q driver.Quantity, want string) {
	t.Helper()
	expect.Is(t, distributionOf(t, h.Last.Snapshot, claim, q), want, "%v of %s", q, claim)
}

// If the holder changes between two readings, the earlier reading counts for the time before the
// change.
func TestDistributionOfAChange(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "a0")
	h.Read(jointest.Watts(64))
	h.Pass(2 * time.Second)
	h.Free("a")
	h.Hold("b", "b0") // began in the middle
	h.Read(jointest.Watts(4))
	h.Pass(2 * time.Second)
	h.Free("b")
	h.Read(jointest.Watts(16))
	h.Pass(2 * time.Second)
	expectDistribution(t, h, "a", driver.Power, "1 s, sum 64: 64: 1")
	expectDistribution(t, h, "b", driver.Power, "2 s, sum 8: 4: 2")
	h.Read(jointest.Watts(16))
	h.Pass(2 * time.Second) // both claims ended, and are kept
	expectDistribution(t, h, "a", driver.Power, "1 s, sum 64: 64: 1")
	for range 200 {
		h.Pass(2 * time.Second)
	}
	expectDistribution(t, h, "a", driver.Power, "")
	if n := h.Ledger.Distributions(); n != 0 {
		t.Errorf("the ledger keeps the distributions of %d claims", n)
	}
}

// Parts by process count in the distributions as they do in the gauges.
func TestDistributionByProcess(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	h.Hold("c1", "p1")
	for range 3 {
		h.Read(exportertest.Gauges(1, 100, 100)...)
		h.Run(exportertest.Process(1, 0.5, 64), exportertest.Process(2, 0.25, 16))
		h.Pass(time.Second)
	}
	expectDistribution(t, h, "c0", driver.MemoryUsed, "2 s, sum 128: 64: 2")
	expectDistribution(t, h, "c1", driver.MemoryUsed, "2 s, sum 32: 16: 2")
	expectDistribution(t, h, "c0", driver.Utilization, "2 s, sum 1: 0.5: 2")
}

// twoDevices returns the history of a claim that holds gpu-0 and gpu-1.
func twoDevices(t *testing.T) *exportertest.History {
	t.Helper()
	h := exportertest.NewHistory(t)
	h.In.Inventory[jointest.ID("gpu-1")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-1"}}
	h.Hold("a", "a0")
	h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation("gpu-1", "a", "a0"))
	return h
}

// If a device of a claim is no longer read, the claim's distribution waits for it for 90 s, and
// then continues without it.
func TestDistributionWithoutADevice(t *testing.T) {
	h := twoDevices(t)
	for i := range 100 {
		h.Read(jointest.Watts(64))
		if i < 3 {
			h.ReadOf("gpu-1", jointest.Watts(64))
		}
		h.Pass(time.Second)
		if i == 60 {
			expectDistribution(t, h, "a", driver.Power, "2 s, sum 256: 128: 2")
		}
	}
	expectDistribution(t, h, "a", driver.Power, "99 s, sum 6464: 64: 97 128: 2")
}

// If only the parent measures power, the claims of its partitions have their part of it, as in the
// gauge.
func TestDistributionOfPartitions(t *testing.T) {
	p := newPartitioned(t)
	p.hold("gpu-0", "whole", "p2") // has what belongs to no partition
	for range 3 {
		p.read(256, 0, 1, 0) // all power is active: part-0 draws it
		p.Pass(time.Second)
	}
	expectDistribution(t, p.History, "c0", driver.Power, "2 s, sum 512: 256: 2")
	expectDistribution(t, p.History, "c1", driver.Power, "2 s, sum 0: 0: 2")
	expectDistribution(t, p.History, "whole", driver.Power, "2 s, sum 0: 0: 2")
}

// Partitions that are active in turns have the values of the readings, never a value in between.
func TestDistributionOfPartitionsInTurns(t *testing.T) {
	p := newPartitioned(t)
	for i := range 5 {
		p.read(256, 0, float64(1-i%2), float64(i%2)) // part-0 draws all at 0, 2 and 4 s, part-1 at 1 and 3 s
		p.Pass(time.Second)
	}
	expectDistribution(t, p.History, "c0", driver.Power, "4 s, sum 512: 0: 2 256: 2")
	expectDistribution(t, p.History, "c1", driver.Power, "4 s, sum 512: 0: 2 256: 2")
}

// A device plugin's device has no claim, and so no distribution. If distributions are off, none are
// kept.
func TestNoDistributions(t *testing.T) {
	for name, config := range map[string]ledger.Config{
		"plugin": {Retention: time.Minute}, "off": {Retention: time.Minute, WithoutDistributions: true},
	} {
		h := exportertest.NewHistory(t)
		h.Ledger = ledger.New(config)
		a := h.Hold("a", "a0")
		if name == "plugin" {
			a.Claim.Name = ""
		}
		for range 3 {
			h.Read(jointest.Watts(64))
			h.Pass(time.Second)
		}
		if n := h.Ledger.Distributions(); n != 0 {
			t.Errorf("%s: the ledger keeps the distributions of %d claims", name, n)
		}
	}
}

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
