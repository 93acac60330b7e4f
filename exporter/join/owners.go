package join

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// settleOwners sorts the device's readings and keeps those of one source for each quantity: the
// first one, in order of precedence. If the first label has a closed list of values (a link, an
// engine), each value has an owner of its own.
func (j *joiner) settleOwners(d *Device) {
	d.OtherUtilization = 0
	all := d.Readings
	slices.SortFunc(all, func(a, b Reading) int {
		if c := compareReadings(&a, &b); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), cmp.Compare(a.sample, b.sample),
			compareValues(a.Reading, b.Reading))
	})
	kept := all[:0]
	for len(all) > 0 {
		n, owner := j.ownerGroup(all)
		for _, r := range all[:n] {
			switch {
			case r.precedence != owner && r.Quantity == driver.Utilization:
				d.OtherUtilization = max(d.OtherUtilization, r.Value)
			case r.precedence != owner:
			case len(kept) > 0 && compareReadings(&r, &kept[len(kept)-1]) == 0:
				j.rejectValue(r.Origin.Source, driver.ReasonDuplicate, &r.Reading)
			case len(kept) == MaxReadings:
				j.rejectValue(r.Origin.Source, driver.ReasonTooMany, &r.Reading)
			default:
				kept = append(kept, r)
			}
		}
		all = all[n:]
	}
	d.Readings = kept
}

// ownerGroup returns how many of the first sorted readings must come from one source, and the
// precedence of that source.
func (j *joiner) ownerGroup(readings []Reading) (n, owner int) {
	first := &readings[0]
	byLabel := ownedByLabel(j.catalogue.Spec(first.Quantity))
	owner = first.precedence
	for n < len(readings) && readings[n].Quantity == first.Quantity &&
		(!byLabel || readings[n].Labels[0] == first.Labels[0]) {
		owner = min(owner, readings[n].precedence)
		n++
	}
	return n, owner
}

func compareReadings(a, b *Reading) int {
	if a.Quantity != b.Quantity { // mostly true, which saves the comparison of labels
		return cmp.Compare(a.Quantity, b.Quantity)
	}
	return a.Labels.Compare(&b.Labels)
}

// Bounds of what becomes a series, far above real values: a value beyond them is an error.
const (
	maxLabelLength = 512  // bytes of a label's value
	MaxReadings    = 512  // of one device
	maxMagnitude   = 1e24 // of a reading; a counter of 64 bits ends at 1.8e19
)

// RejectReading returns why a reading of a kind of device is none, "" if it is one. It is the gate
// for the readings of all sources; the ledger has that for what earlier readings say. A ratio a
// little above 1, from counters that were read a moment apart, becomes 1.
func RejectReading(catalogue driver.Catalogue, r *driver.Reading, of driver.Kind) driver.Reason {
	if !catalogue.Has(r.Quantity) {
		return driver.ReasonUnknownQuantity
	}
	spec := catalogue.Spec(r.Quantity)
	switch {
	case spec.Derived:
		return driver.ReasonUnknownQuantity
	case math.Abs(r.Value) > maxMagnitude && !math.IsInf(r.Value, 0):
		return driver.ReasonOutOfRange
	case r.At.IsZero():
		return driver.ReasonNoTime
	case !validLabelValues(spec, &r.Labels):
		return driver.ReasonLabel
	}
	if reason := spec.Check(r.Value); reason != "" {
		return reason
	}
	if spec.IsAbsent(r.Value, of) {
		return driver.ReasonZero
	}
	if spec.Unit == "ratio" {
		r.Value = min(r.Value, 1)
	}
	return ""
}

// validLabelValues reports whether a quantity may have these labels: no more than it has, and only
// values of the list if it is closed.
func validLabelValues(spec *driver.Spec, labels *driver.Labels) bool {
	for i, value := range labels {
		switch {
		case i >= len(spec.Labels):
			if value != "" {
				return false
			}
		case spec.Labels[i].Values != nil:
			if !spec.Labels[i].Accepts(value) {
				return false
			}
		case !validLabel(value):
			return false
		}
	}
	return true
}

