package hostile

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/health"
	"github.com/dra-exporter/dra-exporter/driver/health/healthtest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
)

// hostileHealth returns reports about the device, none of which says that it is unhealthy.
func hostileHealth(id driver.ID) map[string][]*healthv1.DeviceHealth {
	device := func(status int32, message string) *healthv1.DeviceHealth {
		return healthtest.DeviceOf(id.Pool, id.Device, healthv1.HealthStatus(status), message)
	}
	out := map[string][]*healthv1.DeviceHealth{
		"doubled":    {device(int32(healthv1.HealthStatus_UNHEALTHY), ""), device(int32(healthv1.HealthStatus_HEALTHY), "")},
		"no device":  {{Health: healthv1.HealthStatus_UNHEALTHY}},
		"no pool":    {healthtest.DeviceOf("", id.Device, healthv1.HealthStatus_UNHEALTHY, "")},
		"no name":    {healthtest.DeviceOf(id.Pool, "", healthv1.HealthStatus_UNHEALTHY, "")},
		"other pool": {healthtest.DeviceOf(id.Pool+"x", id.Device, healthv1.HealthStatus_UNHEALTHY, "")},
		"a message":  {device(0, "\x1b[2J\nNaN "+strings.Repeat("x", 1<<16))},
		"nothing":    {},
	}
	for _, status := range []int32{-1, 3, math.MaxInt32, math.MinInt32} {
		out[fmt.Sprint("status ", status)] = []*healthv1.DeviceHealth{device(status, "")}
	}
	for _, v := range []int64{-1, 0, math.MaxInt64, math.MinInt64, math.MaxUint32} {
		late := device(int32(healthv1.HealthStatus_HEALTHY), "")
		late.HealthCheckTimeoutSeconds, late.LastUpdatedTime = v, v
		out[fmt.Sprint("times ", v)] = []*healthv1.DeviceHealth{late}
	}
	return out
}

// The health that drivers report, by their streams.
func TestHealth(t *testing.T) {
	id, root := jointest.ID("gpu-0"), healthtest.Root(t)
	plugin := &healthtest.Driver{Name: id.Driver}
	plugin.Start(t, root)
	source := health.New(root)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); source.Watch(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	n, serial := newNode(t, driver.Hardware{}), 0
	n.source = source
	report := func(devices ...*healthv1.DeviceHealth) { // and waits until the source has it
		serial++
		marker := fmt.Sprint("marker-", serial)
		plugin.Set(append(devices, healthtest.DeviceOf(id.Pool, marker, healthv1.HealthStatus_HEALTHY, ""))...)
		for begun := time.Now(); ; time.Sleep(time.Millisecond) {
			n.tick()
			if slices.ContainsFunc(n.samples, func(s driver.Sample) bool { return s.Device == marker }) {
				return
			}
			if time.Since(begun) > time.Minute {
				t.Fatal("a report did not arrive in a minute")
			}
		}
	}
	well := healthtest.DeviceOf(id.Pool, id.Device, healthv1.HealthStatus_HEALTHY, "")
	for name, devices := range hostileHealth(id) {
		report(well)
		report(devices...)
		for _, value := range statuses(n, "unhealthy") {
			if value != 0 {
				t.Errorf("%s: unhealthy", name)
			}
		}
		report(well)
		if got := statuses(n, "healthy"); !slices.Equal(got, []float64{1}) {
			t.Errorf("%s: healthy is %v afterwards", name, got)
		}
	}
	n.wantCalm()
	for _, reason := range []driver.Reason{driver.ReasonMissingPool, driver.ReasonMissingDevice, driver.ReasonDuplicate} {
		if source.Rejected()[reason] == 0 {
			t.Errorf("nothing was rejected as %s", reason)
		}
	}
}

// statuses returns the values of the device's status.
func statuses(n *node, status string) (out []float64) {
	for labels, value := range n.wantNumbers()["dra_device_health"] {
		if strings.Contains(labels, `status="`+status+`"`) {
			out = append(out, value)
		}
	}
	return out
}
