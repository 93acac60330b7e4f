package join

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Input is the input of one tick.
type Input struct {
	View      podresources.View
	Inventory driver.Inventory
	Sources   []SourceSamples // in order of precedence: the first source that reads a quantity of a device owns it
	PodOf     map[int]string  // UIDs of the pods of the samples' processes

	Catalogue driver.Catalogue // of the samples' quantities; nil: the standard one
}

// SourceSamples are the newest samples of one source.
type SourceSamples struct {
	Name    string
	Samples []driver.Sample
	// Failed is why the source could not read everything that it should; "": it could.
	Failed driver.Reason
}

// SourceState is the outcome of a source.
type SourceState struct {
	Name   string
	Failed driver.Reason // [SourceSamples.Failed]
	Read   int           // number of devices with readings
}

// Down reports whether the source has failed as a whole.
func (s *SourceState) Down() bool { return s.Failed != "" && s.Read == 0 }

func (s *SourceSamples) state() SourceState {
	out := SourceState{Name: s.Name, Failed: s.Failed}
	for i := range s.Samples {
		if of := &s.Samples[i]; !of.Unreadable && len(of.Readings) > 0 {
			out.Read++
		}
	}
	return out
}

// Result has the holders of each device, and what the devices do.
type Result struct {
	View     podresources.View
	Devices  []Device // sorted by ID, each once
	Ended    []Share  // View.Ended as shares, sorted and not divided; their devices need not be in Devices
	Rejected []driver.Rejection
	Sources  []SourceState // of Input.Sources, in their order
	// Topology is the proximity of each pod's devices, where it is known. Join leaves it empty;
	// [Topologies] computes it.
	Topology map[podresources.Pod]Topology
}

// Device is a device that is in the inventory or held.
type Device struct {
	ID          driver.ID
	Entry       driver.Entry // the inventory's, completed by sources
	Parent      string       // name of the device that this one is a part of; "" if none or unknown
	Shares      []Share      // sorted; empty: free
	Attribution Attribution  // how the device is divided among its claims
	Readings    []Reading    // sorted; each (quantity, labels) once
	Events      []Event      // of the counters among Readings
	// OtherUtilization is the highest utilization that sources other than the owner report.
	OtherUtilization float64
	// HealthReason is why the device is not healthy: the driver's message or the taint; "": it is
	// healthy, or the reason is unknown.
	HealthReason string
	Absent       []driver.Absence // reasons why quantities have no reading, of the sources that know one
	Missing      MissingReason    // why there is no telemetry (health alone is none); empty: there is some
}

// Reading is a reading and its origin.
type Reading struct {
	driver.Reading
	Origin Origin

	place
	cpus  int32 // number of CPUs whose readings it sums; 0: not a reading of CPUs
	event bool  // its source does not read the device itself, or can't at present
}

// place is the position of a reading's source and sample.
type place struct{ precedence, sample int }

// MissingReason is why a device has no telemetry.
type MissingReason string

// The reasons. The ledger also uses MissingUnreadable for devices that were once read.
const (
	MissingNone MissingReason = ""
	// held, but no slice, CDI spec or source knows the hardware
	MissingNoInventory MissingReason = "no_inventory"
	MissingNoSource    MissingReason = "no_source" // no source reads devices of this kind or driver
	// sources read the driver's other devices, but not this one
	MissingNoMatch         MissingReason = "no_match"
	MissingNotInstantiated MissingReason = "not_instantiated"   // a partition that does not exist and is not held
	MissingDriverGone      MissingReason = "driver_gone"        // its driver no longer runs
	MissingDuplicate       MissingReason = "duplicate_hardware" // another device with the same hardware has the telemetry
	// identified only by device nodes that other devices have, too
	MissingAmbiguous  MissingReason = "ambiguous"
	MissingUnreadable MissingReason = "unreadable" // its source can't read it at present
	// its source answers, and all of its values are impossible
	MissingRejected MissingReason = "rejected"
	// its source knows it, but it has nothing to read, and nothing failed
	MissingNoReadings MissingReason = "no_readings"
)

// MissingReasons returns the reasons, without MissingNone.
func MissingReasons() []MissingReason {
	return []MissingReason{
		MissingNoInventory, MissingNoSource, MissingNoMatch, MissingNotInstantiated, MissingDriverGone,
		MissingDuplicate, MissingAmbiguous, MissingUnreadable, MissingRejected,
		MissingNoReadings,
	}
}

