package ledger_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The parts of claims beyond what [TestReference] has: its shares consume resources of their own.
func TestAttribution(t *testing.T) {
	share := func(claim, id string, consumed ...float64) podresources.Allocation { // of cores, and of memory
		a := jointest.Allocation("gpu-0", claim, "p-"+claim)
		a.ShareID = id
		for i, v := range consumed {
			a.Consumed = append(a.Consumed, driver.Amount{Resource: []string{"cores", "memory"}[i], Value: v})
		}
		return a
	}
	admin := share("root", "")
	admin.Admin = true
	for name, tc := range map[string]struct {
		shares []podresources.Allocation
		want   join.Attribution
		parts  map[string]float64 // of each claim
	}{
		"admin alone": {[]podresources.Allocation{admin}, join.AttributionNone, map[string]float64{"root": 0}},
		"two shares of a claim by capacity": {
			[]podresources.Allocation{share("a", "1", 1), share("a", "2", 3)},
			join.AttributionExclusive,
			map[string]float64{"a": 1},
		},
		"two shares against one": {
			[]podresources.Allocation{share("a", "1"), share("a", "2"), share("b", "3")},
			join.AttributionEqual,
			map[string]float64{"a": 2. / 3, "b": 1. / 3},
		},
		"capacity of two resources, and admin": {
			[]podresources.Allocation{share("a", "1", 1, 10), share("b", "2", 1, 30), admin},
			join.AttributionCapacity,
			map[string]float64{"a": (0.5 + 0.25) / 2, "b": (0.5 + 0.75) / 2, "root": 0},
		},
		"one resource in common": {
			[]podresources.Allocation{share("a", "1", 9, 10), share("b", "2", 27)},
			join.AttributionCapacity,
			map[string]float64{"a": 0.25, "b": 0.75},
		},
		"capacity of one alone": {
			[]podresources.Allocation{share("a", "1", 10), share("b", "2")},
			join.AttributionEqual,
			map[string]float64{"a": 0.5, "b": 0.5},
		},
		"none of a resource is no capacity": {
			[]podresources.Allocation{share("a", "1", 10), share("b", "2", 0)},
			join.AttributionEqual,
			map[string]float64{"a": 0.5, "b": 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			view := podresources.View{Allocations: jointest.Held(tc.shares...)}
			r := join.Join(join.Input{Inventory: driver.Inventory{jointest.ID("gpu-0"): {}}, View: view})
			expect.Is(t, r.Devices[0].Attribution, tc.want, "divided")
			parts := map[string]float64{}
			for _, s := range r.Devices[0].Shares {
				parts[s.Claim.Name] += s.Weight
			}
			expect.Equal(t, "parts", tc.parts, parts)
		})
	}
}

// energyAt plays a tick of one second. The energy counter of the device has 10 J for each second
// since the start.
func energyAt(h *exportertest.History, seconds int) exportertest.Scraped {
	h.Energy(10 * float64(seconds))
	return h.Tick(time.Second)
}

// Readings that the last answer of the kubelet does not cover wait for the next answer, but only
// for a limited time.
func TestReadingsWaitForAnAnswer(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Energy(0)
	h.Pass(time.Second)
	h.Energy(10)
	x := h.TickWithoutAnswer(time.Second)
	h.Expect(x, map[[2]string]float64{{"dra_device_energy_joules_total", "device=gpu-0"}: 0})
	h.Hold("a", "p0")
	h.Energy(20)
	x = h.Tick(time.Second) // the answers are 2 s apart: a began in the middle
	h.Expect(x, map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:        20,
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}: 10,
	})
	for i := range 5 {
		h.Energy(30 + 10*float64(i))
		x = h.TickWithoutAnswer(time.Second)
	}
	h.Expect(x, map[[2]string]float64{ // the time is 7 s; the answer of 2 s is used up to 5 s
		{"dra_device_energy_joules_total", "device=gpu-0"}:                  50,
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:           40,
		{"dra_claim_allocated_seconds_total", "resourceclaim_name=a"}:       4,
		{"dra_claim_allocated_share_seconds_total", "resourceclaim_name=a"}: 4,
	})
}

