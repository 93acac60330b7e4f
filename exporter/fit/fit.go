package fit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Quantile is the quantile of activity that must fit.
const Quantile = 0.999

// Config configures [Advise].
type Config struct {
	// After is the shortest time for which a claim must have been measured before there is advice.
	After time.Duration
	// Margin is the part of the alternative's memory and compute that must stay unused, from 0 to
	// below 1.
	Margin float64
	// IdleThreshold is the utilization up to which a device is idle.
	IdleThreshold float64
	// MemoryEvery is the longest allowed time between two readings of the memory, on average: a peak
	// between two readings is not seen. 0: no limit.
	MemoryEvery time.Duration
}

const (
	// DefaultMemoryEvery is MemoryEvery for readings each second, with their possible delay.
	DefaultMemoryEvery = 1500 * time.Millisecond
	// EngineInUse is the use of an engine that decodes, encodes or the like, from 0 to 1, from which
	// on the claim needs the engine. Partitions have fewer of these engines than their part of the
	// compute, or none.
	EngineInUse = 0.05
	// PeerTraffic is the traffic between devices, in bytes per second, from which on a claim needs
	// links between devices.
	PeerTraffic = 1e6
	// Growth is the part by which a peak of the memory must grow to count as a new peak. A claim whose
	// peak grew in the second half of its time may need more in future.
	Growth = 0.01
	// NearPeak is the part by which memory near its peak may be below it.
	NearPeak = 0.05
	// MinAtPeak is the part of the time for which the memory must have been near its peak. Frameworks
	// keep memory that they once had, or take all of it at first. If they give it back, the next peak
	// may be much higher.
	MinAtPeak = 0.05
	// minLifetime replaces Config.After for a claim that has ended: all of its needs are known.
	minLifetime = time.Minute
	// minSaving is the smallest part of what the claim holds that an alternative must free.
	minSaving = 0.1
)

// Use is how a claim used a device since it began to hold it.
type Use struct {
	Number int // identifies the use for the caller
	Claim  podresources.Claim
	Device driver.ID

	Measured time.Duration // for how long both activity and memory were measured
	// Activity is the part of the whole device's compute that the claim kept busy, as its 99.9 %
	// quantile over time. MaxActivity is the maximum.
	Activity, MaxActivity float64
	Memory                float64 // peak, in bytes
	// AtPeak is the part of the time in which the memory was within NearPeak of its peak.
	AtPeak float64
	// Settled is the time since the peak last grew by more than Growth.
	Settled time.Duration
	// MemoryEvery is the mean time between two readings of the memory.
	MemoryEvery time.Duration
	// Bandwidth is the used part of the device's memory bandwidth, as its 99.9 % quantile; 0: none, or
	// not measured. Copies is the highest use of the copy engines.
	Bandwidth, Copies float64
	// Media is the highest use of an engine that decodes, encodes or the like. Engine is its name.
	Media  float64
	Engine string
	// Peers is the highest rate over links between devices (NVLink, XGMI), in bytes per second.
	Peers float64
	// Partial reports that the claim began before Since, from when on it was measured: it is judged by
	// what was measured.
	Partial bool
	Since   time.Time
	// Ended is the claim's share of the device when it ended; nil: the claim holds the device.
	Ended *join.Share
	// Contradicted reports that the utilization was once 0 although the device worked.
	Contradicted bool
	// Divided reports that several claims once held the device and the use of each was unknown, so
	// that this use is a computed part.
	Divided bool
}

// Advice is the smallest fit for a claim's device.
type Advice struct {
	Use
	Reason Reason // why there is no alternative; empty: there is one
	// HeldMemory is the size of the held memory, in bytes. It is 0 unless Known.
	HeldMemory float64
	// NeededMemory and NeededActivity are the needed parts of the held memory and compute, from 0 to
	// 1, including the margin. They are 0 unless Known.
	NeededMemory, NeededActivity float64
	Alternative                  Alternative
	// Veto is why an alternative with enough memory and compute does not fit; "": there is no such
	// alternative.
	Veto   Veto
	Unused float64 // the part of what the claim holds that the alternative frees
}

// Known reports whether the claim's holding and its needs are known.
func (a *Advice) Known() bool { return a.Reason == Advised || a.Reason == NothingSmaller }

// Reason is why there is no alternative.
type Reason string

// The reasons.
const (
	Advised        Reason = ""
	TooShort       Reason = "too_short"       // measured for less than Config.After
	NotMeasured    Reason = "not_measured"    // activity or memory is not measured
	Divided        Reason = "divided"         // several claims held the device, and the use of each is unknown
	SeveralShares  Reason = "several_shares"  // the claim has several shares of the device, or admin access
	UnknownSize    Reason = "unknown_size"    // the size of its memory or compute is unknown
	ReadRarely     Reason = "read_rarely"     // the memory is read less often than Config.MemoryEvery
	Growing        Reason = "growing"         // the peak of the memory grew in the second half of the measured time
	RarePeak       Reason = "rare_peak"       // the memory was near its peak for less than MinAtPeak of the time
	Contradicted   Reason = "contradicted"    // the measured activity was wrong
	NothingSmaller Reason = "nothing_smaller" // that the claim fits into
)

