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

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

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
