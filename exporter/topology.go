package exporter

import (
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Paths knows where PCI devices are in the machine. PCIPaths returns the paths of PCI addresses,
// and whether all could be read. It waits a moment at most, and reads each device once.
type Paths interface {
	PCIPaths(addresses []string) (paths map[string]driver.PCIPath, complete bool)
}

// topologyEvery is the time after which topologies are computed again although the allocations have
// not changed: a source may have learnt where a device is.
const topologyEvery = 5 * time.Second

// topologies computes the topology of pods when the allocations have changed.
type topologies struct {
	paths Paths // nil: no topology is wanted
	known map[podresources.Pod]join.Topology
	of    []podresources.Allocation // of known
	next  time.Time
}

// update returns the topologies of the pods that hold devices. It keeps the allocations.
func (t *topologies) update(
	allocations []podresources.Allocation, devices []join.Device, now time.Time,
) map[podresources.Pod]join.Topology {
	same := len(allocations) == len(t.of) && (len(t.of) == 0 || &allocations[0] == &t.of[0])
	if t.paths == nil || same && now.Before(t.next) {
		return t.known
	}
	paths, _ := t.paths.PCIPaths(addresses(devices)) // what could not be read is read the next time
	t.known, t.of, t.next = join.Topologies(devices, paths), allocations, now.Add(topologyEvery)
	return t.known
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
