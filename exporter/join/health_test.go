package join_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
