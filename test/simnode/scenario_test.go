package simnode

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// play runs the demo on a fake clock and returns the uses of the pods and of the devices.
func play(t *testing.T, seed uint64, d time.Duration) (uses []Use, totals map[driver.ID]sim.Truth) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		must.Do(t, Demo(seed, DefaultHang).Run(ctx, n))
		now := time.Now()
		uses, totals = n.Uses(now), map[driver.ID]sim.Truth{}
		for _, id := range n.Devices() {
			totals[id] = n.Total(id, now)
		}
	})
	return uses, totals
}

// TestDemo runs a cycle and a quarter. The use by pods and the use while no pod held the devices
// sum to the devices' use.
func TestDemo(t *testing.T) {
	uses, totals := play(t, 1, cycle*5/4)
	byDevice, idle := map[driver.ID]sim.Truth{}, 0
	pods := map[string]int{}
	for _, u := range uses {
		byDevice[u.Device] = byDevice[u.Device].Plus(u.Truth)
		pods[u.PodUID]++
		if !u.Admin && u.To.IsZero() && u.Truth.ActiveSeconds == 0 && u.Truth.ReceiveBytes == 0 {
			idle++
		}
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b)) }
	var partitions sim.Truth
	for id, total := range totals {
		sum := byDevice[id]
		if id.Device == "gpu-6" { // its partitions use it
			continue
		}
		if strings.HasPrefix(id.Device, "gpu-6-") {
			partitions = partitions.Plus(sum)
			total.Joules = totals[driver.ID{Driver: id.Driver, Pool: id.Pool, Device: "gpu-6"}].Joules
		}
		if !near(sum.ShareSeconds, total.HeldSeconds) || !near(sum.ActiveSeconds, total.ActiveSeconds) ||
			!near(sum.ReceiveBytes, total.ReceiveBytes) {
			t.Errorf("%v: the pods' shares are %+v of %+v", id, sum, total)
		}
		expect.That(t, sum.Joules <= total.Joules*(1+1e-9), "%v: the pods used %v J of %v J", id, sum.Joules, total.Joules)
	}
	const idleWatts = 70
	whole := totals[driver.ID{Driver: GPUDriver, Pool: Name, Device: "gpu-6"}].Joules
	if free := (cycle * 5 / 4).Seconds() - partitions.ShareSeconds/4; !near(whole-partitions.Joules, idleWatts*free) {
		t.Errorf("pods of partitions used %v J of %v J, which were free for %v s", partitions.Joules, whole, free)
	}
	expect.That(t, len(pods) >= 100, "%d pods were simulated", len(pods))
	expect.That(t, idle == 3, "%d devices are held and idle, want 3", idle)
}

func TestDemoDeterministic(t *testing.T) {
	one, _ := play(t, 1, time.Minute)
	again, _ := play(t, 1, time.Minute)
	if diff := cmp.Diff(one, again); diff != "" {
		t.Errorf("the same seed gave different results:\n%s", diff)
	}
	other, _ := play(t, 2, time.Minute)
	expect.That(t, !cmp.Equal(one, other), "different seeds gave the same results")
}