// ownedByLabel reports whether different sources may own different values of the quantity's first
// label: the label has a closed list of values that do not exclude each other, as the statuses of
// health do.
func ownedByLabel(spec *driver.Spec) bool {
	return !spec.State && len(spec.Labels) > 0 && spec.Labels[0].Values != nil
}

// validLabel reports whether a text may be a label's value: short enough, UTF-8, and without
// control characters, which would act on a reader's terminal. Line ends are allowed, since every
// format escapes them.
func validLabel(s string) bool {
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	return len(s) <= maxLabelLength && utf8.ValidString(s) && !strings.ContainsFunc(s, control)
}

// cleanHolders returns the holders, sorted, each once. Only pods of the claim's namespace count,
// since no others can refer to the claim. It does not change its argument.
func cleanHolders(a *podresources.Allocation) []podresources.Holder {
	foreign := func(h podresources.Holder) bool { return h.Namespace != a.Claim.Namespace }
	if !slices.ContainsFunc(a.Holders, foreign) && slices.IsSortedFunc(a.Holders, compareHolders) {
		return a.Holders
	}
	return sortedHolders(slices.DeleteFunc(slices.Clone(a.Holders), foreign))
}

// sortedHolders sorts holders, and removes repeated ones.
func sortedHolders(holders []podresources.Holder) []podresources.Holder {
	slices.SortFunc(holders, compareHolders)
	return slices.Compact(holders)
}

// compareHolders sorts holders in the same row of dra_pod_claim_info next to each other.
func compareHolders(a, b podresources.Holder) int {
	return cmp.Or(
		a.Pod.Compare(b.Pod), strings.Compare(a.Container, b.Container),
		strings.Compare(a.ClaimName, b.ClaimName), strings.Compare(a.UID, b.UID),
	)
}

// Origin is where a value is from: the source that reads it, and what was computed from its
// readings.
type Origin struct {
	Source   string
	Computed Computed
}

// Computed are the steps from readings to a value, in their order. 0: the value was read.
type Computed uint8

// The steps.
const (
	Estimated Computed = 1 << iota // by the source
	Integral                       // of a gauge: there is no hardware counter
	Divided                        // a part of the value of the device's parent
	// DividedByShare is a part in proportion to the size of the partition, whose activity is unknown.
	DividedByShare
)

// steps are the texts of the steps.
func steps() [4]string {
	return [...]string{" (estimate)", " (integral of its gauge)", " (divided)", " (divided by share)"}
}

// String returns the source, and each step in parentheses.
func (o Origin) String() string {
	var text strings.Builder
	text.WriteString(o.Source)
	for i, step := range steps() {
		if o.Computed&(1<<i) != 0 {
			text.WriteString(step)
		}
	}
	return text.String()
}

// ParseOrigin is the inverse of String.
func ParseOrigin(text string) Origin {
	for i, step := range steps() {
		if before, found := strings.CutSuffix(text, step); found {
			return ParseOrigin(before).With(1 << i)
		}
	}
	return Origin{Source: text}
}

// With returns the origin of what is computed from the value.
func (o Origin) With(step Computed) Origin { return Origin{o.Source, o.Computed | step} }

// deriveThroughput adds the throughput of the tensor cores to the readings of a device of which
// both their busy share and the clock of its SMs, with its maximum, are known. A mean of each over
// minutes does not give the mean of their product, so it is computed at each tick.
func (j *joiner) deriveThroughput(d *Device) {
	if !j.catalogue.Has(driver.TensorThroughput) || len(d.Readings) >= MaxReadings {
		return
	}
	var busy, clock *Reading
	highest := 0.0
	for i := range d.Readings {
		switch r := &d.Readings[i]; {
		case r.Quantity == driver.EngineUtilization && r.Labels[0] == "tensor":
			busy = r
		case r.Quantity == driver.Clock && isSM(r.Labels[0]) && (clock == nil || r.Labels[0] == "sm"):
			clock = r
		case r.Quantity == driver.ClockMax && isSM(r.Labels[0]):
			highest = max(highest, r.Value)
		}
	}
	if busy == nil || clock == nil || highest == 0 {
		return
	}
	r := Reading{Origin: busy.Origin, Reading: driver.Reading{
		Quantity: driver.TensorThroughput, Value: busy.Value * min(1, clock.Value/highest), At: busy.At,
	}}
	at, _ := slices.BinarySearchFunc(d.Readings, r, func(a, b Reading) int { return compareReadings(&a, &b) })
	d.Readings = slices.Insert(d.Readings, at, r)
}

