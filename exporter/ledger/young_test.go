package ledger_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// newNursery returns a history in which pods are young for 10 s, after the first answer of the
// kubelet.
func newNursery(t *testing.T) *exportertest.History {
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.MinLifetime = 10 * time.Second
	h.Ledger = ledger.New(config)
	h.Read(jointest.Watts(100))
	h.Pass(time.Second)
	return h
}

// holdFor gives gpu-0 to a claim with pods of a Job.
func holdFor(h *exportertest.History, claim, job string, pods ...string) {
	a := h.Hold(claim, pods...)
	for i := range a.Holders {
		a.Holders[i].Meta = &podresources.PodMeta{
			OwnerKind: "Job", OwnerName: job + "-1", WorkloadKind: "Job", WorkloadName: job, Queue: "q",
		}
	}
}

// podSeries returns the names of the pods in all families of pods.
func podSeries(x exportertest.Scraped) []string {
	pods := map[string]bool{}
	for family, rows := range x {
		if strings.HasPrefix(family, "dra_pod_") {
			for key := range rows {
				pods[exportertest.ParseKey(key)["pod"]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(pods))
}

func expectPods(t *testing.T, x exportertest.Scraped, want ...string) {
	t.Helper()
	if got := podSeries(x); !slices.Equal(got, want) {
		t.Errorf("series are of the pods %q, want %q", got, want)
	}
}

// A pod that ends while it is young never has a series. Its charges are added to its workload at
// its end. Later readings of its time are charged to the workload too.
func TestShortPods(t *testing.T) {
	h := newNursery(t)
	const row = "pod=aggregated/Job/train"
	holdFor(h, "c", "train", "p0")
	h.Read(jointest.Watts(100))
	x := h.Tick(4 * time.Second)
	expectPods(t, x, "aggregated/Job/train")
	h.Read(jointest.Watts(100))
	x = h.Tick(time.Second) // p0 is 4.5 s old
	h.Expect(x, map[[2]string]float64{
		{podPower, row}: 100, {claimPower, "resourceclaim_name=c"}: 100,
		{podEnergy, row}: 0, {claimEnergy, "resourceclaim_name=c"}: 450,
	})
	young := h.Last.Young
	must.That(t, len(young) == 1 && young[0].Name == "p0", "the young pods are %+v", young)
	h.Free("c")
	h.Changes = []podresources.Change{{At: h.Now, PodUID: "uid-p0", Gone: true}}
	h.Now = h.Now.Add(time.Second)
	x = h.Tick(time.Second) // without a new reading
	expectPods(t, x, "aggregated/Job/train")
	h.Expect(x, map[[2]string]float64{{podEnergy, row}: 450, {"dra_pod_allocated_seconds_total", row}: 5.5})
	h.Read(jointest.Watts(100))
	x = h.Tick(time.Second) // charges 1 s until the end, as for the claim
	h.Expect(x, map[[2]string]float64{
		{podEnergy, row}: 550, {claimEnergy, "resourceclaim_name=c"}: 550, {"dra_pod_info", row}: 1,
		{"dra_pod_info", "workload_name=train"}: 1, {"dra_pod_info", "queue=q"}: 1, {"dra_pod_info", "workload_kind=Job"}: 1,
	})
	if got := x.Matching(podPower, row); len(got) != 0 {
		t.Errorf("a workload without pods has a power: %v", got)
	}
	h.Now = h.Now.Add(exportertest.Retention)
	if x = h.Tick(time.Second); len(podSeries(x)) != 0 {
		t.Errorf("after the retention there are series of %q", podSeries(x))
	}
	holdFor(h, "c", "train", "p1")
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_pod_allocated_seconds_total", row}: 0})
}

// The row of a workload also has the counters that its device has only since later.
func TestLaterCounterOfShortPods(t *testing.T) {
	h := newNursery(t)
	holdFor(h, "c", "train", "p0")
	h.Read(jointest.Watts(100))
	h.Pass(time.Second)
	h.Read(driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: 5})
	h.Expect(h.Tick(time.Second), map[[2]string]float64{{"dra_pod_io_bytes_total", "pod=aggregated/Job/train"}: 0})
}

// A pod that is old enough appears with all charges since its beginning, which is its created
// timestamp. The zero-hold begins when it appears. Before that, its workload has its parts of
// gauges.
func TestPodsGrowUp(t *testing.T) {
	h := newNursery(t)
	const row = "pod=aggregated/Job/train"
	holdFor(h, "c", "train", "p0", "p1")
	h.Read(jointest.Watts(100))
	h.Pass(time.Second)
	born := h.Now.Add(-1500 * time.Millisecond)
	for range 5 {
		h.Read(jointest.Watts(100))
		h.Pass(time.Second)
	}
	holdFor(h, "late", "train", "p2")
	var x exportertest.Scraped
	for h.Now.Sub(born) < 10*time.Second {
		h.Read(jointest.Watts(100))
		x = h.Tick(time.Second)
	}
	expectPods(t, x, "aggregated/Job/train")
	h.Expect(x, map[[2]string]float64{{podPower, row}: 100})
	h.Read(jointest.Watts(100))
	x = h.Tick(time.Second) // p0 and p1 are 10.5 s old
	expectPods(t, x, "aggregated/Job/train", "p0", "p1")
	claims := x.One(t, claimEnergy, "resourceclaim_name=c")
	h.Expect(x, map[[2]string]float64{
		{podPower, row}: 50, {podPower, "pod=p0"}: 25, {podEnergy, row}: 0,
		{podEnergy, "pod=p0"}: claims / 2, {podEnergy, "pod=p1"}: claims / 2,
		{"dra_pod_info", "pod=p0"}: 1, {"dra_pod_claim_info", "pod=p0"}: 1,
		{"dra_pod_allocated_seconds_total", "pod=p0"}: 10.5,
	})
	p0 := h.Last.Pods[slices.IndexFunc(h.Last.Pods, func(h book.Holder) bool { return h.Name == "p0" })]
	expect.That(t, p0.Born.Equal(born) && p0.Shown.Equal(h.Last.Time),
		"p0 was born at %v and shown at %v, want %v and %v", p0.Born, p0.Shown, born, h.Last.Time)
	expectHeld(t, h.Last, born)
	h.Free("c")
	x = h.Tick(time.Second)
	expectPods(t, x, "aggregated/Job/train", "p0", "p1")
}

// expectHeld checks that all counters of p0, which began at the time born, are shown at 0 at first.
func expectHeld(t *testing.T, s *exposition.Snapshot, born time.Time) {
	t.Helper()
	counters := 0
	for _, f := range exportertest.Decode(t, exportertest.Render(s, exposition.Config{
		ZeroHold: 5 * time.Second, Choices: exportertest.Everything(),
	})) {
		for _, m := range f.Metric {
			of := func(l *dto.LabelPair) bool { return l.GetName() == "pod" && l.GetValue() == "p0" }
			if c := m.GetCounter(); c != nil && slices.ContainsFunc(m.Label, of) {
				counters++
				if c.GetValue() != 0 || !c.GetCreatedTimestamp().AsTime().Equal(born) {
					t.Errorf("%s of p0 is %v, of %v", f.GetName(), c.GetValue(), c.GetCreatedTimestamp().AsTime())
				}
			}
		}
	}
	expect.That(t, counters == 3, "p0 has %d counters, want its energy and two allocated times", counters)
}

// Pods of the kubelet's first answer may have any age, and have series at once, also if devices
// were known before.
func TestPodsOfFirstAnswer(t *testing.T) {
	for _, known := range []bool{false, true} {
		h := exportertest.NewHistory(t)
		config := exportertest.LedgerConfig()
		config.MinLifetime = time.Hour
		h.Ledger = ledger.New(config)
		if known {
			h.TickWithoutAnswer(time.Second)
		}
		h.Hold("c", "p0")
		h.Hold("admin", "p1").Admin = true
		expectPods(t, h.Tick(time.Second), "p0", "p1")
		h.Hold("next", "p2")
		h.Hold("other admin", "p3").Admin = true
		expectPods(t, h.Tick(time.Second), "aggregated/", "p0", "p1")
	}
}

// An error hits a workload once, no matter how many of its young pods hold the device. A process of
// a young pod hits the workload too. The highest memory is that of one pod.
func TestErrorsOfShortPods(t *testing.T) {
	h := newNursery(t)
	const row = "pod=aggregated/Job/train"
	memory := func(bytes float64) {
		s := &h.In.Sources[0].Samples[0]
		s.Readings = append(s.Readings, driver.Reading{Quantity: driver.MemoryUsed, Value: bytes, At: h.Now})
	}
	errorsAt(h, 0)
	holdFor(h, "c", "train", "p0", "p1")
	holdFor(h, "d", "other", "p2")
	memory(40)
	h.Pass(time.Second)
	errorsAt(h, 2) // of an unknown time
	memory(80)
	h.Pass(time.Second)
	h.In.PodOf = exportertest.PodOf()
	errorsAt(h, 3)
	event(h, driver.Event{At: h.Now.Add(-100 * time.Millisecond), PID: 1}) // of p0
	memory(40)
	x := h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{
		{"dra_pod_errors_total", row}: 3, {"dra_pod_errors_total", "pod=aggregated/Job/other"}: 2,
	})
	h.Free("c")
	errorsAt(h, 3)
	h.Pass(time.Second)
	x = h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{
		{"dra_pod_errors_total", row}: 3, {"dra_pod_memory_used_peak_bytes", row}: 20,
	})
}

