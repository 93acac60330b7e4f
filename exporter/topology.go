package exporter

import (
	"hash/maphash"
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

// topologyEvery is the time between two looks at the hardware: a source may have learnt where a
// device is, and paths that could not be read are read again.
const topologyEvery = 5 * time.Second

// topologies computes the topology of pods when the allocations or the hardware have changed.
type topologies struct {
	paths    Paths // nil: no topology is wanted
	known    map[podresources.Pod]join.Topology
	of       []podresources.Allocation // of known
	hardware uint64                    // of known; 0: not all paths could be read
	seed     maphash.Seed
	next     time.Time
}

// update returns the topologies of the pods that hold devices. It keeps the allocations.
func (t *topologies) update(
	allocations []podresources.Allocation, devices []join.Device, now time.Time,
) map[podresources.Pod]join.Topology {
	same := len(allocations) == len(t.of) && (len(t.of) == 0 || &allocations[0] == &t.of[0])
	if t.paths == nil || same && now.Before(t.next) {
		return t.known
	}
	t.next = now.Add(topologyEvery)
	hardware := t.hash(devices)
	if same && hardware == t.hardware {
		return t.known
	}
	paths, complete := t.paths.PCIPaths(addresses(devices))
	t.known, t.of, t.hardware = join.Topologies(devices, paths), allocations, hardware
	if !complete {
		t.hardware = 0
	}
	return t.known
}

// hash returns a number that changes with what the devices' positions depend on.
func (t *topologies) hash(devices []join.Device) uint64 {
	if t.seed == (maphash.Seed{}) {
		t.seed = maphash.MakeSeed()
	}
	var sum maphash.Hash
	sum.SetSeed(t.seed)
	for i := range devices {
		d := &devices[i]
		e := &d.Entry
		for _, text := range [...]string{
			d.ID.Driver, d.ID.Pool, d.ID.Device, d.Parent, string(e.Kind), e.UUID, e.PCI, e.Parent, e.PCIeRoot, e.NUMANode,
		} {
			_, _ = sum.WriteString(text)
			_ = sum.WriteByte(0)
		}
		_ = sum.WriteByte(byte(min(len(e.CPUs), 1)))
	}
	return sum.Sum64()
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