// isSM reports whether a clock domain is that of the SMs.
func isSM(domain string) bool { return domain == "sm" || domain == "graphics" }

// Contradiction is the evidence that a device works although its utilization is 0. DCGM's profiling
// reads 0 after some errors (XID 31). By NVML, a device that only decodes has no utilization.
type Contradiction string

// The contradictions.
const (
	NoContradiction   Contradiction = ""
	PowerContradicts  Contradiction = "power"        // it draws more than any idle device
	EngineContradicts Contradiction = "engine"       // an engine, or its memory, is busy
	SourceContradicts Contradiction = "other_source" // another source reads a utilization
)

const (
	// idlePower is the part of its power limit from which on a device is not idle. Idle GPUs with a
	// context draw up to two fifths, such as 28 W of an L4's 72 W.
	idlePower = 0.5
	// idleEngine is the use of an engine from which on a device is not idle.
	idleEngine = 0.05
	// otherUtilization is the utilization by another source from which on a device is not idle.
	otherUtilization = 0.1
)

// Meaning describes the evidence.
func (c Contradiction) Meaning() string {
	return map[Contradiction]string{
		PowerContradicts:  "its power is more than half of its limit",
		EngineContradicts: "an engine of it, or its memory, is busy", SourceContradicts: "another source reads a utilization",
	}[c]
}

// Contradiction returns the evidence against the device's utilization, if that is at most the
// threshold.
func (d *Device) Contradiction(threshold float64) Contradiction {
	var power, limit, engine float64
	known := false
	for i := range d.Readings {
		switch r := &d.Readings[i]; r.Quantity {
		case driver.Utilization:
			if r.Value > threshold {
				return NoContradiction
			}
			known = true
		case driver.Power:
			power = r.Value
		case driver.PowerLimit:
			if r.Labels[0] == "enforced" {
				limit = r.Value
			}
		case driver.EngineUtilization:
			engine = max(engine, r.Value)
		}
	}
	switch {
	case !known:
		return NoContradiction
	case engine >= max(idleEngine, threshold):
		return EngineContradicts
	case limit > 0 && power >= idlePower*limit:
		return PowerContradicts
	case d.OtherUtilization >= max(otherUtilization, threshold):
		return SourceContradicts
	default:
		return NoContradiction
	}
}

// ConflictKind is the label in dra_exporter_conflicts for devices with such evidence.
const ConflictKind = "activity"

// Sources of health that report nothing else.
const (
	healthOfPods   = "pods"
	healthOfSlices = "slices"
)

// addHealth adds health readings that do not come from sources. In order of precedence these are:
// the statuses of pods that hold the device, except unknown, which the kubelet also writes if no
// driver reports health; the attributes and taints of the device's slice; and the status unknown of
// pods. Their time is that of the kubelet's answer. A lower precedence is a higher number.
func (d *Device) addHealth(facts *deviceFacts, view *podresources.View, precedence int) {
	if view.At.IsZero() {
		return
	}
	ofPods, ofSlices := driver.HealthNone, d.Entry.Health
	for i := range d.Shares {
		s := &d.Shares[i]
		if s.Health > ofPods {
			ofPods = s.Health
			facts.noteReason(healthOfPods, s.HealthReason)
		}
	}
	for _, t := range d.Entry.Taints {
		if t.Health > ofSlices {
			ofSlices = t.Health
			facts.noteReason(healthOfSlices, t.String())
		}
	}
	add := func(status driver.HealthStatus, source string, precedence int) {
		if status != driver.HealthNone {
			from := place{precedence: precedence}
			d.Readings = append(d.Readings, Reading{Reading: status.Reading(view.At), Origin: Origin{source, 0}, place: from})
		}
	}
	pods, slice := precedence, precedence+1
	if ofPods == driver.HealthUnknown {
		pods, slice = slice, pods
	}
	add(ofPods, healthOfPods, pods)
	add(ofSlices, healthOfSlices, slice)
}

