package gpudriver

import (
	"context"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	healthEvery = 100 * time.Millisecond
	// healthAgain is how often the health is told though nothing changed: the kubelet takes it for
	// unknown after 30 s.
	healthAgain = 10 * time.Second
)

// health tells the kubelet how the devices are.
type health struct {
	node      string
	unhealthy string // the file of SetNames
}

// watch tells the kubelet of the health of all devices, and again when it changes.
func (h health) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var told []string
	var at time.Time
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		now, err := readNames(h.unhealthy)
		if err != nil {
			return err
		}
		if at.IsZero() || time.Since(at) > healthAgain || !slices.Equal(now, told) {
			select {
			case <-ctx.Done():
				return nil
			case reports <- h.report(now):
				told, at = now, time.Now()
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
