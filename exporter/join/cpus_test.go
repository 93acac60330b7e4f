package join_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// cores is a node of 8 CPUs that are one device, cpudevnuma000.
type cores struct {
	*exportertest.History
	seconds [8]float64
}

func newCores(t *testing.T) *cores {
	c := &cores{History: exportertest.NewHistory(t)}
	c.In.Inventory = driver.Inventory{
		jointest.ID("cpudevnuma000"): {Hardware: driver.Hardware{CPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}}},
	}
	return c
}

// hold gives a claim CPUs of its own; nil: they are unknown.
func (c *cores) hold(claim string, cpus []int, pods ...string) *podresources.Allocation {
	a := jointest.Allocation("cpudevnuma000", claim, pods...)
	a.CPUs, a.OwnCPUs = cpus, true
	c.In.View.Allocations = append(c.In.View.Allocations, a)
	return &c.In.View.Allocations[len(c.In.View.Allocations)-1]
}

// second lets the CPUs be busy for these parts of the second up to now, and ticks.
func (c *cores) second(busy ...float64) exportertest.Scraped {
	c.Now = c.Now.Add(time.Second)
	c.In.Sources[0].Samples = nil
	for cpu := range c.seconds {
		utilization := 0.0
		if cpu < len(busy) {
			utilization = busy[cpu]
		}
		c.seconds[cpu] += utilization
		c.In.Sources[0].Samples = append(c.In.Sources[0].Samples, driver.Sample{
			Hardware: driver.Hardware{CPUs: []int{cpu}},
			Readings: []driver.Reading{
				{Quantity: driver.ActiveSeconds, Value: c.seconds[cpu], At: c.Now},
				{Quantity: driver.Utilization, Value: utilization, At: c.Now},
			},
		})
	}
	return c.Tick(0)
}

// Claims with CPUs of their own are charged the use of these, whatever the others do. The use of
// CPUs without a claim is unattributed. A device of 8 CPUs with one busy CPU has a utilization of
// an eighth.
func TestOwnCPUs(t *testing.T) {
	c := newCores(t)
	c.hold("one", []int{0}, "p0")
	c.hold("three", []int{1, 2, 3, 64}, "p1", "p2") // CPU 64 is another device's
	c.hold("idle", []int{4}, "p3")
	c.hold("slow", []int{5}, "p4") // busy for more than 1 % of its CPU, and less of the device
	c.hold("admin", []int{0, 1}, "p5").Admin = true
	c.second()
	var x exportertest.Scraped
	for range 4 {
		x = c.second(1, 0.5, 0.25, 0, 0, 0.04, 1, 1)
	}
	active := "dra_claim_active_seconds_total"
	c.Expect(x, map[[2]string]float64{
		{"dra_device_active_seconds_total", "device=cpudevnuma000"}:              4 * 3.79 / 8,
		{active, "resourceclaim_name=one"}:                                       4 * 1.0 / 8,
		{active, "resourceclaim_name=three"}:                                     4 * 0.75 / 8,
		{active, "resourceclaim_name=idle"}:                                      0,
		{"dra_pod_active_seconds_total", "pod=p1"}:                               4 * 0.375 / 8,
		{"dra_device_unattributed_active_seconds_total", "device=cpudevnuma000"}: 4 * 2.0 / 8,
		{"dra_claim_utilization_ratio", "resourceclaim_name=one"}:                1.0 / 8,
		{"dra_device_unattributed_utilization_ratio", "device=cpudevnuma000"}:    2.0 / 8,
		{"dra_claim_allocated_share_seconds_total", "resourceclaim_name=three"}:  4 * 3.0 / 6,
	})
	for claim, want := range map[string]float64{"one": 5, "three": 5, "slow": 5, "idle": 0} {
		const family = "dra_claim_last_active_timestamp_seconds"
		got := x.One(t, family, "resourceclaim_name="+claim) - exportertest.Unix(jointest.Start())
		expect.That(t, (want <= 0 || got == want) && (want != 0 || got <= 1),
			"claim %s was last active after %v s, want %v", claim, got, want)
	}
	d := c.Joined.Devices[0]
	expect.That(t, d.Attribution == join.AttributionCPUs, "it is divided %q", d.Attribution)
}

