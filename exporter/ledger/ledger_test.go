package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A pod that lives for 3 s between two readings of a counter that is refreshed every 30 s is
// charged for its 3 s.
func TestLateReadingIsChargedToWhoHeldTheDevice(t *testing.T) {
	l := ledger.New(ledger.Config{Retention: 5 * time.Minute})
	start := time.Unix(1000, 0)
	gpu := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"}
	inventory := driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-0"}}}
	pod := podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: "claim"}, Device: gpu,
		Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "team", Name: "pod"}, Container: "main"}},
	}
	var dates holders.Dates
	var s *book.Snapshot
	for second := range 40 {
		now := start.Add(time.Duration(second) * time.Second)
		var held []podresources.Allocation
		if second > 10 && second <= 13 {
			held = []podresources.Allocation{pod}
		}
		in := join.Input{Inventory: inventory, View: dates.Date(held, holders.Signs{At: now}, now)}
		refreshed := start.Add(time.Duration(second/30*30) * time.Second)
		joules := 10 * refreshed.Sub(start).Seconds()
		in.Sources = []join.SourceSamples{{Name: "test", Samples: []driver.Sample{{
			Hardware: driver.Hardware{UUID: "gpu-0"},
			Readings: []driver.Reading{{Quantity: driver.Energy, Value: joules, At: refreshed}},
		}}}}
		s = l.Advance(join.Join(in), now)
	}
	must.That(t, len(s.Pods) == 1 && len(s.Claims) == 1,
		"got %d pods and %d claims, want one of each", len(s.Pods), len(s.Claims))
	for _, h := range []book.Holder{s.Pods[0], s.Claims[0]} {
		if got := h.Values[0].Value; got < 29.99 || got > 30.01 {
			t.Errorf("%s was charged %v J, want the 30 J of its 3 s", h.Name, got)
		}
		expect.That(t, h.Allocated >= 2.99 && h.Allocated <= 3.01, "%s was allocated for %v s, want 3", h.Name, h.Allocated)
	}
	if got := s.Devices[0].Values[0].Value; got != 300 {
		t.Errorf("the device used %v J, want 300", got)
	}
	if got := s.Devices[0].Unattributed[0].Value; got < 269.99 || got > 270.01 {
		t.Errorf("%v J are unattributed, want 270", got)
	}
}
