// Package exporter joins who holds a device with what the device does, keeps the sums per device, claim and pod, and
// serves them.
//
// The flow is Sampler → [Join] (pure) → [Ledger] (the only state) → [Snapshot] (immutable) → scrapes.
package exporter

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Input is all that one tick knows.
type Input struct {
	View      podresources.View
	Inventory driver.Inventory
	Sources   []SourceSamples // in order of precedence: the first that reads a quantity of a device owns it
}

// SourceSamples are the newest samples of one source.
type SourceSamples struct {
	Name    string
	Samples []driver.Sample
}

// Result is who holds which device, and what it does.
type Result struct {
	View     podresources.View
	Devices  []JoinedDevice // sorted by ID, each once
	Rejected []RejectedInput
}

// RejectedInput counts readings of a source that could not be used.
type RejectedInput struct {
	Input, Reason string
	Count         int
}

// JoinedDevice is a device of the inventory, or one that somebody holds.
type JoinedDevice struct {
	ID          driver.ID
	Entry       driver.Entry // the inventory's, completed by what the sources say of the same hardware
	Parent      string       // the name of the device that this one is a part of; "" if none or unknown
	Shares      []Share      // sorted; empty: free
	Attribution Attribution  // how the device is divided among its claims
	Readings    []Reading    // sorted; each (quantity, labels) once
	Gap         Gap          // why there is no telemetry; empty: there is
}

// Reading is a reading and the source that it comes from.
type Reading struct {
	driver.Reading
	Source string

	cpus int // how many CPUs of the device it is the sum of; 0: not of CPUs
}

// Gap is the reason for which a device could not be joined with telemetry.
type Gap string

// The reasons. The ledger adds GapUnreadable, since it takes memory to know.
const (
	GapNone            Gap = ""
	GapNoInventory     Gap = "no_inventory"       // held, but no slice, CDI spec or source knows the hardware
	GapNoSource        Gap = "no_source"          // no source reads devices of this kind or driver
	GapNoMatch         Gap = "no_match"           // sources read the driver's other devices, but not this one
	GapNotInstantiated Gap = "not_instantiated"   // a partition that is possible, and nobody holds
	GapDuplicate       Gap = "duplicate_hardware" // another identity of the same hardware has the telemetry
	GapUnreadable      Gap = "unreadable"         // its source knows it, or has read it before, and can not read it now
)

// Share is one allocation of a device to one claim.
type Share struct {
	podresources.Allocation
	Pods   []podresources.Pod // the distinct pods of Holders, sorted
	Weight float64            // its part of the device: the weights of a held device sum to 1; 0 for admin access
}

// Join joins allocations, inventory and samples. It is a pure function: the order of its inputs (but for the
// sources' precedence) changes nothing, and no input is changed or kept but for the strings and slices in it.
func Join(in Input) Result {
	j := joiner{rejected: map[RejectedInput]int{}}
	j.collect(in)
	for _, source := range in.Sources {
		j.match(source)
	}
	j.finish()
	return Result{View: in.View, Devices: j.devices, Rejected: j.rejections()}
}

type joiner struct {
	devices  []JoinedDevice
	facts    []deviceFacts // beside devices
	index    hardwareIndex
	byDriver map[string]bool // drivers of which a device was read
	rejected map[RejectedInput]int
}

// deviceFacts are what the joiner must remember of a device while it joins.
type deviceFacts struct {
	listed   bool // in the inventory
	held     bool // by a claim without admin access
	matched  bool // at least one sample is its own
	shadowed bool // its hardware's sample went to another identity
}