// The use of a claim's CPUs before they were known is assumed to be the present use, but not more
// than the other CPUs leave.
func TestOwnCPUsKnownLaterFit(t *testing.T) {
	c := newCores(t)
	c.hold("known", []int{0}, "p0")
	c.second()
	c.second(1)
	c.hold("late", nil, "p1").Pending = true
	c.second(1)
	c.In.View.Allocations = nil
	c.hold("known", []int{0}, "p0")
	c.hold("late", []int{1}, "p1")
	c.second(0, 1)
	x := c.second(0, 1)
	c.Expect(x, map[[2]string]float64{
		{"dra_claim_active_seconds_total", "resourceclaim_name=known"}: 2.0 / 8,
		{"dra_claim_active_seconds_total", "resourceclaim_name=late"}:  2.0 / 8,
	})
}

// The use of a claim's CPUs before it ended, and that of another after it began, sum to at most the
// device's use while both held it.
func TestOwnCPUsOfDifferentTicks(t *testing.T) {
	c := newCores(t)
	c.hold("ends", []int{0}, "p0")
	c.second()
	c.second(1)
	c.Free("ends")
	c.hold("begins", []int{7}, "p1")
	for pod, after := range map[string]time.Duration{"p0": 600 * time.Millisecond, "p1": 200 * time.Millisecond} {
		change := podresources.Change{At: c.Now.Add(after), Gone: pod == "p0", PodUID: "uid-" + pod}
		c.Changes = append(c.Changes, change)
	}
	slices.SortFunc(c.Changes, func(a, b podresources.Change) int { return a.At.Compare(b.At) })
	idleButLast := []float64{0, 0, 0, 0, 0, 0, 0, 1}
	c.second(idleButLast...)
	x := c.second(idleButLast...)
	c.Expect(x, map[[2]string]float64{
		{"dra_device_active_seconds_total", "device=cpudevnuma000"}:              3.0 / 8,
		{"dra_claim_active_seconds_total", "resourceclaim_name=ends"}:            (1.2 + 0.4/2) / 8,
		{"dra_claim_active_seconds_total", "resourceclaim_name=begins"}:          (0.4/2 + 1.4) / 8,
		{"dra_pod_active_seconds_total", "pod=p1"}:                               (0.4/2 + 1.4) / 8,
		{"dra_device_unattributed_active_seconds_total", "device=cpudevnuma000"}: 0,
	})
}

// A prepared claim that stays unknown for longer than the allowed wait is not charged the whole
// group's use, and is not idle while the group is active: one of 8 busy CPUs for the last 3 of 9 s.
func TestCPUsUnknownForLong(t *testing.T) {
	c := newCores(t)
	busy := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	c.second(busy...)
	c.hold("late", nil, "p0").Pending = true
	for range 5 {
		c.second(busy...)
	}
	x := c.second(busy...)
	c.Expect(x, map[[2]string]float64{{"dra_claim_active_seconds_total", "resourceclaim_name=late"}: 0})
	const lastActive = "dra_claim_last_active_timestamp_seconds"
	if at := x.One(t, lastActive, "resourceclaim_name=late"); exportertest.Unix(c.Now)-at > 2 {
		t.Errorf("the claim was last active %v s ago, and the group always is", exportertest.Unix(c.Now)-at)
	}
	c.In.View.Allocations = nil
	c.hold("late", []int{3}, "p0")
	for range 3 {
		x = c.second(busy...)
	}
	c.Expect(x, map[[2]string]float64{
		{"dra_claim_active_seconds_total", "resourceclaim_name=late"}:            3.0 / 8,
		{"dra_device_active_seconds_total", "device=cpudevnuma000"}:              9,
		{"dra_device_unattributed_active_seconds_total", "device=cpudevnuma000"}: 9 - 3.0/8,
	})
}
