package join_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
