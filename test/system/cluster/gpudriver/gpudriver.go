// Package gpudriver is a DRA driver for simulated GPUs. It has the same name as the example driver
// of kubernetes-sigs and publishes devices in the same form.
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
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices.
const Name = "gpu.example.com"

// Files are the files that tell a running driver what to simulate. SetNames writes them. A file
// that does not exist names no device.
type Files struct {
	Unhealthy string // The names of the unhealthy devices.
	Replaced  string // The names of the devices of type "gpu" whose UUID is that of Replacement.
}

// Driver returns the driver of a node.
func Driver(node string, files Files) plugin.Driver {
	return plugin.Driver{
		Name: Name, Classes: classes(), Slices: resourceSlices(),
		Republish: func(ctx context.Context, publish func([]resourceslice.Slice) error) error {
			return republish(ctx, files.Replaced, publish)
		},
		Health:      health{node: node, unhealthy: files.Unhealthy}.watch,
		Environment: func(n int, device string) []string { return []string{fmt.Sprintf("GPU_DEVICE_%d=%s", n, device)} },
	}
}

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

// SetNames writes the names of devices to one of the files in Files. It replaces the earlier names.
func SetNames(path string, devices ...string) error {
	if err := os.WriteFile(path+".tmp", []byte(strings.Join(devices, "\n")), 0o600); err != nil {
		return fmt.Errorf("write the names of devices: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("rename the names of devices: %w", err)
	}
	return nil
}

// readNames returns the names in a file that SetNames wrote, or none if the file does not exist.
func readNames(path string) ([]string, error) {
	content, err := os.ReadFile(filepath.Clean(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the names of devices: %w", err)
	}
	return strings.Fields(string(content)), nil
}

// replacedEvery is the interval at which the names of replaced devices are read.
const replacedEvery = 100 * time.Millisecond

// republish publishes the devices again whenever the names of the replaced devices change, until
// the context ends.
func republish(ctx context.Context, path string, publish func([]resourceslice.Slice) error) error {
	var published []string
	for ticker := time.NewTicker(replacedEvery); ; {
		names, err := readNames(path)
		if err != nil {
			return err
		}
		if !slices.Equal(names, published) {
			if err := publish(resourceSlices(names...)); err != nil {
				return err
			}
			published = names
		}
		select {
		case <-ctx.Done():
			ticker.Stop()
			return nil
		case <-ticker.C:
		}
	}
}