// collect makes the sorted list of devices with their shares.
func (j *joiner) collect(in Input) {
	allocations := in.View.Allocations
	ids := make([]driver.ID, 0, len(in.Inventory)+len(allocations))
	for id := range in.Inventory {
		ids = append(ids, id)
	}
	for i := range allocations {
		if _, ok := in.Inventory[allocations[i].Device]; !ok {
			ids = append(ids, allocations[i].Device)
		}
	}
	slices.SortFunc(ids, driver.ID.Compare)
	ids = slices.Compact(ids)

	position := make(map[driver.ID]int, len(ids))
	j.devices = make([]JoinedDevice, len(ids))
	j.facts = make([]deviceFacts, len(ids))
	for i, id := range ids {
		entry, listed := in.Inventory[id]
		j.devices[i] = JoinedDevice{ID: id, Entry: entry}
		j.facts[i].listed = listed
		position[id] = i
	}
	for i := range allocations {
		d := &j.devices[position[allocations[i].Device]]
		d.Shares = append(d.Shares, newShare(allocations[i]))
	}
	for i := range j.devices {
		d := &j.devices[i]
		d.Shares = mergeShares(d.Shares)
		d.Attribution = divide(d.Shares)
		j.facts[i].held = slices.ContainsFunc(d.Shares, func(s Share) bool { return !s.Admin })
	}
	j.index = newHardwareIndex(j.devices)
	j.byDriver = map[string]bool{}
}

func newShare(a podresources.Allocation) Share {
	s := Share{Allocation: a}
	for _, h := range a.Holders {
		s.Pods = append(s.Pods, h.Pod)
	}
	s.normalize()
	return s
}

func (s *Share) normalize() {
	if !slices.IsSortedFunc(s.Pods, podresources.Pod.Compare) {
		slices.SortFunc(s.Pods, podresources.Pod.Compare)
	}
	s.Pods = slices.Compact(s.Pods)
}

// mergeShares sorts the shares of a device and makes one of those that are the same allocation.
func mergeShares(shares []Share) []Share {
	if len(shares) < 2 {
		return shares
	}
	slices.SortStableFunc(shares, func(a, b Share) int { return a.Compare(b.Allocation) })
	out := shares[:1]
	for _, s := range shares[1:] {
		last := &out[len(out)-1]
		if last.Compare(s.Allocation) != 0 {
			out = append(out, s)
			continue
		}
		last.Holders = slices.Concat(last.Holders, s.Holders)
		slices.SortFunc(last.Holders, podresources.Holder.Compare)
		last.Holders = slices.Compact(last.Holders)
		last.Pods = slices.Concat(last.Pods, s.Pods)
		last.normalize()
	}
	return out
}

// match hands the samples of one source to the devices that they belong to.
func (j *joiner) match(source SourceSamples) {
	for i := range source.Samples {
		sample := &source.Samples[i]
		if cpu, ok := singleCPU(sample); ok {
			j.matchCPU(source.Name, cpu, sample)
			continue
		}
		n := j.choose(sample)
		if n < 0 {
			continue
		}
		d := &j.devices[n]
		j.facts[n].matched = true
		completeHardware(&d.Entry.Hardware, &sample.Hardware)
		for _, r := range sample.Readings {
			if reason := unusable(&r); reason != "" {
				j.reject(source.Name, reason)
				continue
			}
			d.Readings = append(d.Readings, Reading{Reading: r, Source: source.Name})
		}
	}
}

// choose returns the position of the device that a sample belongs to, -1 for none. Where several identities share the
// hardware (two drivers that publish the same GPU), the one that somebody holds has it, else the first.
func (j *joiner) choose(sample *driver.Sample) int {
	candidates := j.index.find(j.devices, sample)
	chosen := -1
	for _, n := range candidates {
		if chosen < 0 || (j.facts[n].held && !j.facts[chosen].held) {
			chosen = n
		}
	}
	for _, n := range candidates {
		if n != chosen {
			j.facts[n].shadowed = true
		}
	}
	return chosen
}

// finish settles owners of quantities, parents and gaps.
func (j *joiner) finish() {
	for i := range j.devices {
		d := &j.devices[i]
		dropPartialCPUs(d)
		j.settleOwners(d)
		if len(d.Readings) > 0 {
			j.byDriver[d.ID.Driver] = true
		}
	}
	for i := range j.devices {
		d := &j.devices[i]
		if parent := d.Entry.Parent; parent != "" {
			if n, ok := j.index.parent(j.devices, d.ID, parent); ok {
				d.Parent = j.devices[n].ID.Device
			} else {
				d.Parent = parent
			}
		}
		if len(d.Readings) == 0 {
			d.Gap = j.gap(d, j.facts[i])
		}
	}
}

