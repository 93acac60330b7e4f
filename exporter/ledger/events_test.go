package ledger_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Events that two sources count are counted once, though the second one is the first to see them.
func TestEventsAreCountedOnce(t *testing.T) {
	books := ledger.New(ledger.Config{})
	inventory := driver.Inventory{jointest.ID("0"): {Hardware: driver.Hardware{UUID: "GPU-0"}}}
	xid := func(at time.Time, errors float64, since time.Time) []driver.Sample {
		return []driver.Sample{{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{
			{Quantity: driver.Power, Value: 1, At: at},
			{Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: errors, At: at, Since: since},
		}}}
	}
	begun := jointest.Start()
	happened := begun.Add(1500 * time.Millisecond)
	var counted float64
	for i := range 8 {
		now := begun.Add(time.Duration(i) * time.Second)
		sources := []join.SourceSamples{{Name: "first"}, {Name: "second"}}
		if i >= 2 {
			sources[1].Samples = xid(now, 1, happened)
		}
		if i >= 3 {
			sources[0].Samples = xid(now, 1, happened.Add(-time.Second))
		}
		if i >= 5 { // and a second event
			sources[0].Samples = xid(now, 2, happened.Add(-time.Second))
		}
		result := join.Join(join.Input{Inventory: inventory, Sources: sources})
		result.View.At = now
		for _, d := range books.Advance(result, now).Devices {
			for _, v := range d.Values {
				if v.Quantity == driver.Errors {
					counted = v.Value
				}
			}
		}
	}
	if counted != 2 {
		t.Errorf("two events were counted as %v", counted)
	}
}