// A partition that ends with its claim is not kept longer than the retention, although no further
// reading comes.
func TestRetentionOfPartition(t *testing.T) {
	h := exportertest.NewHistory(t)
	mig := jointest.ID("mig-0")
	h.In.Inventory[mig] = driver.Entry{Hardware: driver.Hardware{UUID: "MIG-0", Kind: driver.KindPartition}}
	h.In.View.Allocations = []podresources.Allocation{jointest.Allocation("mig-0", "c0", "p0")}
	for i := range 3 {
		h.ReadOf("MIG-0", driver.Reading{Quantity: driver.Energy, Value: float64(i)})
		h.Pass(time.Second)
	}
	delete(h.In.Inventory, mig)
	h.In.Sources[0].Samples, h.In.View.Allocations = nil, nil
	h.Pass(exportertest.Retention - time.Second)
	h.Expect(h.Tick(
		2*time.Second,
	), map[[2]string]float64{{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 2, {"dra_pod_info", "pod=p0"}: 1})
	x := h.Tick(time.Second)
	for _, family := range []string{
		"dra_claim_energy_joules_total", "dra_pod_energy_joules_total", "dra_claim_info", "dra_pod_info",
	} {
		expect.That(t, len(x[family]) == 0, "after the retention there is %v", x[family])
	}
}

// A holder whose end becomes known late is still shown for the whole retention.
func TestEndSeenLate(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	h.Pass(2 * exportertest.Retention)
	h.Free("c0")
	h.Changes = []podresources.Change{{At: jointest.Start().Add(time.Second), Gone: true, PodUID: "uid-p0"}}
	for range 2 {
		h.Expect(h.Tick(exportertest.Retention-time.Second), map[[2]string]float64{
			{"dra_claim_allocated_seconds_total", "device=gpu-0"}: 1, {"dra_pod_info", "pod=p0"}: 1,
		})
	}
	h.Pass(0)
	h.Now = h.Now.Add(2 * time.Second)
	expect.That(t, len(h.Tick(0)["dra_claim_allocated_seconds_total"]) == 0, "the end is shown for ever")
}

// The last activity of a claim and its pod is that of their device, but not earlier than their
// beginning. Without telemetry it is absent.
func TestLastActive(t *testing.T) {
	h := exportertest.NewHistory(t)
	active := func(x exportertest.Scraped, second float64) {
		t.Helper()
		h.Expect(x, map[[2]string]float64{
			{"dra_claim_last_active_timestamp_seconds", "resourceclaim_name=c0"}: exportertest.Unix(jointest.Start()) + second,
		})
		expect.Is(t, exportertest.Unix(h.Last.Pods[0].LastActive)-exportertest.Unix(jointest.Start()), second,
			"the pod was last active at second")
	}
	use := func(u float64) exportertest.Scraped {
		h.Read(driver.Reading{Quantity: driver.Utilization, Value: u})
		return h.Tick(time.Second)
	}
	use(1)
	use(1)
	h.Hold("c0", "p0")
	active(use(0), 2)
	active(use(0.01), 2) // a utilization equal to the threshold is idle
	active(use(0.02), 4)
	active(use(0), 4)
	h.Read(driver.Reading{Quantity: driver.Power, Value: 300})
	expect.That(t, len(h.Tick(time.Second)["dra_claim_last_active_timestamp_seconds"]) == 0,
		"a claim is idle without telemetry")
	expect.That(t, h.Last.Pods[0].LastActive.IsZero(), "a pod is idle without telemetry")
	active(use(0), 4)
	active(use(1), 8)
}

// When another source takes over a quantity, its counter continues from its present value.
func TestTakeOver(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.In.Sources = append(h.In.Sources, join.SourceSamples{Name: "b"})
	second := func(joules float64) {
		h.In.Sources[1].Samples = []driver.Sample{{
			Hardware: driver.Hardware{
				UUID: "gpu-0",
			}, Readings: []driver.Reading{{Quantity: driver.Energy, Value: joules, At: h.Now}},
		}}
	}
	h.Hold("c0", "p0")
	for i := range 3 {
		h.Energy(float64(i))
		second(5e6 + float64(i))
		h.Pass(time.Second)
	}
	h.In.Sources[0].Samples = nil
	var x exportertest.Scraped
	for i := range 3 {
		second(5e6 + 3 + float64(i))
		x = h.Tick(time.Second)
	}
	h.Expect(x, map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}: 4, {"dra_claim_energy_joules_total", "device=gpu-0"}: 4,
	})
	expect.That(t, len(x.Matching("dra_device_quantity_source_info", "quantity=energy", "source=b")) == 1,
		"the source is %v, want b", x["dra_device_quantity_source_info"])
}

