package stall

import (
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Reason is why a verdict is unknown.
type Reason string

// The reasons.
const (
	Known        Reason = ""
	TooShort     Reason = "too_short"
	Idle         Reason = "idle"
	Shared       Reason = "shared"
	Part         Reason = "partition"
	NotJudged    Reason = "not_judged" // of devices whose traffic alone matters
	NoBusy       Reason = "no_utilization"
	NoPower      Reason = "no_power"
	NoEngines    Reason = "no_engines"
	NoReference  Reason = "no_reference"
	NoIdle       Reason = "no_idle_level"
	NoHost       Reason = "no_host"
	HostWorks    Reason = "host_works"
	HostSpins    Reason = "host_spins"
	Throttled    Reason = "throttled"
	Pauses       Reason = "pauses"
	Unclear      Reason = "unclear"
	RankWorks    Reason = "another_rank_works"
	RankIdles    Reason = "another_rank_idles"
	RanksUnseen  Reason = "ranks_elsewhere"
	WaitedBefore Reason = "waited_before"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		TooShort, Idle, Shared, Part, NoBusy, NoPower, NoEngines, NoReference, NoIdle, NoHost, HostWorks, HostSpins,
		Throttled, Pauses, Unclear, RankWorks, RankIdles, RanksUnseen, WaitedBefore,
	}
}

// Meaning returns the meaning of the reason as a clause without a full stop.
func (r Reason) Meaning() string {
	return map[Reason]string{
		TooShort:    "the claim has been measured for too short a time",
		Idle:        "no kernel runs: the claim waits for its host, for requests or for other ranks, or hangs there",
		Shared:      "several claims share the device",
		Part:        "the power of a partition is not measured",
		NoBusy:      "the utilization is not measured",
		NoPower:     "the power is not measured",
		NoEngines:   "nothing shows progress, and not all engines that could do the work are measured",
		NoReference: "the claim has not been seen at work, so that there is nothing to compare its power with",
		NoIdle:      "the power of the idle device is not known, which would show whether a kernel works or waits",
		NoHost:      "what the claim's pods do on the host can't be read",
		HostWorks:   "the claim's pods work on the host, for which the device may wait",
		HostSpins:   "a thread of the claim's pods runs without a pause: it waits for the device, or computes",
		Throttled:   "the device is throttled",
		Pauses:      "kernels run with pauses, and nothing else shows progress",
		Unclear: "the device does next to nothing, yet more than a kernel that waits, or on too few of its SMs " +
			"to be sure",
		RankWorks:    "it does nothing while another rank on this node works, for which it may wait",
		RankIdles:    "it does nothing while another rank on this node is idle, for which it may wait",
		RanksUnseen:  "it does nothing and may wait for a rank that is not on this node, or for a request",
		WaitedBefore: "it does nothing, as it did before for a similar time, and came out of it by itself",
	}[r]
}

// NoQuiet is the time of [Verdict.Quiet] if it is unknown whether the claim is quiet.
const NoQuiet time.Duration = -1

// Verdict is the verdict on a claim's device: it is stalled, it is not, or that is unknown.
type Verdict struct {
	// Unknown is why the verdict is unknown.
	Unknown Reason
	// Stalled has the measured signals, none of which shows progress; nil: the claim is not stalled,
	// or that is unknown.
	Stalled []Signal
	// For is the time without signs of progress.
	For time.Duration
	// Quiet is the time for which the device has been busy, and neither the device nor, as far as is
	// known, the claim's pods or other ranks have done anything; 0 while something shows progress;
	// [NoQuiet] if it is unknown.
	Quiet time.Duration

	// Missing are the engines that are not measured, for [NoEngines].
	Missing []Signal
	// Progress are the signals that last showed progress, of a claim that is not stalled.
	Progress []Signal
	// Host are the signals of the pods on the host that were read, and HostShows those that show
	// work.
	Host, HostShows []HostSignal
	// Ranks is the number of the workload's devices on the node, of which Working show progress and
	// Still show nothing.
	Ranks, Working, Still int
	// Peers are these devices if there are several, at most 16. They are not persistent.
	Peers []Peer `json:"-"`

	// Since is when the verdict became this one, and Before what it was; "": nothing.
	Since  time.Time
	Before string
}

// maxPeers limits the peers that a verdict names.
const maxPeers = 16

// Peer is a device of a workload on the node, with what it does: idle, pausing, working, unclear,
// quiet or unmeasured.
type Peer struct {
	Claim  string
	Device driver.ID
	Does   string
}

// String returns the peer in words.
func (p Peer) String() string { return p.Claim + " on " + p.Device.Device + " is " + p.Does }

// State returns the verdict in a word or two: stalled, not stalled, or unknown with its reason.
func (v *Verdict) State() string {
	switch {
	case v.Unknown != Known:
		return "unknown (" + string(v.Unknown) + ")"
	case v.Stalled != nil:
		return "stalled"
	default:
		return "not stalled"
	}
}

// Why returns the names of the signals in Stalled, and those of the host.
func (v *Verdict) Why() string {
	if v.Stalled == nil {
		return ""
	}
	names := make([]string, 0, len(v.Stalled)+len(v.Host))
	for _, s := range v.Stalled {
		names = append(names, s.String())
	}
	for _, s := range v.Host {
		names = append(names, s.String())
	}
	return strings.Join(names, ",")
}
