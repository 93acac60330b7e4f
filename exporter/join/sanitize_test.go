package join_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Invariant 7: what can't be used costs itself alone, and is counted.
func TestGarbageCostsItself(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var want map[driver.Rejection]int
		soil := func(w *exportertest.World, in *join.Input) {
			want = map[driver.Rejection]int{}
			for range rapid.IntRange(0, 4).Draw(t, "garbage") {
				for _, r := range soilInput(t, w, in) {
					n := r.Count
					r.Count = 0
					want[r] += n
				}
			}
		}
		exportertest.Twins(t, soil, func(_, soiled join.Result, texts [2]string) {
			exportertest.SameText(t, texts[0], texts[1])
			got := map[driver.Rejection]int{}
			for _, r := range soiled.Rejected {
				n := r.Count
				r.Count, r.Example = 0, ""
				got[r] += n
			}
			diff := cmp.Diff(want, got)
			must.That(t, diff == "", "rejected: %s", diff)
		})
	})
}

// soilInput adds one piece of garbage to the input, and returns how it must be counted.
func soilInput(t *rapid.T, w *exportertest.World, in *join.Input) []driver.Rejection {
	if rapid.IntRange(0, 19).Draw(t, "repeated") == 0 {
		return soilDuplicate(in)
	}
	if r := soilOnce(t, w, in); r.Count > 0 {
		return []driver.Rejection{r}
	}
	return nil
}

// soilOnce is soilInput for what is counted once.
func soilOnce(t *rapid.T, w *exportertest.World, in *join.Input) driver.Rejection {
	invalid := rapid.SampledFrom([]string{"\xff\xfe", "\x1b[2J", "\u009b1m"}).Draw(t, "invalid")
	reading := func(r driver.Reading, reason driver.Reason) driver.Rejection {
		if r.At.IsZero() && reason != "no_time" {
			r.At = w.Now
		}
		s := &in.Sources[0]
		for i := range s.Samples {
			if _, listed := in.Inventory[jointest.ID(strings.ToLower(s.Samples[i].Hardware.UUID))]; listed {
				s.Samples[i].Readings = append(slices.Clone(s.Samples[i].Readings), r)
				if reason == driver.ReasonUnknownQuantity {
					return driver.Rejection{Input: s.Name, Reason: reason, Count: 1}
				}
				spec := r.Quantity.Spec()
				return driver.Rejection{Input: driver.InputOf(s.Name, &spec), Reason: reason, Count: 1}
			}
		}
		return driver.Rejection{}
	}
	switch rapid.SampledFrom([]string{
		"nan", "inf", "negative", "percent", "huge", "quantity", "label", "extra label", "closed label",
		"long label", "no time",
		"other", "hardware", "foreign", "empty",
	}).Draw(t, "kind") {
	case "nan":
		return reading(driver.Reading{Quantity: driver.Power, Value: math.NaN()}, "not_finite")
	case "inf":
		return reading(driver.Reading{Quantity: driver.Energy, Value: math.Inf(1)}, "not_finite")
	case "negative":
		return reading(driver.Reading{Quantity: driver.Energy, Value: -1}, "negative")
	case "percent":
		return reading(driver.Reading{Quantity: driver.Utilization, Value: 50}, "out_of_range")
	case "huge":
		return reading(driver.Reading{Quantity: driver.Energy, Value: 1e300}, "out_of_range")
	case "quantity":
		return reading(driver.Reading{Quantity: driver.NumQuantities + 7, Value: 1}, "unknown_quantity")
	case "label":
		return reading(driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{invalid}, Value: 1}, "label")
	case "extra label":
		return reading(driver.Reading{Quantity: driver.Power, Labels: driver.Labels{"x"}, Value: 1}, "label")
	case "closed label":
		return reading(
			driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"string", "receive"}, Value: 1}, "label",
		)
	case "long label":
		return reading(
			driver.Reading{Quantity: driver.Clock, Labels: driver.Labels{strings.Repeat("x", 1e5)}, Value: 1}, "label",
		)
	case "no time":
		return reading(driver.Reading{Quantity: driver.Clock, Value: 1}, "no_time")
	case "other":
		in.Sources[1].Samples = append(in.Sources[1].Samples, driver.Sample{
			Hardware: driver.Hardware{
				UUID: "unknown",
			}, Readings: []driver.Reading{{Quantity: driver.Power, Value: 1e9, At: w.Now}},
		})
		return driver.Rejection{} // not ours: no error
	case "hardware":
		in.Sources[1].Samples = append(
			in.Sources[1].Samples, driver.Sample{Hardware: driver.Hardware{UUID: invalid, PCI: invalid}},
		)
		return driver.Rejection{}
	case "foreign":
		in.View.Allocations = append(in.View.Allocations, podresources.Allocation{
			Claim: podresources.Claim{Namespace: "team", Name: "foreign"}, Device: jointest.ID("gpu-0"),
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "elsewhere", Name: "p0"}}},
		})
		return driver.Rejection{}
	default: // an allocation without pods
		in.View.Allocations = append(in.View.Allocations, podresources.Allocation{
			Claim: podresources.Claim{Namespace: "team", Name: "of-no-pod"}, Device: jointest.ID("gpu-0"),
		})
		return driver.Rejection{}
	}
}

