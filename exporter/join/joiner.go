package join

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Joiner joins inputs of successive ticks as [Join] does. It keeps what depends only on allocations
// and inventory, as long as the input has the same slice and the same map, which must be immutable.
// It is not safe for concurrent use. The zero value is ready to use.
type Joiner struct {
	layout   layout
	spare    [][]Reading // memory for readings, by position of the device
	standard driver.Catalogue
}

// layout is the part of the result that depends on allocations and inventory.
type layout struct {
	view      podresources.View
	inventory driver.Inventory
	devices   []Device // sorted, with their shares; nil: not computed yet
	facts     []deviceFacts
	ended     []Share
	index     hardwareIndex
}

// Join joins as [Join] does. The caller owns the result, except the shares of devices: later
// results share them, so they must not be changed.
func (m *Joiner) Join(in Input) Result {
	if !m.layout.isOf(&in) {
		m.layout = newLayout(&in)
	}
	if in.Catalogue == nil && m.standard == nil {
		m.standard = driver.Standard()
	}
	l := &m.layout
	if l.index.learned {
		l.index = newHardwareIndex(l.devices)
	}
	j := joiner{
		catalogue: in.Catalogue, podOf: in.PodOf, devices: slices.Clone(l.devices), facts: slices.Clone(l.facts),
		index: l.index, byDriver: map[string]bool{}, rejected: map[driver.Rejection]int{},
		examples: map[driver.Rejection]driver.Reading{},
	}
	if in.Catalogue == nil {
		j.catalogue = m.standard
	}
	for i := range min(len(m.spare), len(j.devices)) {
		j.devices[i].Readings = m.spare[i]
	}
	m.spare = m.spare[:0]
	sources := make([]SourceState, 0, len(in.Sources))
	for i := range in.Sources {
		j.match(in.Sources[i], i)
		sources = append(sources, in.Sources[i].state())
	}
	for i := range j.devices {
		j.devices[i].addHealth(&j.facts[i], &in.View, len(in.Sources))
	}
	l.index.learned = j.index.learned
	j.finish()
	return Result{View: in.View, Devices: j.devices, Ended: l.ended, Rejected: j.rejections(), Sources: sources}
}

// Recycle removes the readings from the last result's devices, and reuses their memory.
func (m *Joiner) Recycle(last *Result) {
	m.spare = m.spare[:0]
	for i := range last.Devices {
		m.spare = append(m.spare, last.Devices[i].Readings[:0])
		last.Devices[i].Readings = nil
	}
}

// isOf reports whether the layout is valid for an input.
func (l *layout) isOf(in *Input) bool {
	return l.devices != nil && driver.SameSlice(in.View.Allocations, l.view.Allocations) &&
		driver.SameSlice(in.View.Ended, l.view.Ended) && len(l.view.Waiting) == 0 && len(in.View.Waiting) == 0 &&
		driver.SameMap(in.Inventory, l.inventory)
}

// newLayout computes the sorted list of devices with their shares.
func newLayout(in *Input) layout {
	shares := sharesOf(in.View.Allocations, podresources.Allocation.Compare)
	ids := idsOf(in, shares)
	l := layout{
		view: in.View, inventory: in.Inventory, devices: make([]Device, len(ids)), facts: make([]deviceFacts, len(ids)),
		// Successive claims of the same name have shares of their own.
		ended: sharesOf(in.View.Ended, func(a, b podresources.Allocation) int {
			return cmp.Or(a.Compare(b), strings.Compare(a.ClaimUID, b.ClaimUID))
		}),
	}
	ended := l.ended
	for i, id := range ids {
		d, facts := &l.devices[i], &l.facts[i]
		d.ID = id
		d.Entry, facts.listed = in.Inventory[id]
		d.Entry.Unlisted = d.Entry.Unlisted || !facts.listed
		d.Shares, shares = cutShares(shares, d)
		d.Attribution = Divide(d.Shares)
		facts.held = slices.ContainsFunc(d.Shares, func(s Share) bool { return !s.Admin })
		_, ended = cutShares(ended, d)
	}
	l.index = newHardwareIndex(l.devices)
	return l
}

// cutShares cuts off the shares of a device, and of those before it, from sorted shares. CPUs that
// the device does not have are removed from its shares: a claim for devices of several NUMA nodes
// has the CPUs of all of them.
func cutShares(shares []Share, d *Device) (own, rest []Share) {
	order := func(s Share, id driver.ID) int { return s.Device.Compare(id) }
	begin, _ := slices.BinarySearchFunc(shares, d.ID, order)
	if shares = shares[begin:]; len(shares) == 0 || shares[0].Device != d.ID {
		return nil, shares
	}
	end := 0
	for ; end < len(shares) && shares[end].Device == d.ID; end++ {
		s := &shares[end]
		var cpus []int
		for _, cpu := range s.CPUs {
			if _, has := slices.BinarySearch(d.Entry.CPUs, cpu); has {
				cpus = append(cpus, cpu)
			}
		}
		s.CPUs = cpus
	}
	return slices.Clip(shares[:end]), shares[end:]
}
