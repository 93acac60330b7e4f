package inventory

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// The standard attributes, defined by package deviceattribute of
// k8s.io/dynamic-resource-allocation.
const (
	standardPCIBusID = "resource.kubernetes.io/pciBusID"
	// standardNUMANode is an integer, or a list that starts with the device's own node.
	standardNUMANode = "resource.kubernetes.io/numaNode"
	// standardPCIeRoot is a string, or a list for CPUs. It does not identify a device.
	standardPCIeRoot = "resource.kubernetes.io/pcieRoot"
)

// attributes has a device's attributes by name. Names in the driver's own domain lack the domain:
// for gpu.nvidia.com, both uuid and gpu.nvidia.com/uuid are uuid.
type attributes map[string]resourcev1.DeviceAttribute

// ownAttributes returns the attributes by name without the driver's own domain.
func ownAttributes(driverName string, all map[resourcev1.QualifiedName]resourcev1.DeviceAttribute) attributes {
	out := make(attributes, len(all))
	for name, value := range all {
		bare, own := strings.CutPrefix(string(name), driverName+"/")
		if _, known := out[bare]; !known || own {
			out[bare] = value
		}
	}
	return out
}

// texts returns the strings or versions of an attribute.
func texts(a resourcev1.DeviceAttribute) []string {
	switch {
	case a.StringValue != nil:
		return []string{*a.StringValue}
	case a.VersionValue != nil:
		return []string{*a.VersionValue}
	case len(a.StringValues) > 0:
		return a.StringValues
	default:
		return a.VersionValues
	}
}

// integers returns the integers of an attribute.
func integers(a resourcev1.DeviceAttribute) []int64 {
	if a.IntValue != nil {
		return []int64{*a.IntValue}
	}
	return a.IntValues
}

// text returns the first string or version that is not blank, of the first attribute that has one.
func (a attributes) text(names ...string) string {
	for _, name := range names {
		for _, s := range texts(a[name]) {
			if s = strings.TrimSpace(s); s != "" {
				return s
			}
		}
	}
	return ""
}

// flag returns the value of a boolean attribute, false if it is absent.
func (a attributes) flag(name string) bool {
	value := a[name].BoolValue
	return value != nil && *value
}

// index returns the first integer of the first attribute whose first integer is not negative, in
// decimal.
func (a attributes) index(names ...string) string {
	for _, name := range names {
		if numbers := integers(a[name]); len(numbers) > 0 && numbers[0] >= 0 {
			return strconv.FormatInt(numbers[0], 10)
		}
	}
	return ""
}

// roots returns the PCIe root complexes of an attribute, sorted, without duplicates, separated by
// commas.
func (a attributes) roots(name string) string {
	out := slices.DeleteFunc(slices.Clone(texts(a[name])), func(root string) bool {
		domain, bus, found := strings.Cut(strings.TrimPrefix(root, "pci"), ":")
		return !found || !strings.HasPrefix(root, "pci") || !isHex(domain) || !isHex(bus)
	})
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ",")
}

func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

// pci returns the PCI address of the first attribute that has one, normalized.
func (a attributes) pci(names ...string) string {
	for _, name := range names {
		if address := driver.NormalizePCI(a.text(name)); address != "" {
			return address
		}
	}
	return ""
}

// cpus returns the CPUs of all the attributes, which are integers or lists in the kernel's format
// (0-3,8), ascending and without duplicates. Malformed values are omitted.
func (a attributes) cpus(names ...string) []int {
	var out []int
	for _, name := range names {
		for _, n := range integers(a[name]) {
			if n >= 0 && n < maxCPUs {
				out = append(out, int(n))
			}
		}
		for _, list := range texts(a[name]) {
			out = append(out, parseCPUList(list)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxCPUs is the maximum of the kernel's CONFIG_NR_CPUS.
const maxCPUs = 8192

var errCPUList = errors.New("not a list of CPUs")

// parseCPUList returns the CPUs of a list in the kernel's format
// (Documentation/admin-guide/cputopology.rst), nil if any part of it is malformed.
func parseCPUList(list string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || first > last || last >= maxCPUs || len(out) > maxCPUs {
			return nil
		}
		for cpu := first; cpu <= last; cpu++ {
			out = append(out, int(cpu))
		}
	}
	return out
}

// pciInName returns the PCI address that is a part of a device's name, written as a DNS label:
// 0000-03-00-0-0x56c0, qatvf-0000-6d-00-1. It returns "" if there is none.
func pciInName(name string) string {
	if len(name) > manifest.MaxName {
		return ""
	}
	const length = len("0000-00-00-0")
	for i := 0; i+length <= len(name); i++ {
		candidate, rest := name[i:i+length], name[i+length:]
		if candidate[4] != '-' || candidate[7] != '-' || candidate[10] != '-' {
			continue
		}
		if (i == 0 || name[i-1] == '-') && (rest == "" || rest[0] == '-') {
			if address := driver.NormalizePCI(candidate); address != "" {
				return address
			}
		}
	}
	return ""
}
