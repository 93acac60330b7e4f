package join

import "github.com/dra-exporter/dra-exporter/driver"

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
