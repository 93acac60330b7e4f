package gpudriver

import (
	"context"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	healthEvery = 100 * time.Millisecond
	// healthAgain is the interval at which unchanged health is reported again: after 30 s without a
	// report the kubelet considers it unknown.
	healthAgain = 10 * time.Second
)

// health reports the devices' health to the kubelet.
type health struct {
	node      string
	unhealthy string // The file that SetNames writes.
}

// watch reports the health of all devices at its start, after each change and every healthAgain.
func (h health) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var reported []string
	var at time.Time
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		now, err := readNames(h.unhealthy)
		if err != nil {
			return err
		}
		if at.IsZero() || time.Since(at) > healthAgain || !slices.Equal(now, reported) {
			select {
			case <-ctx.Done():
				return nil
			case reports <- h.report(now):
				reported, at = now, time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (h health) report(unhealthy []string) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	for _, slice := range resourceSlices() {
		for i := range slice.Devices {
			d := kubeletplugin.DeviceHealth{
				PoolName: h.node, DeviceName: slice.Devices[i].Name, Health: kubeletplugin.HealthStatusHealthy,
				LastUpdated: time.Now(),
			}
			if slices.Contains(unhealthy, d.DeviceName) {
				d.Health, d.Message = kubeletplugin.HealthStatusUnhealthy, "simulated"
			}
			report.Devices = append(report.Devices, d)
		}
	}
	return report
}