// Reasons returns the reasons, without Advised.
func Reasons() []Reason {
	return []Reason{
		TooShort, NotMeasured, Divided, SeveralShares, UnknownSize, ReadRarely, Growing, RarePeak,
		Contradicted, NothingSmaller,
	}
}

// Veto is why an alternative does not fit although its memory and compute suffice.
type Veto string

// The vetoes.
const (
	NoVeto        Veto = ""
	VetoPeers     Veto = "peer_traffic" // partitions have no links to other devices
	VetoEngine    Veto = "engine"       // the alternative may lack an engine, or share it with others
	VetoBandwidth Veto = "bandwidth"    // the alternative's memory has too little bandwidth
	VetoCopies    Veto = "copies"       // the alternative has too few copy engines
	VetoSaving    Veto = "no_saving"    // the alternative frees less than a tenth
)

// Advise returns an advice for each use whose claim holds or held its device, sorted by claim and
// device. devices are those of the node. Advise does not change its arguments.
func Advise(uses []Use, devices []join.Device, c Config) []Advice {
	n := newNode(devices)
	claims := make([]claimDevice, 0, len(uses))
	for _, u := range uses {
		d := claimDevice{Advice: Advice{Use: u}, device: n.byID[u.Device]}
		if d.measure(c) {
			claims = append(claims, d)
		}
	}
	slices.SortFunc(claims, func(a, b claimDevice) int {
		return cmp.Or(
			a.Claim.Compare(b.Claim), strings.Compare(a.Device.Driver, b.Device.Driver),
			strings.Compare(a.Device.Pool, b.Device.Pool), strings.Compare(a.request, b.request), a.Device.Compare(b.Device),
		)
	})
	for rest := claims; len(rest) > 0; {
		k := 1
		for k < len(rest) && rest[k].besides(&rest[0]) {
			k++
		}
		fewer(rest[:k], c)
		rest = rest[k:]
	}
	out := make([]Advice, 0, len(claims))
	for i := range claims {
		d := &claims[i]
		if d.Reason == NothingSmaller {
			n.smallest(d, c.Margin)
		}
		out = append(out, d.Advice)
	}
	slices.SortFunc(out, func(a, b Advice) int {
		return cmp.Or(a.Claim.Compare(b.Claim), a.Device.Compare(b.Device))
	})
	return out
}

// claimDevice is a claim's holding of a device.
type claimDevice struct {
	Advice
	device  *join.Device // nil: unknown, so there is no advice
	request string
	held    size
	// activity and memory are what an alternative must provide: the needs of the use, plus the memory
	// of devices that the claim does without. activity is a part of the compute of the whole device,
	// also for a partition.
	activity, memory float64
	// bandwidth is the size of memory, in bytes, that has the needed bandwidth. copies is the needed
	// part of the whole device's copy engines.
	bandwidth, copies float64
}

// measure computes what the claim holds and needs. It sets Reason: to NothingSmaller if advice is
// possible. It returns false if the claim does not hold the device.
func (d *claimDevice) measure(c Config) bool {
	share, several := d.shareOfClaim()
	if share == nil {
		return false
	}
	d.request = share.Request
	switch {
	case several || share.Admin:
		d.Reason = SeveralShares
	case d.Measured <= 0:
		d.Reason = NotMeasured
	case d.Divided:
		d.Reason = Divided
	case d.Contradicted:
		d.Reason = Contradicted
	case c.MemoryEvery > 0 && d.MemoryEvery > c.MemoryEvery:
		d.Reason = ReadRarely
	case d.Measured < c.After && (d.Ended == nil || d.Measured < minLifetime):
		d.Reason = TooShort
	case d.Ended == nil && 2*d.Settled < d.Measured:
		d.Reason = Growing
	case d.AtPeak < MinAtPeak:
		d.Reason = RarePeak
	default:
		d.Reason = NothingSmaller
		d.measureHeld(share, c)
	}
	return true
}

// shareOfClaim returns a share of the device that the claim has, and whether it has several.
func (d *claimDevice) shareOfClaim() (share *join.Share, several bool) {
	switch {
	case d.device == nil:
		return nil, false
	case d.Ended != nil:
		return d.Ended, false
	}
	for i := range d.device.Shares {
		if s := &d.device.Shares[i]; s.Claim == d.Claim {
			several = share != nil
			share = s
		}
	}
	return share, several
}

func (d *claimDevice) measureHeld(share *join.Share, c Config) {
	device := sizeOf(d.device)
	d.held = device
	if d.device.Entry.Shareable {
		d.held = device.share(&d.device.Entry, share.Consumed)
	}
	if !d.held.known() {
		d.Reason = UnknownSize
		return
	}
	d.activity, d.memory = d.Activity*device.compute, d.Memory
	d.bandwidth, d.copies = d.Bandwidth*device.memory, d.Copies*device.compute
	d.HeldMemory = d.held.memory
	d.NeededMemory = min(1, d.memory/(1-c.Margin)/d.held.memory)
	d.NeededActivity = min(1, d.activity/(1-c.Margin)/d.held.compute)
}
