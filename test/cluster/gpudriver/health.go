package gpudriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	healthEvery = 100 * time.Millisecond
	// healthAgain is how often the health is told though nothing changed: the kubelet takes it for unknown after 30 s.
	healthAgain = 10 * time.Second
)

// SetUnhealthy names the devices whose driver says that they are unhealthy, in the file that Driver is given.
func SetUnhealthy(path string, devices ...string) error {
	if err := os.WriteFile(path+".tmp", []byte(strings.Join(devices, "\n")), 0o600); err != nil {
		return fmt.Errorf("write the unhealthy devices: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("name the unhealthy devices: %w", err)
	}
	return nil
}

// unhealthy returns what SetUnhealthy named.
func unhealthy(path string) ([]string, error) {
	content, err := os.ReadFile(filepath.Clean(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the unhealthy devices: %w", err)
	}
	return strings.Fields(string(content)), nil
}

// health tells the kubelet how the devices are.
type health struct {
	node      string
	unhealthy string // what SetUnhealthy has written
}

// watch tells the kubelet of the health of all devices, and again when it changes.
func (h health) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var told []string
	var at time.Time
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		now, err := unhealthy(h.unhealthy)
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
				PoolName: h.node, DeviceName: slice.Devices[i].Name, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now(),
			}
			if slices.Contains(unhealthy, d.DeviceName) {
				d.Health, d.Message = kubeletplugin.HealthStatusUnhealthy, "simulated"
			}
			report.Devices = append(report.Devices, d)
		}
	}
	return report
}
