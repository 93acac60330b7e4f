package stall

import (
	"slices"
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
	Claim  string    `json:"claim"`
	Device driver.ID `json:"device"`
	Does   string    `json:"does"`
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

// band has the levels of a signal: up to quiet it shows no progress, from life on it does. Between
// them it is unclear.
type band struct{ quiet, life float64 }

// The levels of signals, in shares of time, in shares of the time in which SMs were active, or in
// bytes per second.
const (
	// An integer pipe that is busy on few SMs may be an endless loop of one block, which never ends.
	// leastSM is the share of SMs from which on shares of their time are exact enough: one of 132 SMs
	// is .0076. wideSM is that of a kernel on most SMs, and fewSM is up to where the power of a
	// kernel is lost in that of the idle device.
	leastSM, fewSM, wideSM = 0.004, 0.03, 0.5
	// leastPipe is the lowest share of time of a pipe that is not rounding.
	leastPipe = 0.0005
	// worksPerSM and spinsPerSM are power above the idle level with a context open, as a part of the
	// range of power, by share of SMs.
	worksPerSM, spinsPerSM = 0.18, 0.12
	// leastRange is the least difference between working and idle power, as a part of the highest
	// limit, with which power is compared.
	leastRange = 0.1
	// idleDrift is how far the idle power changes with the temperature, as a part of the highest
	// limit.
	idleDrift = 0.03
	// pollsPerSM is the traffic of SMs that poll the memory of the host or of another device, with a
	// margin of 5.
	pollsPerSM = 2e10
	// leastTransfer is the traffic of a link from which on it may be a transfer of data.
	leastTransfer = 1e8
	// exchange is the traffic of a network from which on it is an exchange of data, if acknowledge is
	// reached in the other direction.
	exchange, acknowledge = 1e7, 1e5
	// quietLink is the traffic of a link up to which nothing happens.
	quietLink = 2e5
)

// bandOf returns the band of an engine, as a share of time.
func (b *book) bandOf(s Signal) band {
	active := b.level[SM] // NaN if not measured
	switch {
	case s == Int && !b.level.Measured(SM):
		return band{0.04, 0.1}
	case s == Int:
		return perSM(active)
	case slices.Contains([]Signal{Tensor, FP64, FP32, FP16}, s):
		of := band{0.001, 0.008}
		if active >= leastSM {
			small := perSM(active)
			of = band{min(of.quiet, small.quiet), min(of.life, small.life)}
		}
		return of
	case s == Memory:
		return band{0.015, 0.025}
	default:
		return band{0.005, 0.015}
	}
}

// perSM is the band of a pipe of SMs that are active for a share of their time.
func perSM(active float64) band {
	return band{max(leastPipe, 0.05*active), max(leastPipe, 0.1*active)}
}

// progress returns the signals that show progress.
func (b *book) progress() []Signal {
	shows := sorted(func(s Signal) bool {
		return b.level[s] >= b.bandOf(s).life && (s != Int || !(b.level[SM] < fewSM))
	}, Tensor, FP64, FP32, FP16, Int, Memory, Copy, Media)
	if b.networked() {
		shows = append(shows, Receive, Send)
	}
	for _, s := range [...]Signal{PCIe, Fabric} {
		if v := b.level[s]; v >= leastTransfer && v >= pollsPerSM*b.level[SM] {
			shows = append(shows, s)
		}
	}
	return shows
}

// networked reports whether network devices exchange data, which a device that only repeats what
// nobody receives does not.
func (b *book) networked() bool {
	in, out := b.level[Receive], b.level[Send]
	return max(in, out) >= exchange && min(in, out) >= acknowledge
}

// hovers reports whether a signal is above the level of a kernel that waits.
func (b *book) hovers() bool {
	above := func(s Signal) bool { return b.level[s] > b.bandOf(s).quiet }
	return slices.ContainsFunc([]Signal{Tensor, FP64, FP32, FP16, Int, Memory, Copy, Media}, above) ||
		b.level[PCIe] > max(monitoring, 2*b.ownPCIe) || b.level[Fabric] > quietLink ||
		b.level[Receive] > quietLink || b.level[Send] > quietLink
}

// unmeasured returns the engines that could do the work and are not measured.
func (b *book) unmeasured() []Signal {
	missing := func(s Signal) bool { return !b.level.Measured(s) }
	out := sorted(missing, Tensor, FP64, FP32, FP16, Memory, Media)
	if missing(Int) && missing(SM) {
		out = append(out, Int, SM)
	}
	if missing(PCIe) && missing(Fabric) {
		out = append(out, PCIe)
	}
	return out
}

// classify returns the class of the window, with a reason if it is neither working nor quiet.
func (b *book) classify(j *Judge, r *Reading, throttled bool) (class, Reason) {
	known := j.idle[b.Device]
	b.ownPCIe = known.Host
	b.missing, b.unreferenced = nil, false
	if b.shows = b.progress(); len(b.shows) > 0 && b.level.Measured(Busy) {
		return working, Known
	}
	b.shows = nil
	switch v := &b.level; {
	case !v.Measured(Busy):
		return unmeasured, NoBusy
	case v[Busy] < restingBelow:
		return resting, Idle
	case !v.Measured(Power):
		return unmeasured, NoPower
	}
	if b.missing = b.unmeasured(); len(b.missing) > 0 {
		return unmeasured, NoEngines
	}
	switch class, reason := b.compare(known, r); {
	case class == working:
		b.shows = []Signal{Power}
		return working, Known
	case throttled:
		return unclear, Throttled
	case b.level[Busy] < spinsFrom:
		return pausing, Pauses
	case b.hovers():
		return unclear, Unclear
	default:
		return class, reason
	}
}

// compare returns what the power shows, of a window without another sign of progress.
func (b *book) compare(known idle, r *Reading) (class, Reason) {
	reference := b.reference()
	most := max(r.MaxLimit, r.Limit, reference)
	low, ready, watts, active := known.Watts, known.Ready, b.level[Power], b.level[SM]
	if low == 0 {
		low = idleOfMaxLimit * most
	}
	if ready == 0 {
		ready = readyOfMaxLimit * most
	}
	compares := most > 0 && reference-ready >= leastRange*most
	wide := active >= wideSM || !b.level.Measured(SM)
	switch {
	case compares && watts-ready >= fullPower*(reference-ready):
		return working, Known
	case known.Ready > 0 && active >= wideSM && watts-ready >= worksPerSM*active*(most-ready):
		return working, Known // such as dependent loads, which use no pipe
	case !compares:
		b.unreferenced = known.Ready > 0 && b.idles(watts-known.Ready, most-known.Ready, most)
		if !b.unreferenced {
			return unclear, NoReference
		}
		return quiet, Known
	case watts-low > lowPower*(reference-low):
		return unclear, Unclear
	case known.Ready == 0 && (!b.level.Measured(Int) || wide && watts > ready):
		return unclear, NoIdle
	case active < fewSM, known.Ready > 0 && !b.spins(watts-ready, most-ready, most):
		return unclear, Unclear
	default:
		return quiet, Known
	}
}

// idles reports whether a device, of which the integer pipe and the SMs are measured, draws so
// little above its idle power that each active SM can only wait, whatever the claim did before.
func (b *book) idles(drawn, span, most float64) bool {
	active := b.level[SM]
	return active >= fewSM && b.level.Measured(Int) && drawn <= max(spinsPerSM*active*span, idleDrift/2*most)
}

// spins reports whether the power above the idle level is that of a kernel that waits.
func (b *book) spins(drawn, span, most float64) bool {
	active := b.level[SM]
	if !b.level.Measured(SM) {
		active = 1
	}
	return drawn <= max(spinsPerSM*active*span, idleDrift*most)
}
