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

// SetNames names devices in one of the files that Driver reads, in place of those it named before.
func SetNames(path string, devices ...string) error {
	if err := os.WriteFile(path+".tmp", []byte(strings.Join(devices, "\n")), 0o600); err != nil {
		return fmt.Errorf("write the names of devices: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("rename the names of devices: %w", err)
	}
	return nil
}

// readNames returns the names that SetNames wrote; none if there is no such file.
func readNames(path string) ([]string, error) {
	content, err := os.ReadFile(filepath.Clean(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the names of devices: %w", err)
	}
	return strings.Fields(string(content)), nil
}

// replacedEvery is the time between two reads of the names of replaced devices.
const replacedEvery = 100 * time.Millisecond

// republish publishes the devices each time that the names in the file of replaced devices change,
// until the context ends.
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