// The time of a pod is added to its workload only when it is decided: a hold of the same pod that
// becomes known late and overlaps it is not counted twice.
func TestShortPodIsAddedWhenItsEndIsDecided(t *testing.T) {
	config := exportertest.LedgerConfig()
	config.MinLifetime = 10 * time.Second
	books := ledger.New(config)
	hold := func(claim string, from, to float64) podresources.Allocation {
		a := held(claim, from, to)
		a.Holders[0].Name, a.Holders[0].UID = "p0", "uid-p0"
		return a
	}
	waiting := map[driver.ID]time.Time{jointest.ID("gpu-0"): sec(2)}
	one, over, other := hold("a", 0.5, -1), hold("a", 0.5, 2.5), hold("b", 2, -1)
	var s *book.Snapshot
	for second, v := range []podresources.View{
		{},
		{Allocations: []podresources.Allocation{one}},
		{Allocations: []podresources.Allocation{one}},
		{Ended: []podresources.Allocation{over}, Waiting: waiting},
		{Allocations: []podresources.Allocation{other}, Ended: []podresources.Allocation{over}},
	} {
		v.At = sec(float64(second))
		s = books.Advance(join.Join(join.Input{
			View: v, Inventory: driver.Inventory{jointest.ID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
		}), v.At)
	}
	held := 0.0
	for _, h := range slices.Concat(s.Pods, s.Young) {
		held += h.Allocated
	}
	expect.That(t, held == 3.5, "the pod and its workload held the device for %v s, want 3.5 s", held)
}
