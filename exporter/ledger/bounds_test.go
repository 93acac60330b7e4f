package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Labels that are new at every tick do not make the ledger grow without limit.
func TestNewLabelsAreForgotten(t *testing.T) {
	h := exportertest.NewHistory(t)
	for i := range 300 {
		h.Read(driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: 1})
		h.Pass(time.Minute)
	}
	meters, counters, _ := h.Ledger.Sizes(jointest.ID("gpu-0"))
	if bound := 2 * int(ledger.RememberFor/time.Minute); meters > bound || counters > bound {
		t.Errorf("%d meters and %d counters are kept, want no more than %d", meters, counters, bound)
	}
}

// The timeline is bounded, no matter how fast the holders change and how long there is no reading.
func TestTimelineIsBounded(t *testing.T) {
	t.Parallel()
	h := exportertest.NewHistory(t)
	h.Energy(0)
	first := h.Now
	for i := range ledger.MaxSegments * 5 / 4 {
		h.Free(fmt.Sprint("c", i-1))
		h.In.View.Allocations = []podresources.Allocation{
			jointest.Allocation("gpu-0", fmt.Sprint("c", i%7), fmt.Sprint("p", i%5)),
		}
		h.In.View.At = h.Now
		h.Advance()
		h.Now = h.Now.Add(100 * time.Millisecond)
		if _, _, n := h.Ledger.Sizes(jointest.ID("gpu-0")); n > ledger.MaxSegments+2 {
			t.Fatalf("the timeline has %d segments", n)
		}
	}
	h.Read(driver.Reading{Quantity: driver.Energy, Value: 10 * h.Now.Sub(first).Seconds()})
	x := h.Tick(time.Second)
	sums := x.Sums()[exportertest.SumKey{
		Device: jointest.ID("gpu-0").String(), Metric: "energy_joules_total", Labels: ",",
	}]
	claims, pods := exportertest.SumOf(sums.Claims), exportertest.SumOf(sums.Pods)
	if !exportertest.Close(sums.Device, claims+sums.Unattributed, 0) || !exportertest.Close(claims, pods, 0) {
		t.Errorf("the device has %v, the claims %v, the pods %v, unattributed are %v",
			sums.Device, claims, pods, sums.Unattributed)
	}
}

// The timeline of a device that is shared for a long time is bounded.
func TestTimelineByProcessIsBounded(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Hold("b", "p1")
	for i := range 3 * ledger.MaxSegments {
		h.Read(exportertest.Gauges(0.8, 100, 200)...)
		h.Run(exportertest.Process(1, 0.1+float64(i%7)/10, 1), exportertest.Process(2, 0.1, 1))
		h.In.View.At = h.Now
		h.Ledger.Advance(join.Join(h.In), h.Now)
		h.Now = h.Now.Add(time.Second)
	}
	if _, _, n := h.Ledger.Sizes(jointest.ID("gpu-0")); n > 2*ledger.MaxSegments {
		t.Errorf("the timeline has %d segments", n)
	}
}

// The timeline of a device with hundreds of holders, while others begin and end, keeps fewer
// segments.
func TestTimelineOfManyHoldersIsBounded(t *testing.T) {
	t.Parallel()
	h := exportertest.NewHistory(t)
	const sharers = 250
	for i := range sharers {
		h.Hold(fmt.Sprint("c", i), fmt.Sprint("p", i))
	}
	for i := range ledger.MaxPortions / sharers / 2 * 5 / 4 {
		h.Hold(fmt.Sprint("late", i), fmt.Sprint("late", i))
		h.Pass(time.Second)
		h.Free(fmt.Sprint("late", i))
	}
	most := ledger.MaxPortions + 2*(sharers+1) // of the present segment
	if n := h.Ledger.Portions(jointest.ID("gpu-0")); n > most || n < most*3/4 {
		t.Errorf("the timeline takes as much as %d portions, want at most %d", n, most)
	}
}