// noteReason records a source's reason for the device's health.
func (f *deviceFacts) noteReason(source, reason string) {
	if f.healthReasons == nil {
		f.healthReasons = map[string]string{}
	}
	f.healthReasons[source] = reason
}

// healthReason returns why the device is not healthy, by the source that owns its health.
func (f *deviceFacts) healthReason(d *Device) string {
	for i := range d.Readings {
		r := &d.Readings[i]
		if r.Quantity == driver.Health && r.Value > 0 && r.Labels[0] != driver.HealthGood.String() {
			if reason := f.healthReasons[r.Origin.Source]; validLabel(reason) {
				return reason
			}
		}
	}
	return ""
}

// measured reports whether any reading measures what the device does. Health does not, and neither
// do errors reported for a device that can't be read.
func measured(readings []Reading) bool {
	for i := range readings {
		if readings[i].Quantity != driver.Health && !readings[i].event {
			return true
		}
	}
	return false
}

// healthOnly reports whether a sample has readings of health only.
func healthOnly(sample *driver.Sample) bool {
	for i := range sample.Readings {
		if sample.Readings[i].Quantity != driver.Health {
			return false
		}
	}
	return len(sample.Readings) > 0
}

// MaxEvents limits the events of one device in one tick. Further ones only count in the counter.
const MaxEvents = 256

// Event is an event of a device, with the holders that it hit.
type Event struct {
	driver.Event
	// Named reports whether the event's process belongs to a known pod. If so, the event hit only the
	// holders in Pod and Claims, of which there may be none.
	Named  bool
	Pod    podresources.Pod
	Claims []podresources.Claim // the pod's claims on this device

	place
}

// events returns the events of the device's counters, ordered by time, with the holders that their
// processes belong to. If another source owns a counter, the events of this source are left out,
// since the same events would be reported twice.
func (j *joiner) events(d *Device, all []Event) []Event {
	var out []Event
	for _, e := range all {
		counted := slices.ContainsFunc(d.Readings, func(r Reading) bool {
			return r.Quantity == e.Quantity && r.Labels == e.Labels && r.place == e.place
		})
		if !counted || e.At.IsZero() || len(out) == MaxEvents {
			continue
		}
		if uid := cmp.Or(e.PodUID, j.podOf[e.PID]); e.PID != 0 && uid != "" {
			e.Named = true
			e.Pod, e.Claims = d.holdersOf(uid)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Event) int {
		return cmp.Or(
			a.At.Compare(b.At), cmp.Compare(a.Quantity, b.Quantity), slices.Compare(a.Labels[:], b.Labels[:]),
			cmp.Compare(a.PID, b.PID),
		)
	})
	return out
}

// holdersOf returns the pod with a UID, and its claims on the device, without admin access. It
// returns nothing if the pod does not hold the device.
func (d *Device) holdersOf(uid string) (pod podresources.Pod, claims []podresources.Claim) {
	for i := range d.Shares {
		s := &d.Shares[i]
		n := slices.IndexFunc(s.Holders, func(h podresources.Holder) bool { return h.UID == uid })
		if n >= 0 && !s.Admin {
			pod, claims = s.Holders[n].Pod, append(claims, s.Claim)
		}
	}
	slices.SortFunc(claims, podresources.Claim.Compare)
	return pod, slices.Compact(claims)
}
