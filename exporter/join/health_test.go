package join_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// What pods' statuses say of a device's health is shown, of whatever device; it does not make a
// device measured, nor one that can not be read any more readable.
func TestHealthOfPods(t *testing.T) {
	h := exportertest.NewHistory(t)
	a := h.Hold("claim", "p0")
	a.Health = podresources.HealthGood
	x := h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{
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
	h.Energy(1)
	h.In.View.Allocations[0].Health = podresources.HealthBad
	h.Expect(h.Tick(time.Second), map[[2]string]float64{
		{"dra_device_up", "device=gpu-0"}:         1,
		{"dra_device_health", "status=unhealthy"}: 1,
		{"dra_device_health", "status=healthy"}:   0,
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

// A source that knows the health of a device alone does not measure it either, and comes before
// what pods say.
func TestHealthOfSource(t *testing.T) {
	h := exportertest.NewHistory(t)
	a := h.Hold("claim", "p0")
	a.Health = podresources.HealthBad
	h.Read(driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"healthy"}, Value: 1})
	x := h.Tick(time.Second)
	h.Expect(x, map[[2]string]float64{
		{"dra_device_health", "status=healthy"}:                 1,
		{"dra_device_health", "status=unhealthy"}:               0,
		{"dra_exporter_unresolved_devices", "reason=no_source"}: 1,
	})
	if len(x["dra_device_up"]) > 0 {
		t.Errorf("health alone makes it up, or down: %v", x["dra_device_up"])
	}
}