// The first readings of a delayed source are of a time for which another source has already
// counted. That time counts once.
func TestTakeOverBySourceThatIsBehind(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	begun := h.Now
	for second := range 11 {
		h.Energy(100 * float64(second))
		h.Pass(time.Second)
	}
	h.In.Sources = []join.SourceSamples{{Name: "b"}}
	for _, second := range []int{5, 15} { // the source reports these at 11 s and 15 s
		h.Read(driver.Reading{
			Quantity: driver.Energy, Value: 5e6 + 100*float64(second), At: begun.Add(time.Duration(second) * time.Second),
		})
		h.Pass(4 * time.Second)
	}
	h.Expect(exportertest.Scrape(t, h.Last), map[[2]string]float64{
		{"dra_device_energy_joules_total", "device=gpu-0"}:         1500,
		{"dra_claim_energy_joules_total", "resourceclaim_name=c0"}: 1500,
	})
}

// The API server reports a claim first with admin access and later without. The claim is charged
// from then on, while one of its pods begins and another one ends.
func TestAdminAccessThatChanges(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0", "p1").Admin = true
	for second := range 10 {
		h.Energy(100 * float64(second))
		h.Pass(time.Second)
	}
	h.Hold("a", "p1", "p2")
	before := h.Now.Add(-time.Second)
	h.Changes = []podresources.Change{
		{At: before.Add(200 * time.Millisecond), PodUID: "uid-p2"},
		{At: before.Add(600 * time.Millisecond), PodUID: "uid-p0", Gone: true},
	}
	for second := 10; second < 20; second++ {
		h.Energy(100 * float64(second))
		h.Pass(time.Second)
	}
	h.Expect(exportertest.Scrape(t, h.Last), map[[2]string]float64{
		{"dra_claim_energy_joules_total", "resourceclaim_name=a"}:       980,
		{"dra_device_unattributed_energy_joules_total", "device=gpu-0"}: 920,
	})
}

// The example in exporter/ATTRIBUTION.md: a device uses 500 J in a second. Claim a (pod p0) holds
// it all the time, claim b (pod p1) from 0.4 s on.
func TestDocumentedExample(t *testing.T) {
	readme := must.Get(os.ReadFile("../ATTRIBUTION.md"))(t)
	memory := func(gib float64) []driver.Amount {
		return []driver.Amount{{Resource: "memory", Value: gib * (1 << 30)}}
	}
	for row, b := range map[string]func(h *exportertest.History, b *podresources.Allocation){
		"`equal`":               func(*exportertest.History, *podresources.Allocation) {},
		"B has admin access":    func(_ *exportertest.History, b *podresources.Allocation) { b.Admin = true },
		"`capacity`: A consume": func(_ *exportertest.History, b *podresources.Allocation) { b.Consumed = memory(20) },
		"`process`: GPU busy":   func(*exportertest.History, *podresources.Allocation) {},
	} {
		t.Run(row, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("a", "p0").Consumed = memory(60)
			h.Energy(10_000)
			h.Pass(time.Second)
			h.Changes = []podresources.Change{
				{At: jointest.Start().Add(400 * time.Millisecond), CDI: []string{"example.com/gpu=b"}},
			}
			b(h, h.Hold("b", "p1"))
			readings := []driver.Reading{{Quantity: driver.Energy, Value: 10_500}}
			if strings.HasPrefix(row, "`process`") {
				h.Read(append(readings, driver.Reading{Quantity: driver.Utilization, Value: 1})...)
				h.Run(exportertest.Process(1, 0.2, 0), exportertest.Process(2, 0.6, 0), exportertest.Process(4, 0.2, 0))
			} else {
				h.Read(readings...)
			}
			x := h.Tick(0)
			cells := []string{
				shownJoules(x, "dra_claim_energy_joules_total", "resourceclaim_name=a"),
				shownJoules(x, "dra_claim_energy_joules_total", "resourceclaim_name=b"),
				shownJoules(x, "dra_device_unattributed_energy_joules_total", "device=gpu-0"),
				shownJoules(x, "dra_device_energy_joules_total", "device=gpu-0"),
			}
			want := strings.Join(cells, " | ") + " |"
			for line := range strings.Lines(string(readme)) {
				if strings.HasPrefix(line, "| "+row) && strings.HasSuffix(strings.TrimSpace(line), " "+want) {
					return
				}
			}
			t.Errorf("exporter/ATTRIBUTION.md has no row %q that ends with %q", row, want)
		})
	}
}

// shownJoules returns the value of a series as the document shows it.
func shownJoules(x exportertest.Scraped, family, label string) string {
	for _, v := range x.Matching(family, label) {
		return fmt.Sprintf("%.0f J", v)
	}
	return "-"
}
