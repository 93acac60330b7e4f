package inventory

import (
	"maps"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// piecesOf returns what a device consists of that groups devices of other drivers, nil if it is no
// such group. The composite DRA driver (openshift-psap/composite-dra-driver, pairer.go in
// pkg/synthesizer) lists such devices under a driver name of the user's choice, with the attribute
// composite/compositionName, and forwards attributes of each member as SOURCE/NAME: gpu/pciBusID,
// nic/ifName. Which ones, its configuration says.
func piecesOf(a attributes) []driver.Hardware {
	if a.text("composite/compositionName") == "" {
		return nil
	}
	bySource := map[string]*driver.Hardware{}
	for name := range a {
		source, bare, ok := strings.Cut(name, "/")
		if !ok {
			continue
		}
		piece := bySource[source]
		if piece == nil {
			piece = &driver.Hardware{}
		}
		switch bare {
		case "uuid":
			piece.UUID = a.text(name)
		case "pciBusID", "pciAddress", "pciAddr":
			piece.PCI = a.pci(name)
		case "ifName":
			piece.NetDev = a.text(name)
		case "rdmaDevice":
			piece.RDMADev = a.text(name)
		default:
			continue
		}
		bySource[source] = piece
	}
	out := []driver.Hardware{}
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		out = append(out, *bySource[source])
	}
	return out
}
