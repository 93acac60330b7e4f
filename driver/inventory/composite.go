package inventory

import (
	"maps"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// membersOf returns the members of a composite device, which groups devices of other drivers; nil
// if the device is not composite. The composite DRA driver (openshift-psap/composite-dra-driver,
// pairer.go in pkg/synthesizer) publishes such devices under a configurable driver name, with the
// attribute composite/compositionName. It forwards configured attributes of each member as
// SOURCE/NAME: gpu/pciBusID, nic/ifName.
func membersOf(a attributes) []driver.Hardware {
	if a.text("composite/compositionName") == "" {
		return nil
	}
	bySource := map[string]*driver.Hardware{}
	for name := range a {
		source, bare, ok := strings.Cut(name, "/")
		if !ok {
			continue
		}
		member := bySource[source]
		if member == nil {
			member = &driver.Hardware{}
		}
		switch bare {
		case "uuid":
			member.UUID = a.text(name)
		case "pciBusID", "pciAddress", "pciAddr":
			member.PCI = a.pci(name)
		case "ifName":
			member.NetDev = a.text(name)
		case "rdmaDevice":
			member.RDMADev = a.text(name)
		default:
			continue
		}
		bySource[source] = member
	}
	out := []driver.Hardware{}
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		out = append(out, *bySource[source])
	}
	return out
}
