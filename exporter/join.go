// Package exporter joins who holds a device with what the device does, keeps the sums per device, claim and pod, and
// serves them.
//
// The flow is Sampler → [Join] (pure) → [Ledger] (the only state) → [Snapshot] (immutable) → scrapes.
package exporter

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Input is all that one tick knows.
type Input struct {
	View      podresources.View
	Inventory driver.Inventory
	Sources   []SourceSamples // in order of precedence: the first that reads a quantity of a device owns it
	PodOf     map[int]string  // UIDs of the pods of the samples' processes
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

// RejectedInput counts rows of an input that could not be used: readings of a source, allocations and holders of
// podresources, facts of the inventory and of claims.
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
	Gap         Gap          // why there is no telemetry, whatever is known of its health; empty: there is
}

// Reading is a reading and the source that it comes from.
type Reading struct {
	driver.Reading
	Source string

	origin
	cpus int // how many CPUs of the device it is the sum of; 0: not of CPUs
}

// origin is where a reading comes from.
type origin struct{ precedence, sample int } // positions of the source, and of the sample within it

// Gap is the reason for which a device could not be joined with telemetry.
type Gap string

// The reasons. The ledger adds GapUnreadable, since it takes memory to know.
const (
	GapNone            Gap = ""
	GapNoInventory     Gap = "no_inventory"       // held, but no slice, CDI spec or source knows the hardware
	GapNoSource        Gap = "no_source"          // no source reads devices of this kind or driver
	GapNoMatch         Gap = "no_match"           // sources read the driver's other devices, but not this one
	GapNotInstantiated Gap = "not_instantiated"   // a partition that is possible, and nobody holds
	GapDriverGone      Gap = "driver_gone"        // the driver that offered it runs no more
	GapDuplicate       Gap = "duplicate_hardware" // another identity of the same hardware has the telemetry
	GapAmbiguous       Gap = "ambiguous"          // only device nodes tell its hardware, and other devices have the same ones
	GapUnreadable      Gap = "unreadable"         // its source knows it, or has read it before, and can not read it now
)

// Share is one allocation of a device to one claim.
type Share struct {
	podresources.Allocation
	Pods   []podresources.Pod // the distinct pods of Holders, sorted
	Weight float64            // its part of the device: the weights of a held device sum to 1; 0 for admin access
	Uses   []Use              // what each of Pods used of the device, as their processes tell; nil: unknown
	// ByProcess tells that it is known how busy the pods' processes were.
	ByProcess bool
}

// Join joins allocations, inventory and samples. It is a pure function: the order of its inputs (but for the
// sources' precedence) changes nothing, and no input is changed or kept but for the strings and slices in it.
func Join(in Input) Result {
	j := joiner{catalogue: newCatalogue(), podOf: in.PodOf, rejected: map[RejectedInput]int{}}
	j.collect(in)
	for i, source := range in.Sources {
		j.match(source, i)
	}
	for i := range j.devices {
		j.devices[i].tellHealth(&in.View, len(in.Sources))
	}
	j.finish()
	return Result{View: in.View, Devices: j.devices, Rejected: j.rejections()}
}

type joiner struct {
	catalogue *catalogue
	podOf     map[int]string
	devices   []JoinedDevice
	facts     []deviceFacts // beside devices
	index     hardwareIndex
	byDriver  map[string]bool // drivers of which a device was read
	rejected  map[RejectedInput]int
}

// deviceFacts are what the joiner must remember of a device while it joins.
type deviceFacts struct {
	listed   bool // in the inventory
	held     bool // by a claim without admin access
	matched  bool // at least one sample is its own
	shadowed bool // its hardware's sample went to another identity
	unsure   bool // a sample may be its own, or that of another device

	processes []driver.Process // of the first sample that has any
}