// Join joins allocations, inventory and samples. It is a pure function. The order of its inputs
// does not matter, except for the precedence of sources. It does not change its inputs, and keeps
// only strings and slices of them.
func Join(in Input) Result { return new(Joiner).Join(in) }

type joiner struct {
	catalogue driver.Catalogue
	podOf     map[int]string
	devices   []Device
	facts     []deviceFacts // by position of the device
	index     hardwareIndex
	byDriver  map[string]bool // drivers with at least one device that was read
	rejected  map[driver.Rejection]int
	examples  map[driver.Rejection]driver.Reading // by input and reason
}

// deviceFacts is what the joiner needs to know about a device besides the result.
type deviceFacts struct {
	listed    bool // in the inventory
	held      bool // by a claim without admin access
	matched   bool // at least one sample belongs to it
	answered  bool // such a sample has readings, or reports that the device can't be read
	refused   bool // a reading of it was rejected
	versioned bool // a source has reported the version of its driver
	shadowed  bool // the sample of its hardware was given to another device
	ambiguous bool // a sample belongs to it or to another device

	healthReasons map[string]string // by source

	processes []driver.Process // of all sources
	events    []Event          // of all samples
	busy      map[int]float64  // utilization of its CPUs, if claims have CPUs of their own in it
}

// idsOf returns the IDs of devices that are in the inventory, held, or about to be known as held;
// sorted, each once.
func idsOf(in *Input, shares []Share) []driver.ID {
	ids := make([]driver.ID, 0, len(in.Inventory)+len(shares)+len(in.View.Waiting))
	ids = slices.AppendSeq(slices.AppendSeq(ids, maps.Keys(in.Inventory)), maps.Keys(in.View.Waiting))
	for i := range shares {
		ids = append(ids, shares[i].Device)
	}
	slices.SortFunc(ids, driver.ID.Compare)
	return slices.Compact(ids)
}

// logPrecedence is subtracted from the precedence of samples with driver.Sample.FromLog, so that
// they precede those of all sources.
const logPrecedence = 1 << 20

// match assigns the samples of one source to devices. precedence is the position of the source.
func (j *joiner) match(source SourceSamples, precedence int) {
	samples := source.Samples
	if !slices.IsSortedFunc(samples, compareSamples) {
		samples = slices.Clone(samples)
		slices.SortFunc(samples, compareSamples)
	}
	for i := range samples {
		sample := &samples[i]
		from := place{precedence: precedence, sample: i}
		if sample.FromLog {
			from.precedence -= logPrecedence
		}
		if cpu, ok := singleCPU(sample); ok {
			if i > 0 && slices.Equal(samples[i-1].Hardware.CPUs, sample.Hardware.CPUs) {
				j.reject(source.Name, driver.ReasonDuplicate, len(sample.Readings))
				continue
			}
			j.matchCPU(source.Name, from, cpu, sample)
			continue
		}
		var n int
		if sample.Pool != "" {
			n = j.named(source.Name, sample)
		} else {
			n = j.choose(sample)
		}
		if n < 0 {
			continue
		}
		j.give(n, source.Name, from, sample)
	}
}

// give adds a sample to a device. The first source that has a version of the driver replaces the
// slice's, which is a semantic version: 550.163.1 for 550.163.01.
func (j *joiner) give(n int, source string, from place, sample *driver.Sample) {
	d := &j.devices[n]
	if !healthOnly(sample) && !sample.FromLog {
		j.facts[n].matched = true
		j.facts[n].answered = j.facts[n].answered || sample.Unreadable || len(sample.Readings) > 0
	}
	completeHardware(&d.Entry.Hardware, &sample.Hardware)
	if own := sample.Hardware.DriverVersion; own != "" && !j.facts[n].versioned && validLabel(own) {
		d.Entry.DriverVersion, j.facts[n].versioned = own, true
	}
	j.index.learn(n, &sample.Hardware)
	j.facts[n].processes = mergeProcesses(j.facts[n].processes, sample.Processes)
	for _, e := range sample.Events {
		j.facts[n].events = append(j.facts[n].events, Event{Event: e, place: from})
	}
	for _, a := range sample.Absent {
		d.Lack(a)
	}
	for _, r := range sample.Readings {
		if reason := RejectReading(j.catalogue, &r, d.Entry.Kind); reason != "" {
			j.rejectValue(source, reason, &r)
			j.facts[n].refused = true
			if reason == driver.ReasonZero {
				d.Lack(driver.Absence{Quantity: r.Quantity, Why: driver.AbsentZero})
			}
			continue
		}
		if r.Quantity == driver.Health && sample.HealthReason != "" {
			j.facts[n].noteReason(source, sample.HealthReason)
		}
		of := Origin{Source: source}
		if r.Estimated {
			of = of.With(Estimated)
		}
		d.Readings = append(d.Readings, Reading{
			Reading: r, Origin: of, place: from, event: sample.Unreadable || sample.FromLog,
		})
	}
}

