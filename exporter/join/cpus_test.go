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

// Health in pods' statuses is shown for any device. It does not make a device measured, nor one
// that can't be read readable.
func TestHealthOfPods(t *testing.T) {
	h := exportertest.NewHistory(t)
	a := h.Hold("claim", "p0")
	a.Health = driver.HealthGood
	x := h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{
		{"dra_device_health", "status=healthy"}:                 1,
		{"dra_exporter_unresolved_devices", "reason=no_source"}: 1,
		{"dra_device_quantity_source_info", "source=pods"}:      1,
		{"dra_claim_allocated_seconds_total", "namespace=team"}: 0,
	})
	expect.That(t, len(x["dra_device_up"]) == 0, "health alone makes it up, or down: %v", x["dra_device_up"])
	h.Energy(1)
	h.In.View.Allocations[0].Health = driver.HealthBad
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_up", "device=gpu-0"}:         1,
		{"dra_device_health", "status=unhealthy"}: 1,
	})
	h.In.Sources[0].Samples = nil
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_up", "device=gpu-0"}:         0,
		{"dra_device_health", "status=unhealthy"}: 1,
	})
	h.Free("claim")
	if x := h.Tick(time.Second); len(x["dra_device_health"]) > 0 {
		t.Errorf("it is not held, and its health is %v", x["dra_device_health"])
	}
}

// The table of exporter/MEANING.md: which source counts.
func TestHealthPrecedence(t *testing.T) {
	const none, good, unknown, bad = driver.HealthNone, driver.HealthGood, driver.HealthUnknown, driver.HealthBad
	for name, tc := range map[string]struct {
		source, stream, pods, slice, taint driver.HealthStatus
		want                               string // status of source
		reason                             string
	}{
		"nobody":                       {none, none, none, none, none, "", ""},
		"the vendor's library":         {good, bad, bad, bad, bad, "healthy of a", ""},
		"the driver's stream":          {none, good, bad, bad, bad, "healthy of health", ""},
		"the stream's unknown":         {none, unknown, good, bad, good, "unknown of health", "stream"},
		"pods":                         {none, none, bad, good, good, "unhealthy of pods", "message"},
		"well in pods":                 {none, none, good, bad, bad, "healthy of pods", ""},
		"unknown in pods, slice":       {none, none, unknown, good, none, "healthy of slices", ""},
		"unknown in pods, taint":       {none, none, unknown, none, bad, "unhealthy of slices", "k=v:NoSchedule"},
		"unknown in pods":              {none, none, unknown, none, none, "unknown of pods", "message"},
		"slice":                        {none, none, none, good, none, "healthy of slices", ""},
		"the worse of slice and taint": {none, none, none, good, bad, "unhealthy of slices", "k=v:NoSchedule"},
		"taint of the unmonitored":     {none, none, none, none, unknown, "unknown of slices", "k=v:NoSchedule"},
		"sick slice, tainted unknown":  {none, none, none, bad, unknown, "unhealthy of slices", ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := jointest.ID("gpu-0")
			a := jointest.Allocation("gpu-0", "claim", "p0")
			a.Health, a.HealthReason = tc.pods, "message"
			sample := func(status driver.HealthStatus, reason string) []driver.Sample {
				if status == none {
					return nil
				}
				return []driver.Sample{{
					Driver: id.Driver, Pool: id.Pool, Device: id.Device, Readings: []driver.Reading{status.Reading(jointest.Start())},
					HealthReason: reason,
				}}
			}
			result := join.Join(join.Input{
				View: podresources.View{Allocations: []podresources.Allocation{a}, At: jointest.Start()},
				Inventory: driver.Inventory{id: {
					Health: tc.slice, Taints: []driver.Taint{
						{Key: "k", Value: "v", Effect: "NoSchedule", Health: tc.taint}, {Key: "other"},
					},
				}},
				Sources: []join.SourceSamples{
					{Name: "a", Samples: sample(tc.source, "library")}, {Name: "health", Samples: sample(tc.stream, "stream")},
				},
			})
			got := ""
			for _, r := range result.Devices[0].Readings {
				got += r.Labels[0] + " of " + r.Origin.String()
			}
			expect.That(t, got == tc.want && len(result.Rejected) == 0,
				"%q, rejected %v, want %q", got, result.Rejected, tc.want)
			expect.Is(t, result.Devices[0].HealthReason, tc.reason, "because")
		})
	}
}

// A sample that has all of a device's ID is of that device alone, of whatever kind it is. One that
// is not among those that the driver lists is counted; where nothing is listed it is not.
func TestNamed(t *testing.T) {
	first, second, vfio := jointest.ID("gpu-0"), jointest.ID("gpu-0"), jointest.ID("vfio-0")
	second.Pool = "node2"
	held := jointest.Allocation("held", "claim", "p0")
	held.Device.Driver = "unlisted.example.com"
	inventory := driver.Inventory{first: {}, second: {}, vfio: {Hardware: driver.Hardware{Kind: driver.KindPassthrough}}}
	unlisted := driver.ID{Driver: held.Device.Driver, Pool: held.Device.Pool, Device: "free"}
	wrongDevice, wrongPool := jointest.ID("gpu-1"), jointest.ID("gpu-0")
	wrongPool.Pool = "node3"
	var samples []driver.Sample
	for _, id := range []driver.ID{second, vfio, held.Device, unlisted, wrongDevice, wrongPool} {
		samples = append(samples, driver.Sample{
			Driver: id.Driver, Pool: id.Pool, Device: id.Device,
			Readings: []driver.Reading{driver.HealthBad.Reading(jointest.Start())},
		})
	}
	result := join.Join(join.Input{
		View:      podresources.View{Allocations: []podresources.Allocation{held}},
		Inventory: inventory, Sources: []join.SourceSamples{{Name: "health", Samples: samples}},
	})
	got := map[driver.ID]int{}
	for i := range result.Devices {
		got[result.Devices[i].ID] = len(result.Devices[i].Readings)
	}
	expect.Equal(t, "readings", map[driver.ID]int{first: 0, second: 1, vfio: 1, held.Device: 1}, got)
	want := []driver.Rejection{{Input: "health", Reason: driver.ReasonNoMatch, Count: 2}}
	expect.Equal(t, "rejected", want, result.Rejected)
}