func (j *joiner) gap(d *JoinedDevice, f deviceFacts) Gap {
	switch {
	case !d.Entry.Kind.Measurable():
		return GapNoSource
	case f.matched:
		return GapUnreadable
	case f.shadowed:
		return GapDuplicate
	case d.Entry.Kind == driver.KindPartition && !f.held:
		return GapNotInstantiated
	case !f.listed:
		return GapNoInventory
	case j.byDriver[d.ID.Driver]:
		return GapNoMatch
	default:
		return GapNoSource
	}
}

// settleOwners sorts the device's readings and leaves one owner to each quantity, and where the quantity's first
// label has a closed list of values (a link, an engine) to each of these: the first source, in order of precedence,
// that has a reading of it.
func (j *joiner) settleOwners(d *JoinedDevice) {
	if len(d.Readings) == 0 {
		return
	}
	type part struct {
		quantity driver.Quantity
		label    string
	}
	owner := make(map[part]string, len(d.Readings))
	kept := d.Readings[:0]
	for _, r := range d.Readings {
		p := part{quantity: r.Quantity}
		if hasClosedLabel(r.Quantity) {
			p.label = r.Labels[0]
		}
		if o, ok := owner[p]; !ok {
			owner[p] = r.Source
		} else if o != r.Source {
			continue
		}
		kept = append(kept, r)
	}
	slices.SortStableFunc(kept, compareReadings)
	d.Readings = kept[:1]
	for _, r := range kept[1:] {
		if compareReadings(r, d.Readings[len(d.Readings)-1]) == 0 {
			j.reject(r.Source, "duplicate")
			continue
		}
		d.Readings = append(d.Readings, r)
	}
}

func compareReadings(a, b Reading) int {
	return cmp.Or(
		cmp.Compare(a.Quantity, b.Quantity),
		strings.Compare(a.Labels[0], b.Labels[0]),
		strings.Compare(a.Labels[1], b.Labels[1]),
	)
}

// hasClosedLabel is Spec's knowledge without the cost of making a Spec for each reading.
func hasClosedLabel(q driver.Quantity) bool {
	switch q {
	case driver.EngineUtilization, driver.IOBytes, driver.NetworkPackets, driver.NetworkErrors, driver.NetworkDrops, driver.Errors, driver.Health:
		return true
	default:
		return false
	}
}

// unusable returns the reason for which a reading can't be believed, "" if it can. Values a little above 1 of a ratio
// (counters that were read a moment apart) become 1.
func unusable(r *driver.Reading) string {
	if r.Quantity >= driver.NumQuantities {
		return "unknown_quantity"
	}
	if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
		return "not_finite"
	}
	if r.Value < 0 && r.Quantity != driver.Temperature {
		return "negative"
	}
	if isRatio(r.Quantity) && r.Value > 1 {
		if r.Value > maxRatio {
			return "out_of_range"
		}
		r.Value = 1
	}
	for _, l := range r.Labels {
		if !utf8.ValidString(l) || len(l) > maxLabelLength {
			return "label"
		}
	}
	return ""
}

const (
	maxRatio       = 1.5 // as in the catalogue: beyond it a "ratio" is a percentage
	maxLabelLength = 512 // bytes
)

func isRatio(q driver.Quantity) bool {
	return q == driver.Utilization || q == driver.EngineUtilization || q == driver.Occupancy
}

func (j *joiner) reject(source, reason string) {
	j.rejected[RejectedInput{Input: source, Reason: reason}]++
}

func (j *joiner) rejections() []RejectedInput {
	out := make([]RejectedInput, 0, len(j.rejected))
	for r, n := range j.rejected {
		r.Count = n
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b RejectedInput) int {
		return cmp.Or(strings.Compare(a.Input, b.Input), strings.Compare(a.Reason, b.Reason))
	})
	return out
}