// soilDuplicate repeats the last sample of a source, once.
func soilDuplicate(in *join.Input) (counted []driver.Rejection) {
	s := &in.Sources[0]
	n := len(s.Samples)
	if n == 0 || n > 1 && s.Samples[n-1].Hardware.UUID == s.Samples[n-2].Hardware.UUID {
		return nil
	}
	last := s.Samples[n-1]
	if _, listed := in.Inventory[jointest.ID(strings.ToLower(last.Hardware.UUID))]; !listed {
		return nil
	}
	alone := join.Join(join.Input{
		Inventory: in.Inventory, Sources: []join.SourceSamples{{Name: s.Name, Samples: []driver.Sample{last}}},
	})
	bad := func(r driver.Rejection) bool { return r.Input == s.Name || strings.HasPrefix(r.Input, s.Name+"/") }
	if slices.ContainsFunc(alone.Rejected, bad) {
		return nil
	}
	s.Samples = append(s.Samples, last)
	for _, r := range last.Readings {
		spec := r.Quantity.Spec()
		counted = append(counted, driver.Rejection{Input: driver.InputOf(s.Name, &spec), Reason: "duplicate", Count: 1})
	}
	return counted
}

// Repeated data that the contract allows only once does not break a scrape.
func TestHostileFacts(t *testing.T) {
	gpu := jointest.ID("gpu-0")
	holder := func(claimName, uid string) podresources.Holder {
		return podresources.Holder{
			Pod: podresources.Pod{Namespace: "team", Name: "p0"}, Container: "main", ClaimName: claimName, UID: uid,
		}
	}
	allocation := podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: "c0"}, Device: gpu,
		Holders: []podresources.Holder{holder("x", ""), holder("y", "1"), holder("x", "2"), holder("y", "1")},
	}
	sharer := allocation
	sharer.Claim.Name = "c1"
	taint := driver.Taint{Key: "k", Value: "v\n\"", Effect: "NoExecute"}
	byRule, byOther := taint, taint // the same taint by two rules is one series beside that of the slice
	byRule.Rule, byOther.Rule = "a", "b"
	in := join.Input{
		View: podresources.View{At: jointest.Start(), Allocations: jointest.Held(allocation, sharer, allocation)},
		Inventory: driver.Inventory{gpu: {
			Hardware: driver.Hardware{UUID: "GPU-0"}, Capacity: []driver.Amount{{Resource: "memory", Value: 1}},
			Taints: []driver.Taint{taint, taint, byRule, byOther},
		}},
		Sources: []join.SourceSamples{{Name: "a", Samples: []driver.Sample{{
			Hardware: driver.Hardware{UUID: "GPU-0", Vendor: "\xff"},
			Readings: []driver.Reading{
				{Quantity: driver.Capacity, Labels: driver.Labels{"memory"}, Value: 3, At: jointest.Start()},
				{Quantity: driver.Power, Value: 100, At: jointest.Start()},
			},
		}}}},
	}
	r := join.Join(in)
	s := exportertest.Whole(ledger.New(exportertest.LedgerConfig()).Advance(r, jointest.Start()))
	x := exportertest.Scrape(t, s)
	for family, want := range map[string]int{
		"dra_device_info": 1, "dra_device_tainted": 2, "dra_device_capacity": 1, "dra_claim_device_info": 2,
		"dra_pod_claim_info": 4,
	} {
		expect.Is(t, len(x[family]), want, "series of %s: %v", family, x[family])
	}
	if got := x.One(
		t, "dra_claim_power_watts", "resourceclaim_name=c0",
	) + x.One(t, "dra_claim_power_watts", "resourceclaim_name=c1"); got != 100 {
		t.Errorf("the claims have %v of 100 W", got)
	}
}

// A reading can't be of the future, nor counted since then.
func TestReadingOfTheFuture(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	h.Read(driver.Reading{Quantity: driver.Energy, Value: 100, At: h.Now.Add(time.Hour)})
	h.Pass(time.Second)
	h.Read(driver.Reading{Quantity: driver.Energy, Value: 150, At: h.Now.Add(time.Hour)})
	x := h.Tick(time.Second)
	if got := x.One(t, "dra_claim_energy_joules_total"); got != 50 {
		t.Errorf("the claim was charged %v J, want 50", got)
	}
	h.Read(
		driver.Reading{Quantity: driver.Energy, Value: 7, At: h.Now.Add(2 * time.Hour), Since: h.Now.Add(3 * time.Hour)},
	)
	x = h.Tick(time.Second)
	if got := x.One(t, "dra_claim_energy_joules_total"); got != 57 {
		t.Errorf("the claim was charged %v J, want 57", got)
	}
}
