package exporter

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Paths knows where PCI devices are in the machine. PCIPaths returns the paths of PCI addresses,
// and whether all could be read. It waits a moment at most.
type Paths interface {
	PCIPaths(addresses []string) (paths map[string]driver.PCIPath, complete bool)
}

// topologyEvery is the time between two looks at the hardware: a source may have learnt where a
// device is, and paths that could not be read are read again.
const topologyEvery = 5 * time.Second

// topologies computes the topology of pods when the allocations or the hardware have changed.
type topologies struct {
	paths    Paths // nil: no topology is wanted
	known    map[podresources.Pod]join.Topology
	of       []podresources.Allocation // of known
	hardware []string                  // of known; nil: not all paths could be read
	next     time.Time
}

// update returns the topologies of the pods that hold devices. It keeps the allocations.
func (t *topologies) update(
	allocations []podresources.Allocation, devices []join.Device, now time.Time,
) map[podresources.Pod]join.Topology {
	same := driver.SameSlice(allocations, t.of)
	if t.paths == nil || same && now.Before(t.next) {
		return t.known
	}
	t.next = now.Add(topologyEvery)
	hardware := hardwareOf(devices)
	if same && slices.Equal(hardware, t.hardware) {
		return t.known
	}
	paths, complete := t.paths.PCIPaths(addresses(devices))
	if !complete {
		hardware = nil
	}
	t.known, t.of, t.hardware = join.Topologies(devices, paths), allocations, hardware
	return t.known
}

// hardwareOf returns what the devices' positions depend on.
func hardwareOf(devices []join.Device) []string {
	out := make([]string, 0, 11*len(devices))
	for i := range devices {
		d := &devices[i]
		h := &d.Entry.Hardware
		out = append(out, d.ID.Driver, d.ID.Pool, d.ID.Device, d.Parent, string(h.Kind), h.UUID, h.PCI, h.Parent, h.PCIeRoot,
			h.NUMANode, strconv.Itoa(len(h.CPUs)))
	}
	return out
}

// addresses returns the PCI addresses of the held devices, and of their parents.
func addresses(devices []join.Device) []string {
	var out []string
	parents := map[driver.ID]bool{}
	held := func(d *join.Device) bool {
		return slices.ContainsFunc(d.Shares, func(s join.Share) bool { return !s.Admin })
	}
	for i := range devices {
		if d := &devices[i]; held(d) && d.Entry.Parent != "" {
			parents[driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}] = true
			out = append(out, driver.NormalizePCI(d.Entry.Parent))
		}
	}
	for i := range devices {
		if d := &devices[i]; held(d) || parents[d.ID] {
			out = append(out, d.Entry.PCI)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return slices.DeleteFunc(slices.Compact(out), func(address string) bool { return address == "" })
}
