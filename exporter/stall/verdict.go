package stall

import (
	"strings"
	"time"
)

// Reason is why a verdict is unknown.
type Reason string

// The reasons.
const (
	Known        Reason = ""
	TooShort     Reason = "too_short"
	Shared       Reason = "shared"
	Part         Reason = "partition"
	NoBusy       Reason = "no_utilization"
	NoPower      Reason = "no_power"
	NoEngines    Reason = "no_engines"
	NoReference  Reason = "no_reference"
	Throttled    Reason = "throttled"
	Unclear      Reason = "unclear"
	RankWorks    Reason = "another_rank_works"
	RanksUnseen  Reason = "ranks_elsewhere"
	WaitedBefore Reason = "waited_before"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		TooShort, Shared, Part, NoBusy, NoPower, NoEngines, NoReference, Throttled, Unclear, RankWorks, RanksUnseen,
		WaitedBefore,
	}
}

// Meaning returns the meaning of the reason as a clause without a full stop.
func (r Reason) Meaning() string {
	switch r {
	case TooShort:
		return "the claim has been measured for too short a time"
	case Shared:
		return "several claims share the device"
	case Part:
		return "the power of a partition is not measured"
	case NoBusy:
		return "the utilization is not measured"
	case NoPower:
		return "the power is not measured"
	case NoEngines:
		return "neither the compute pipes nor the memory traffic is measured, so that light work and a hang look alike"
	case NoReference:
		return "neither a working level of the claim nor the power limit of the device is known, or no link is measured"
	case Throttled:
		return "the device is throttled"
	case Unclear:
		return "the device is busy and does next to nothing, yet more than a kernel that spins"
	case RankWorks:
		return "it does nothing while another rank on this node works, for which it may wait"
	case RanksUnseen:
		return "it does nothing and may wait for a rank that is not on this node"
	case WaitedBefore:
		return "it does nothing, as it did before for a similar time, and came out of it by itself"
	default:
		return ""
	}
}

// Verdict is the verdict on a claim's device.
type Verdict struct {
	// Unknown is why the verdict is unknown.
	Unknown Reason
	// Stalled has the measured signals, none of which shows life; nil: the claim is not stalled, or
	// that is unknown.
	Stalled []Signal
	// For is the time without signs of life.
	For time.Duration
}

// Why returns the names of the signals in Stalled.
func (v *Verdict) Why() string {
	names := make([]string, 0, len(v.Stalled))
	for _, s := range v.Stalled {
		names = append(names, s.String())
	}
	return strings.Join(names, ",")
}
