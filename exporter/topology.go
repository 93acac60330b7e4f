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

// retryPaths is the time after which paths that could not be read are read again.
const retryPaths = 30 * time.Second

// topologies computes the topology of pods when its dependencies have changed.
type topologies struct {
	paths  Paths // nil: no topology is wanted
	known  map[podresources.Pod]join.Topology
	retry  time.Time // zero: all paths are known
	before dependencies
	spare  dependencies // memory for reuse
}

// dependencies is what the topology of pods depends on.
type dependencies struct {
	hardware []placed
	shares   []int // number of pods of each share
	pods     []podresources.Pod
}

// placed is what a device's position depends on.
type placed struct {
	id                                  driver.ID
	kind                                driver.Kind
	pci, uuid, parent, parentName, numa string
	root                                string
	cpus                                bool
	holders                             int
}

// of returns the topologies of the pods that hold devices.
func (t *topologies) of(devices []join.Device, now time.Time) map[podresources.Pod]join.Topology {
	if t.paths == nil {
		return nil
	}
	d := dependencies{t.spare.hardware[:0], t.spare.shares[:0], t.spare.pods[:0]}
	for i := range devices {
		h := &devices[i].Entry.Hardware
		first := len(d.shares)
		for j := range devices[i].Shares {
			s := &devices[i].Shares[j]
			if s.Admin {
				continue
			}
			d.shares = append(d.shares, len(s.Pods))
			d.pods = append(d.pods, s.Pods...)
		}
		d.hardware = append(d.hardware, placed{
			devices[i].ID, h.Kind, h.PCI, h.UUID, h.Parent, devices[i].Parent, h.NUMANode, h.PCIeRoot, len(h.CPUs) > 0,
			len(d.shares) - first,
		})
	}
	t.spare = d
	if d.equal(&t.before) && (t.retry.IsZero() || now.Before(t.retry)) {
		return t.known
	}
	t.spare = t.before
	paths, complete := t.paths.PCIPaths(d.addresses())
	t.known, t.before, t.retry = join.Topologies(devices, paths), d, time.Time{}
	if !complete {
		t.retry = now.Add(retryPaths)
	}
	return t.known
}

func (d *dependencies) equal(other *dependencies) bool {
	return slices.Equal(d.hardware, other.hardware) && slices.Equal(d.shares, other.shares) &&
		slices.Equal(d.pods, other.pods)
}

// addresses returns the PCI addresses of the held devices, and of their parents.
func (d *dependencies) addresses() []string {
	var out []string
	parents := map[driver.ID]bool{}
	for i := range d.hardware {
		if p := &d.hardware[i]; p.holders > 0 && p.parent != "" {
			parents[driver.ID{Driver: p.id.Driver, Pool: p.id.Pool, Device: p.parentName}] = true
			out = append(out, driver.NormalizePCI(p.parent))
		}
	}
	for i := range d.hardware {
		if p := &d.hardware[i]; p.holders > 0 || parents[p.id] {
			out = append(out, p.pci)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return slices.DeleteFunc(slices.Compact(out), func(address string) bool { return address == "" })
}
