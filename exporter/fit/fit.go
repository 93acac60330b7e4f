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
	// After is how long a claim must have been measured before there is advice.
	After time.Duration
	// Margin is the part of the memory and compute of an alternative that must stay unused, from 0
	// to below 1.
	Margin float64
	// IdleThreshold is the utilization up to which a device is idle.
	IdleThreshold float64
	// MemoryEvery is how often at least the memory must have been read: a peak between two readings
	// is not seen. 0: that does not matter.
	MemoryEvery time.Duration
	// Partial says that a claim may have been measured from some time after its begin.
	Partial bool
}

const (
	// DefaultMemoryEvery is the MemoryEvery of who reads each second, with what a reading may be
	// late.
	DefaultMemoryEvery = 1500 * time.Millisecond
	// EngineInUse is the highest use from which on a claim needs an engine that decodes, encodes or
	// the like. Partitions have fewer of these than their part of the compute, or none.
	EngineInUse = 0.05
	// PeerTraffic is the rate from which on a claim needs the links between devices, in bytes per
	// second.
	PeerTraffic = 1e6
	// Growth is by which part a peak of the memory must grow for it to count as a new one. A claim
	// whose peak grew in the second half of its time may need more again.
	Growth = 0.01
	// NearPeak is by which part memory may be below its peak to be near it.
	NearPeak = 0.05
	// MinAtPeak is for which part of the time the memory must have been near its peak. Frameworks
	// keep the memory that they had once, or take all of it at first; where they give it back, the
	// next peak may be much higher.
	MinAtPeak = 0.05
	// minLifetime is how long a claim that ended must have been measured in place of Config.After:
	// what it needed is known from its begin to its end.
	minLifetime = time.Minute
	// minSaving is the part of what the claim holds that an alternative must leave.
	minSaving = 0.1
)

// Use is what a claim used of a device since it began to hold it.
type Use struct {
	Number int // the caller's, by which it knows the use again
	Claim  podresources.Claim
	Device driver.ID

	Measured time.Duration // how long both activity and memory were measured
	// Activity is the part of the whole device's compute that the claim kept busy, and did not
	// exceed in more than 0.1 % of the time. It never exceeded MaxActivity.
	Activity, MaxActivity float64
	Memory                float64 // peak, in bytes
	// AtPeak is the part of the time in which the memory was near its peak, within NearPeak.
	AtPeak float64
	// Settled is how long ago the peak grew by more than Growth.
	Settled time.Duration
	// MemoryEvery is the mean time between two readings of the memory.
	MemoryEvery time.Duration
	// Bandwidth is the part of the bandwidth of the device's memory that it did not exceed in more
	// than 0.1 % of the time; 0: none, or not measured. Copies is the highest use of the copy
	// engines.
	Bandwidth, Copies float64
	// Media is the highest use of an engine that decodes, encodes or the like, and Engine its name.
	Media  float64
	Engine string
	// Peers is the highest rate over links between devices (NVLink, XGMI), in bytes per second.
	Peers float64
	// Partial reports that the claim began before it was measured.
	Partial bool
	// Ended is what the claim had of the device when it ended; nil: it holds the device.
	Ended *join.Share
	// Contradicted reports that at some time the utilization was 0 although the device worked.
	Contradicted bool
	// Divided reports that at some time several claims held the device and it was not known what
	// each used, so that the use is a part of theirs.
	Divided bool
}

// Advice is the smallest fit for a device of a claim.
type Advice struct {
	Use
	Reason Reason // why there is no alternative; empty: there is one
	// HeldMemory is what the claim holds, in bytes. It is 0 unless Known.
	HeldMemory float64
	// NeededMemory and NeededActivity are the parts of the memory and compute which it holds that
	// the claim needs, margin included, from 0 to 1. They are 0 unless Known.
	NeededMemory, NeededActivity float64
	Alternative                  Alternative
	// Veto says why something smaller that has the memory and the compute would not do; "": nothing
	// has.
	Veto   Veto
	Unused float64 // the part of what the claim holds that the alternative leaves
}

// Known reports whether it is known what the claim holds and needs of the device.
func (a *Advice) Known() bool { return a.Reason == Advised || a.Reason == NothingSmaller }

// Reason is why there is no alternative.
type Reason string

// The reasons.
const (
	Advised        Reason = ""
	TooShort       Reason = "too_short"       // measured for less than Config.After
	NotMeasured    Reason = "not_measured"    // activity or memory is not measured
	Divided        Reason = "divided"         // several claims held it, and what each used is not known
	SeveralShares  Reason = "several_shares"  // the claim has several shares of the device, or admin access
	UnknownSize    Reason = "unknown_size"    // how much memory and compute it is, is not known
	BeganBefore    Reason = "began_before"    // the claim began before it was measured
	ReadRarely     Reason = "read_rarely"     // the memory is read less often than Config.MemoryEvery
	Growing        Reason = "growing"         // the peak of the memory grew in the last half of that time
	RarePeak       Reason = "rare_peak"       // the memory was near its peak for less than MinAtPeak of the time
	Contradicted   Reason = "contradicted"    // the activity that was read was not true
	NothingSmaller Reason = "nothing_smaller" // into which the claim would have fitted
)

// Reasons returns the reasons, without Advised.
func Reasons() []Reason {
	return []Reason{
		TooShort, NotMeasured, Divided, SeveralShares, UnknownSize, BeganBefore, ReadRarely, Growing, RarePeak,
		Contradicted, NothingSmaller,
	}
}

// Veto is why something smaller would not do.
type Veto string

// The vetoes.
const (
	NoVeto        Veto = ""
	VetoPeers     Veto = "peer_traffic" // parts of devices have no links between them
	VetoEngine    Veto = "engine"       // it may lack an engine, or share it with others
	VetoBandwidth Veto = "bandwidth"    // of its memory
	VetoCopies    Veto = "copies"       // it has fewer copy engines
	VetoSaving    Veto = "no_saving"    // it leaves less than a tenth
)

// Advise returns an advice for each use of a device that the claim holds or held, sorted by claim
// and device. devices are those of the node. It changes neither.
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

// claimDevice is what a claim has of a device.
type claimDevice struct {
	Advice
	device  *join.Device // nil: unknown, and then there is no advice
	request string
	held    size
	// activity and memory are what an alternative must have: those of the use, and the memory of
	// devices that the claim would do without. Activity is a part of the compute of the whole
	// device that the device is a part of.
	activity, memory float64
	// bandwidth is the memory that has the bandwidth which it needs, in bytes, and copies the part
	// of the whole device's copy engines.
	bandwidth, copies float64
}

// measure fills in what the claim holds and needs. It sets Reason to why there can be no advice, or
// to NothingSmaller, and returns false if the claim does not hold the device.
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
	case d.Partial && !c.Partial:
		d.Reason = BeganBefore
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

// shareOfClaim returns a share that the claim has of the device, and whether there are several.
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
