package exporter

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// What pods' statuses say of a device's health is shown, of whatever device; it does not make a device measured, nor one that can not be
// read any more readable.
func TestHealthOfPods(t *testing.T) {
	h := newHistory(t)
	a := h.hold("claim", "p0")
	a.Health = podresources.HealthGood
	x := h.tick(time.Second)
	h.values(x, map[[2]string]float64{
		{"dra_device_health", "status=healthy"}:                 1,
		{"dra_device_health", "status=unhealthy"}:               0,
		{"dra_device_health", "status=unknown"}:                 0,
		{"dra_exporter_unresolved_devices", "reason=no_source"}: 1,
		{"dra_device_quantity_source_info", "source=pods"}:      1,
		{"dra_claim_allocated_seconds_total", "namespace=team"}: 0,
	})
	if len(x["dra_device_up"]) > 0 {
		t.Errorf("health alone makes it up, or down: %v", x["dra_device_up"])
	}
	h.energy(1)
	h.in.View.Allocations[0].Health = podresources.HealthBad
	h.values(h.tick(time.Second), map[[2]string]float64{
		{"dra_device_up", "device=gpu-0"}:         1,
		{"dra_device_health", "status=unhealthy"}: 1,
		{"dra_device_health", "status=healthy"}:   0,
	})
	h.in.Sources[0].Samples = nil
	h.values(h.tick(time.Second), map[[2]string]float64{
		{"dra_device_up", "device=gpu-0"}:         0,
		{"dra_device_health", "status=unhealthy"}: 1,
	})
	h.free("claim")
	if x := h.tick(time.Second); len(x["dra_device_health"]) > 0 {
		t.Errorf("nobody holds it, and its health is %v", x["dra_device_health"])
	}
}

// A source that knows the health of a device alone does not measure it either, and comes before what pods say.
func TestHealthOfSource(t *testing.T) {
	h := newHistory(t)
	a := h.hold("claim", "p0")
	a.Health = podresources.HealthBad
	h.read(driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"healthy"}, Value: 1})
	x := h.tick(time.Second)
	h.values(x, map[[2]string]float64{
		{"dra_device_health", "status=healthy"}:                 1,
		{"dra_device_health", "status=unhealthy"}:               0,
		{"dra_exporter_unresolved_devices", "reason=no_source"}: 1,
	})
	if len(x["dra_device_up"]) > 0 {
		t.Errorf("health alone makes it up, or down: %v", x["dra_device_up"])
	}
}
