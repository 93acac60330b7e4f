package ledger_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// The ledger does not grow while 10 000 claims, each with a new pod, partition and error code,
// begin and end in 100 000 ticks.
func TestSteadyStateDoesNotGrow(t *testing.T) {
	claims, ticksEach := 10_000, 10
	if testmain.RaceEnabled || testing.Short() {
		claims /= 20
	}
	l := ledger.New(exportertest.LedgerConfig())
	now := jointest.Start()
	gpu := jointest.ID("gpu-0")
	var dates holders.Dates
	var early uint64
	for i := range claims {
		name := fmt.Sprint(i)
		partition := jointest.ID("mig-" + name)
		inventory := driver.Inventory{
			gpu: {Hardware: driver.Hardware{UUID: "GPU-0"}},
			partition: {Hardware: driver.Hardware{
				UUID: "MIG-" + name, Kind: driver.KindPartition, Parent: "GPU-0", ParentShare: 0.5,
			}},
		}
		allocations := []podresources.Allocation{
			jointest.Allocation(gpu.Device, name, name), jointest.Allocation(partition.Device, name, name),
		}
		for j := range ticksEach {
			now = now.Add(10 * time.Second)
			var held []podresources.Allocation
			if j > 2 {
				held = allocations
			}
			in := join.Input{Inventory: inventory, View: dates.Date(held, holders.Signs{At: now}, now)}
			joules := float64(i*ticksEach + j)
			in.Sources = []join.SourceSamples{{Name: "a", Samples: []driver.Sample{
				{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{
					{Quantity: driver.Energy, Value: joules, At: now},
					{Quantity: driver.Errors, Labels: driver.Labels{"xid", name}, Value: 1, At: now},
				}},
				{Hardware: driver.Hardware{
					UUID: "MIG-" + name,
				}, Readings: []driver.Reading{{Quantity: driver.Utilization, Value: 0.5, At: now}}},
			}}}
			l.Advance(join.Join(in), now)
		}
		if i == claims/2 {
			early = heap()
		}
	}
	late := heap()
	expect.That(t, late <= (early+early/10), "the heap grew from %d to %d bytes", early, late)
	runtime.KeepAlive(l)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second frees what has finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