// collect makes the sorted list of devices with their shares.
func (j *joiner) collect(in Input) {
	shares := j.shares(in.View.Allocations)
	ids := j.ids(in.Inventory, shares)
	position := make(map[driver.ID]int, len(ids))
	j.devices = make([]JoinedDevice, len(ids))
	j.facts = make([]deviceFacts, len(ids))
	for i, id := range ids {
		entry, listed := in.Inventory[id]
		entry, bad := usableEntry(entry)
		j.reject("inventory", "fact", bad)
		j.devices[i] = JoinedDevice{ID: id, Entry: entry}
		j.facts[i].listed = listed
		position[id] = i
	}
	for i := range shares {
		d := &j.devices[position[shares[i].Device]]
		d.Shares = append(d.Shares, shares[i])
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

// ids returns the devices of the inventory and those that are held, sorted, each once.
func (j *joiner) ids(inventory driver.Inventory, shares []Share) []driver.ID {
	ids := make([]driver.ID, 0, len(inventory)+len(shares))
	for id := range inventory {
		if !usableID(id) {
			j.reject("inventory", "label", 1)
			continue
		}
		ids = append(ids, id)
	}
	for i := range shares {
		if _, ok := inventory[shares[i].Device]; !ok {
			ids = append(ids, shares[i].Device)
		}
	}
	slices.SortFunc(ids, driver.ID.Compare)
	return slices.Compact(ids)
}

// shares returns the usable allocations. One whose pods are all unusable is held by nobody.
func (j *joiner) shares(allocations []podresources.Allocation) []Share {
	shares := make([]Share, 0, len(allocations))
	for i := range allocations {
		a := &allocations[i]
		if !usableAllocation(a) {
			j.reject("podresources", "label", 1)
			continue
		}
		s := newShare(*a)
		j.reject("podresources", "holder", len(a.Holders)-len(s.Holders))
		j.reject("claims", "consumed", len(a.Consumed)-len(s.Consumed))
		if len(s.Holders) > 0 {
			shares = append(shares, s)
		}
	}
	return shares
}

func newShare(a podresources.Allocation) Share {
	a.Holders = usableHolders(&a)
	a.Consumed = usableAmounts(a.Consumed)
	s := Share{Allocation: a, Pods: make([]podresources.Pod, 0, len(a.Holders))}
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
		slices.SortFunc(last.Holders, compareHolders)
		last.Holders = slices.Compact(last.Holders)
		last.Pods = slices.Concat(last.Pods, s.Pods)
		last.normalize()
	}
	return out
}

// match hands the samples of one source to the devices that they belong to. precedence is the source's position.
func (j *joiner) match(source SourceSamples, precedence int) {
	samples := source.Samples
	if !slices.IsSortedFunc(samples, compareSamples) {
		samples = slices.Clone(samples)
		slices.SortFunc(samples, compareSamples)
	}
	for i := range samples {
		sample := &samples[i]
		from := origin{precedence: precedence, sample: i}
		if cpu, ok := singleCPU(sample); ok {
			if i > 0 && slices.Equal(samples[i-1].Hardware.CPUs, sample.Hardware.CPUs) {
				j.reject(source.Name, "duplicate", len(sample.Readings))
				continue
			}
			j.matchCPU(source.Name, from, cpu, sample)
			continue
		}
		n := j.choose(sample)
		if n < 0 {
			continue
		}
		j.give(n, source.Name, from, sample)
	}
}

// give hands a sample to the device that it belongs to.
func (j *joiner) give(n int, source string, from origin, sample *driver.Sample) {
	d := &j.devices[n]
	j.facts[n].matched = j.facts[n].matched || !healthOnly(sample)
	completeHardware(&d.Entry.Hardware, &sample.Hardware)
	j.index.learn(n, &sample.Hardware)
	if j.facts[n].processes == nil {
		j.facts[n].processes = sample.Processes
	}
	for _, r := range sample.Readings {
		if reason := j.catalogue.unusable(&r); reason != "" {
			j.reject(source, reason, 1)
			continue
		}
		name := source
		if r.Estimated {
			name += estimated
		}
		d.Readings = append(d.Readings, Reading{Reading: r, Source: name, origin: from})
	}
}

// estimated is added to the name of a source for what it does not measure.
const estimated = " (estimate)"

// compareSamples orders samples by what identifies their hardware, so that their order in the input does not matter
// where several claim to be the same.
func compareSamples(a, b driver.Sample) int {
	x, y := &a.Hardware, &b.Hardware
	if c := cmp.Or(
		slices.Compare(x.CPUs, y.CPUs),
		strings.Compare(a.Driver, b.Driver), strings.Compare(a.Device, b.Device),
		strings.Compare(x.UUID, y.UUID), strings.Compare(x.PCI, y.PCI),
		strings.Compare(x.Parent, y.Parent), strings.Compare(x.Instance, y.Instance),
		strings.Compare(x.NetDev, y.NetDev), strings.Compare(x.RDMADev, y.RDMADev),
	); c != 0 {
		return c
	}
	return cmp.Or(slices.Compare(x.DeviceNodes, y.DeviceNodes), slices.CompareFunc(a.Readings, b.Readings, compareValues))
}

func compareValues(a, b driver.Reading) int {
	return cmp.Or(
		cmp.Compare(a.Quantity, b.Quantity), slices.Compare(a.Labels[:], b.Labels[:]),
		a.At.Compare(b.At), cmp.Compare(a.Value, b.Value), a.Since.Compare(b.Since),
	)
}

// choose returns the position of the device that a sample belongs to, -1 for none. Where several identities share the
// hardware (two drivers that publish the same GPU), the one that somebody holds has it, else the first.
func (j *joiner) choose(sample *driver.Sample) int {
	candidates, unsure := j.index.find(j.devices, sample)
	chosen := -1
	for _, n := range unsure {
		j.facts[n].unsure = true
	}
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
		j.divideByProcess(d, j.facts[i].processes)
		if measured(d.Readings) {
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
		if !measured(d.Readings) {
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
	case d.Entry.DriverGone:
		return GapDriverGone
	case f.unsure:
		return GapAmbiguous
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
	all := d.Readings
	slices.SortFunc(all, func(a, b Reading) int {
		return cmp.Or(
			compareReadings(&a, &b), cmp.Compare(a.precedence, b.precedence), cmp.Compare(a.sample, b.sample),
			compareValues(a.Reading, b.Reading),
		)
	})
	kept := all[:0]
	for len(all) > 0 {
		n, owner := j.part(all)
		for _, r := range all[:n] {
			switch {
			case r.precedence != owner:
			case len(kept) > 0 && compareReadings(&r, &kept[len(kept)-1]) == 0:
				j.reject(r.Source, "duplicate", 1)
			case len(kept) == maxReadings:
				j.reject(r.Source, "too_many", 1)
			default:
				kept = append(kept, r)
			}
		}
		all = all[n:]
	}
	d.Readings = kept
}

// part returns how many of the sorted readings belong together to one owner, and the precedence of that.
func (j *joiner) part(readings []Reading) (n, owner int) {
	first := &readings[0]
	byLabel := j.catalogue.ownedByLabel(first.Quantity)
	owner = first.precedence
	for n < len(readings) && readings[n].Quantity == first.Quantity && (!byLabel || readings[n].Labels[0] == first.Labels[0]) {
		owner = min(owner, readings[n].precedence)
		n++
	}
	return n, owner
}

func compareReadings(a, b *Reading) int {
	return cmp.Or(
		cmp.Compare(a.Quantity, b.Quantity),
		strings.Compare(a.Labels[0], b.Labels[0]),
		strings.Compare(a.Labels[1], b.Labels[1]),
	)
}

func (j *joiner) reject(input, reason string, count int) {
	if count > 0 {
		j.rejected[RejectedInput{Input: input, Reason: reason}] += count
	}
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
