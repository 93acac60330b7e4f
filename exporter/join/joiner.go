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
	counts   []int     // number of readings of each device in the last result
	readings []Reading // memory for readings; nil: the last result uses it
	lent     []Reading // that memory, while the last result uses it
	standard driver.Catalogue
}

// layout is the part of the result that depends on allocations and inventory.
type layout struct {
	allocations []podresources.Allocation
	gone        []podresources.Allocation // of View.Ended
	waiting     bool                      // some devices are about to be known as held
	inventory   driver.Inventory
	devices     []Device // sorted, with their shares; nil: not computed yet
	facts       []deviceFacts
	ended       []Share
	index       hardwareIndex
}

// Join joins as [Join] does. The caller owns the result, except the shares of devices: later
// results share them, so they must not be changed.
func (m *Joiner) Join(in Input) Result {
	if !m.layout.isOf(&in) {
		m.layout, m.counts = newLayout(&in), nil
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
	m.lend(j.devices)
	sources := make([]SourceState, 0, len(in.Sources))
	for i := range in.Sources {
		j.match(in.Sources[i], i)
		sources = append(sources, in.Sources[i].state())
	}
	for i := range j.devices {
		j.devices[i].addHealth(&j.facts[i], &in.View, len(in.Sources))
	}
	l.index.learned = j.index.learned
	m.count(j.devices)
	j.finish()
	return Result{View: in.View, Devices: j.devices, Ended: l.ended, Rejected: j.rejections(), Sources: sources}
}

// Recycle removes the readings from the last result's devices, and reuses their memory.
func (m *Joiner) Recycle(last *Result) {
	for i := range last.Devices {
		last.Devices[i].Readings = nil
	}
	m.readings, m.lent = m.lent, nil
}

// lend gives each device memory for as many readings as it had in the last result.
func (m *Joiner) lend(devices []Device) {
	total := 0
	for _, n := range m.counts {
		total += n
	}
	if cap(m.readings) < total {
		m.readings = make([]Reading, total)
	}
	m.readings, m.lent = nil, m.readings[:total]
	rest := m.lent
	for i, n := range m.counts {
		devices[i].Readings, rest = rest[:0:n], rest[n:]
	}
}

// count records the number of each device's readings.
func (m *Joiner) count(devices []Device) {
	m.counts = slices.Grow(m.counts[:0], len(devices))
	for i := range devices {
		m.counts = append(m.counts, len(devices[i].Readings))
	}
}

// isOf reports whether the layout is valid for an input.
func (l *layout) isOf(in *Input) bool {
	return l.devices != nil && sameSlice(in.View.Allocations, l.allocations) && sameSlice(in.View.Ended, l.gone) &&
		!l.waiting && len(in.View.Waiting) == 0 && in.Inventory.SameMap(l.inventory)
}

func sameSlice(a, b []podresources.Allocation) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// newLayout computes the sorted list of devices with their shares.
func newLayout(in *Input) layout {
	shares := sharesOf(in.View.Allocations)
	ids := idsOf(in.Inventory, shares, in.View.Waiting)
	position := make(map[driver.ID]int, len(ids))
	devices, facts := make([]Device, len(ids)), make([]deviceFacts, len(ids))
	for i, id := range ids {
		entry, listed := in.Inventory[id]
		entry.Unlisted = entry.Unlisted || !listed
		devices[i] = Device{ID: id, Entry: entry}
		facts[i].listed = listed
		position[id] = i
	}
	for i := range shares {
		d := &devices[position[shares[i].Device]]
		d.Shares = append(d.Shares, shares[i])
	}
	for i := range devices {
		d := &devices[i]
		d.Shares = mergeShares(d.Shares)
		cutCPUs(d.Shares, d.Entry.CPUs)
		d.Attribution = Divide(d.Shares)
		facts[i].held = slices.ContainsFunc(d.Shares, func(s Share) bool { return !s.Admin })
	}
	ended := endedShares(in.View.Ended)
	for i := range ended {
		if n, known := position[ended[i].Device]; known {
			cutCPUs(ended[i:i+1], devices[n].Entry.CPUs)
		}
	}
	return layout{
		allocations: in.View.Allocations, gone: in.View.Ended, waiting: len(in.View.Waiting) > 0,
		inventory: in.Inventory, devices: devices, facts: facts, ended: ended,
		index: newHardwareIndex(devices),
	}
}

// endedShares returns the shares of ended holds. Successive claims of the same name have shares of
// their own.
func endedShares(allocations []podresources.Allocation) []Share {
	return mergeSharesBy(sharesOf(allocations), func(a, b podresources.Allocation) int {
		return cmp.Or(a.Compare(b), strings.Compare(a.ClaimUID, b.ClaimUID))
	})
}
