package join_test

import (
	"fmt"
	"math"
	"reflect"
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

// A device with more readings than anything real shows as many as there may be.
func TestTooManyReadings(t *testing.T) {
	h := exportertest.NewHistory(t)
	for tick := range 3 {
		var readings []driver.Reading
		for i := range 2 * join.MaxReadings {
			readings = append(readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: float64(tick),
			})
		}
		h.Read(readings...)
		x := h.Tick(time.Second)
		expect.Is(t, len(x["dra_device_errors_total"]), join.MaxReadings, "series")
		if want := (driver.Rejection{
			Input: "a/errors", Reason: "too_many", Count: join.MaxReadings, Example: h.Joined.Rejected[0].Example,
		}); len(h.Joined.Rejected) != 1 || h.Joined.Rejected[0] != want {
			t.Errorf("rejected: %v", h.Joined.Rejected)
		}
	}
}

// A joiner gives what Join gives, whatever it joined before, and leaves earlier results as they
// are, but for the readings that were recycled.
func TestJoiner(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewWorld(t)
		var joiner join.Joiner
		var before join.Input
		var last join.Result
		var text string
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step(exportertest.Pauses())
			in := w.Input()
			for range rapid.IntRange(0, 1).Draw(t, "garbage") {
				soilInput(t, w, &in)
			}
			if reflect.DeepEqual(in.View.Allocations, before.View.Allocations) {
				in.View.Allocations = before.View.Allocations
			}
			if reflect.DeepEqual(in.Inventory, before.Inventory) {
				in.Inventory = before.Inventory
			}
			want, got := join.Join(in), joiner.Join(in)
			must.That(t, sameResult(want, got), "got %+v, want %+v", got, want)
			again := fmt.Sprintf("%+v", last.Devices)
			must.That(t, last.Devices == nil || again == text, "an earlier result changed to %s from %s", again, text)
			if rapid.Bool().Draw(t, "recycled") {
				joiner.Recycle(&got)
			}
			before, last, text = in, got, fmt.Sprintf("%+v", got.Devices)
		}
	})
}

func sameResult(a, b join.Result) bool {
	for i := range a.Devices {
		if len(a.Devices[i].Readings) == 0 && len(b.Devices[i].Readings) == 0 {
			a.Devices[i].Readings, b.Devices[i].Readings = nil, nil
		}
	}
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// Numbers learned from a sample are forgotten with it.
func TestJoinerForgetsWhatSamplesTaught(t *testing.T) {
	inventory := driver.Inventory{jointest.ID("part"): {Hardware: driver.Hardware{UUID: "MIG-1"}}}
	taught := driver.Hardware{UUID: "MIG-1", Parent: "GPU-1", Instance: "9/0", RDMADev: "mlx5_9"}
	var joiner join.Joiner
	for _, known := range []bool{true, false, true, false} {
		in := join.Input{Inventory: inventory, Sources: []join.SourceSamples{{Name: "a"}, {Name: "b"}}}
		in.Sources[1].Samples = []driver.Sample{
			jointest.Sample(driver.Hardware{Parent: "GPU-1", Instance: "9/0"}, jointest.Watts(1)),
			jointest.Sample(driver.Hardware{RDMADev: "mlx5_9"}, driver.Reading{Quantity: driver.Energy, Value: 1}),
		}
		if known {
			in.Sources[0].Samples = []driver.Sample{jointest.Sample(taught, driver.Reading{Quantity: driver.Clock})}
		}
		want, got := join.Join(in), joiner.Join(in)
		n := len(want.Devices[0].Readings)
		must.That(t, known == (n > 1), "%d readings", n)
		expect.Equal(t, fmt.Sprintf("known %v", known), fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got))
	}
}

// The use of claims' CPUs belongs to one tick: earlier results keep theirs.
func TestJoinerKeepsUseOfCPUs(t *testing.T) {
	group := jointest.ID("cpus")
	a := jointest.Allocation("cpus", "c", "p")
	a.CPUs, a.OwnCPUs = []int{0}, true
	in := join.Input{Inventory: driver.Inventory{group: {Hardware: driver.Hardware{CPUs: []int{0, 1}}}}}
	in.View.Allocations = []podresources.Allocation{a}
	var joiner join.Joiner
	tick := func(utilization float64) join.Result {
		in.Sources = []join.SourceSamples{{Name: "cpu"}}
		for cpu, value := range []float64{utilization, 1} {
			in.Sources[0].Samples = append(in.Sources[0].Samples, jointest.Sample(
				driver.Hardware{CPUs: []int{cpu}}, driver.Reading{Quantity: driver.Utilization, Value: value}))
		}
		return joiner.Join(in)
	}
	first := tick(0.25)
	tick(1)
	if got := first.Devices[0].Shares[0].Own.Use[driver.ByTime]; got != 0.2 {
		t.Errorf("%v of the CPUs' use, want 0.25 of 1.25", got)
	}
}

// A joiner makes the list of devices and holders when it changes, not at each tick.
func TestJoinerKeepsLayout(t *testing.T) {
	var joiner join.Joiner
	in := join.Input{Inventory: driver.Inventory{}}
	for i := range 64 {
		id := jointest.ID(fmt.Sprint("gpu-", i))
		in.Inventory[id] = driver.Entry{Hardware: driver.Hardware{UUID: fmt.Sprint("GPU-", i)}}
		in.View.Allocations = append(in.View.Allocations, jointest.Allocation(id.Device, fmt.Sprint("c", i), "p"))
	}
	whole := testing.AllocsPerRun(10, func() { join.Join(in) })
	again := testing.AllocsPerRun(10, func() { joiner.Join(in) })
	expect.That(t, again <= whole/10, "%v allocations of the same again, %v of a new one", again, whole)
}

// Claims that had a name one after the other, and that both have ended, stay apart by their UIDs.
func TestEndedSharesOfClaimsOfOneName(t *testing.T) {
	first, second := jointest.Allocation("gpu-0", "a", "p0"), jointest.Allocation("gpu-0", "a", "p1")
	first.ClaimUID, second.ClaimUID = "x", "y"
	again := jointest.Allocation("gpu-0", "a", "p2")
	again.ClaimUID = "x"
	var got []string
	view := podresources.View{Ended: []podresources.Allocation{first, second, again}}
	for _, s := range join.Join(join.Input{View: view}).Ended {
		got = append(got, fmt.Sprint(s.ClaimUID, s.Pods))
	}
	if want := []string{"x[{team p0} {team p2}]", "y[{team p1}]"}; !slices.Equal(got, want) {
		t.Errorf("ended shares %v, want %v", got, want)
	}
}

func TestMain(m *testing.M) { exportertest.Main(m) }
