package sysfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PCIDevices returns the sorted addresses of the devices of a vendor on the PCI bus whose class
// code has one of the prefixes, without virtual functions and devices that are passed through to
// guests. vendor and classes are hexadecimal digits without 0x (/sys/bus/pci/devices/*/vendor and
// class). It returns nil if there is no PCI bus.
func PCIDevices(root, vendor string, classes []string) []string {
	entries, err := os.ReadDir(filepath.Join(root, "bus", "pci", "devices"))
	if err != nil {
		return nil
	}
	var reader Reader
	is := func(device, attribute string, prefixes ...string) bool {
		value, err := reader.Value(WorkingDir, filepath.Join(device, attribute))
		return err == nil && slices.ContainsFunc(prefixes, func(prefix string) bool {
			return strings.HasPrefix(string(value), "0x"+prefix)
		})
	}
	var out []string
	for _, e := range entries {
		device := PCIDevice(root, e.Name())
		if !is(device, "vendor", vendor) || !is(device, "class", classes...) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(device, "physfn")); err == nil || Driver(device) == "vfio-pci" {
			continue
		}
		out = append(out, e.Name())
	}
	return out
}