// Lack records why a device lacks a quantity, once for each quantity.
func (d *Device) Lack(a driver.Absence) {
	if !slices.ContainsFunc(d.Absent, func(known driver.Absence) bool { return known.Quantity == a.Quantity }) {
		d.Absent = append(d.Absent, a)
	}
}

// compareSamples orders samples by their hardware's identifiers, so that the order of the input
// does not matter for samples of the same hardware.
func compareSamples(a, b driver.Sample) int {
	x, y := &a.Hardware, &b.Hardware
	if c := cmp.Or(
		slices.Compare(x.CPUs, y.CPUs),
		strings.Compare(a.Driver, b.Driver), strings.Compare(a.Pool, b.Pool), strings.Compare(a.Device, b.Device),
		strings.Compare(x.UUID, y.UUID), strings.Compare(x.PCI, y.PCI),
		strings.Compare(x.Parent, y.Parent), strings.Compare(x.Instance, y.Instance),
		strings.Compare(x.NetDev, y.NetDev), strings.Compare(x.RDMADev, y.RDMADev),
		strings.Compare(x.Serial, y.Serial), strings.Compare(x.Index, y.Index),
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

// choose returns the position of a sample's device, -1 for none. Several devices can be the same
// hardware (two drivers publish the same GPU): then it is the first held one, else the first.
func (j *joiner) choose(sample *driver.Sample) int {
	candidates, unsure := j.index.find(j.devices, sample)
	chosen := -1
	for _, n := range unsure {
		j.facts[n].ambiguous = true
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

// finish chooses the source of each quantity, and finds parents and missing reasons.
func (j *joiner) finish() {
	for i := range j.devices {
		d := &j.devices[i]
		dropPartialCPUs(d)
		j.settleOwners(d)
		d.HealthReason = j.facts[i].healthReason(d)
		if !divideByCPUs(d, j.facts[i].busy) {
			j.divideByProcess(d, j.facts[i].processes)
		}
		j.deriveThroughput(d)
		d.Events = j.events(d, j.facts[i].events)
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
			d.Missing = j.missing(d, j.facts[i])
		}
	}
}

func (j *joiner) missing(d *Device, f deviceFacts) MissingReason {
	switch {
	case !d.Entry.Kind.Measurable():
		return MissingNoSource
	case f.matched && !f.answered:
		return MissingNoReadings
	case f.matched && f.refused:
		return MissingRejected
	case f.matched:
		return MissingUnreadable
	case f.shadowed:
		return MissingDuplicate
	case d.Entry.DriverGone:
		return MissingDriverGone
	case f.ambiguous:
		return MissingAmbiguous
	case d.Entry.Kind == driver.KindPartition && !f.held:
		return MissingNotInstantiated
	case !f.listed:
		return MissingNoInventory
	case j.byDriver[d.ID.Driver]:
		return MissingNoMatch
	default:
		return MissingNoSource
	}
}

func (j *joiner) reject(input string, reason driver.Reason, count int) {
	if count > 0 {
		j.rejected[driver.Rejection{Input: input, Reason: reason}] += count
	}
}

// rejectValue counts a reading that was rejected, by source, quantity and reason. The last one is
// kept as an example.
func (j *joiner) rejectValue(source string, reason driver.Reason, r *driver.Reading) {
	if !j.catalogue.Has(r.Quantity) {
		j.reject(source, reason, 1)
		return
	}
	input := driver.InputOf(source, j.catalogue.Spec(r.Quantity))
	j.reject(input, reason, 1)
	j.examples[driver.Rejection{Input: input, Reason: reason}] = *r
}

func (j *joiner) rejections() []driver.Rejection {
	out := make([]driver.Rejection, 0, len(j.rejected))
	for r, n := range j.rejected {
		r.Count = n
		if example, has := j.examples[driver.Rejection{Input: r.Input, Reason: r.Reason}]; has {
			r.Example = example.Example(j.catalogue)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, driver.Rejection.Compare)
	return out
}
