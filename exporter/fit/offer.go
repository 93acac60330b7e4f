package fit

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Kind is a kind of alternative.
type Kind string

// The kinds of alternatives.
const (
	Partition    Kind = "partition"     // a partition that the driver lists
	Share        Kind = "share"         // a share of a device with consumable capacity
	FewerDevices Kind = "fewer_devices" // without the devices that the claim never used
)

// Kinds returns the kinds.
func Kinds() []Kind { return []Kind{Partition, Share, FewerDevices} }

// Alternative is something smaller that fits.
type Alternative struct {
	Kind Kind
	// Name is the profile of a partition (1g.20gb) or the name of its device; the consumed capacity of
	// a share (memory=12Gi); or "fewer devices".
	Name string
	// Device is the name of the alternative, or of the device that offers it; empty for fewer devices.
	Device string
	// Capacity is the capacity to request of a device with consumable capacity.
	Capacity []driver.Amount
	Memory   float64 // in bytes; 0 for fewer devices
}

// size is the size of a device or a share; memory is in bytes. For a partition, whole and compute
// are parts of its parent, by size and by compute.
type size struct{ whole, compute, memory float64 }

func (s size) known() bool { return s.whole > 0 && s.compute > 0 && s.memory > 0 }

// sizeOf returns the size of a device; unknown values are 0.
func sizeOf(d *join.Device) size {
	e := &d.Entry
	s := size{whole: 1, compute: 1, memory: driver.AmountOf(e.Capacity, memory)}
	if s.memory == 0 {
		i := slices.IndexFunc(d.Readings, func(r join.Reading) bool { return r.Quantity == driver.MemoryCapacity })
		if i >= 0 {
			s.memory = d.Readings[i].Value
		}
	}
	if e.Kind == driver.KindPartition {
		s.whole, s.compute = e.ParentShare, cmp.Or(e.ComputeShare, e.ParentShare)
	}
	return s
}

const memory = "memory"

// isCompute reports whether a resource measures compute: multiprocessors, or percents (HAMi).
func isCompute(name string) bool { return name == "cores" || name == "multiprocessors" }

// share returns the size of a share with the given consumed capacity. Without compute among it, the
// part of the compute is that of the memory. The part of the device is the mean of both parts, as
// in package join; 0 if the share consumes neither.
func (s size) share(of *driver.Entry, consumed []driver.Amount) size {
	sum, n, ofMemory, ofCompute := 0.0, 0, 1.0, 0.0
	for _, c := range consumed {
		whole := driver.AmountOf(of.Capacity, c.Resource)
		if whole <= 0 {
			continue
		}
		p := min(1, c.Value/whole)
		switch {
		case c.Resource == memory:
			ofMemory = p
		case isCompute(c.Resource):
			ofCompute = p
		default:
			continue
		}
		sum, n = sum+p, n+1
	}
	return size{
		whole:   s.whole * sum / float64(max(1, n)),
		compute: s.compute * cmp.Or(ofCompute, ofMemory),
		memory:  s.memory * ofMemory,
	}
}

// node is what a node offers.
type node struct {
	byID   map[driver.ID]*join.Device
	byPool map[pool][]offer // partitions, and devices with consumable capacity, sorted
}

// offer is a partition, or a device that offers shares.
type offer struct {
	*join.Device
	size size
}

type pool struct{ driver, name string }

func newNode(devices []join.Device) *node {
	n := &node{byID: make(map[driver.ID]*join.Device, len(devices)), byPool: map[pool][]offer{}}
	for i := range devices {
		d := &devices[i]
		n.byID[d.ID] = d
		if offered(&d.Entry) {
			key := pool{d.ID.Driver, d.ID.Pool}
			n.byPool[key] = append(n.byPool[key], offer{d, sizeOf(d)})
		}
	}
	return n
}

// offered reports whether a device is a partition or offers shares, and claims can get it.
func offered(e *driver.Entry) bool {
	if e.Kind != driver.KindPartition && (e.Kind != driver.KindDevice || !e.Shareable) || e.Unlisted || e.DriverGone {
		return false
	}
	return !slices.ContainsFunc(e.Taints, func(t driver.Taint) bool {
		return t.Effect == "NoSchedule" || t.Effect == "NoExecute"
	})
}

// alike reports whether equal parts of two devices are equally good: the devices have the same
// model, or are parts of the same device.
func alike(d, other *join.Device) bool {
	a, b := &d.Entry.Hardware, &other.Entry.Hardware
	return d.ID == other.ID || other.Parent == d.ID.Device || d.Parent != "" && d.Parent == other.Parent ||
		a.Model != "" && a.Model == b.Model && a.Vendor == b.Vendor
}

// smallest advises the smallest thing on the node into which the claim would have fitted.
func (n *node) smallest(d *claimDevice, margin float64) {
	best := size{whole: d.held.whole}
	for _, other := range n.byPool[pool{d.Device.Driver, d.Device.Pool}] {
		s := other.size
		fits := func() bool {
			return s.known() && d.memory <= s.memory*(1-margin) && d.activity <= s.compute*(1-margin)
		}
		alternative := Alternative{Kind: Partition, Name: cmp.Or(other.Entry.Profile, other.ID.Device)}
		// The cheap conditions first: there are as many pairs as claims times partitions.
		if !fits() || !other.Entry.Shareable && !s.smaller(best) || !alike(d.device, other.Device) {
			continue
		}
		if other.Entry.Shareable {
			if alternative, s = d.shareOf(other.Device, s, margin); !fits() || !s.smaller(best) {
				continue
			}
		}
		if veto := d.veto(s, !other.Entry.Shareable, margin); veto != NoVeto {
			if d.Reason == NothingSmaller {
				d.Veto = veto
			}
			continue
		}
		best, d.Veto = s, NoVeto
		alternative.Device, alternative.Memory = other.ID.Device, s.memory
		d.Reason, d.Alternative, d.Unused = Advised, alternative, 1-s.whole/d.held.whole
	}
	if d.Alternative.Kind == Share {
		d.Alternative.Name = shareName(d.Alternative.Capacity)
	}
}

// veto returns why a claim does not fit into a size with enough memory and compute. The bandwidth
// of memory is in proportion to its size.
func (d *claimDevice) veto(s size, partition bool, margin float64) Veto {
	switch {
	case d.Peers > PeerTraffic && partition:
		return VetoPeers
	case d.Media > EngineInUse:
		return VetoEngine
	case d.bandwidth > s.memory*(1-margin):
		return VetoBandwidth
	case d.copies > s.compute*(1-margin):
		return VetoCopies
	case s.whole > d.held.whole*(1-minSaving):
		return VetoSaving
	default:
		return NoVeto
	}
}

// shareName names a share by its consumed capacity, as Kubernetes writes it: memory=12Gi.
func shareName(consumed []driver.Amount) string {
	names := make([]string, 0, len(consumed))
	for _, c := range consumed {
		amount := resource.NewMilliQuantity(int64(math.Round(1000*c.Value)), resource.BinarySI)
		names = append(names, c.Resource+"="+amount.String())
	}
	return strings.Join(names, ",")
}

// smaller orders by part of the whole device, then by memory.
func (s size) smaller(than size) bool {
	return s.whole < than.whole || s.whole == than.whole && s.memory < than.memory
}

// shareOf returns the smallest share of a device that fits d, and the share's size. whole is the
// size of the device. Without such a share, the size is unknown.
func (d *claimDevice) shareOf(of *join.Device, whole size, margin float64) (Alternative, size) {
	activity := d.activity / (1 - margin) / whole.compute // as a part of this device's compute
	byCompute := slices.ContainsFunc(of.Entry.Capacity, func(a driver.Amount) bool { return isCompute(a.Resource) })
	a := Alternative{Kind: Share}
	for _, c := range of.Entry.Capacity {
		var needed float64
		switch {
		case c.Resource == memory && byCompute:
			needed = d.memory / (1 - margin)
		case c.Resource == memory:
			needed = max(d.memory/(1-margin), activity*c.Value)
		case isCompute(c.Resource):
			needed = activity * c.Value
		default:
			continue
		}
		amount, ok := request(&of.Entry, c, needed)
		if !ok {
			return Alternative{}, size{}
		}
		a.Capacity = append(a.Capacity, driver.Amount{Resource: c.Resource, Value: amount})
	}
	return a, whole.share(&of.Entry, a.Capacity)
}

// request returns the consumed amount of a share that needs an amount of a capacity. The device's
// policy decides; without one, the amount is rounded up. It returns false if no such share is
// possible.
func request(of *driver.Entry, capacity driver.Amount, needed float64) (float64, bool) {
	amount, ok := min(roundUp(needed, capacity.Value), capacity.Value), true
	i := slices.IndexFunc(of.Policies, func(p driver.RequestPolicy) bool { return p.Resource == capacity.Resource })
	if i >= 0 {
		p := &of.Policies[i]
		switch {
		case p.Values != nil || p.Step > 0:
			amount = needed // the policy rounds
		case p.Max > 0:
			amount = min(amount, p.Max)
		}
		amount, ok = p.Consumed(amount)
	}
	return amount, ok && amount >= needed && amount <= capacity.Value
}

// roundUp rounds an amount up to at least 1 unit: a gibibyte if the whole has one, else 1.
func roundUp(amount, whole float64) float64 {
	const gibibyte = 1 << 30
	unit := 1.0
	if whole >= gibibyte {
		unit = gibibyte
	}
	return max(1, math.Ceil(amount/unit)) * unit
}

// besides reports whether two devices were allocated to a claim for the same request.
func (d *claimDevice) besides(other *claimDevice) bool {
	return d.Claim == other.Claim && d.request == other.request &&
		d.Device.Driver == other.Device.Driver && d.Device.Pool == other.Device.Pool
}

// fewer advises a claim to do without the devices that it never used, if their memory fits into the
// memory of the others. request are the claim's devices of one request. One of them always remains.
func fewer(request []claimDevice, c Config) {
	var used, idle []*claimDevice
	for i := range request {
		d := &request[i]
		switch {
		case d.Reason != NothingSmaller || d.device.Entry.Shareable:
			return // the needs of the whole request are unknown
		case d.MaxActivity > c.IdleThreshold || d.Media > EngineInUse || d.Peers > PeerTraffic:
			used = append(used, d)
		default:
			idle = append(idle, d)
		}
	}
	slices.SortStableFunc(idle, func(a, b *claimDevice) int { return cmp.Compare(b.memory, a.memory) })
	if len(used) == 0 {
		used, idle = idle[:1], idle[1:]
	}
	for _, d := range idle {
		room := func(u *claimDevice) float64 { return u.held.memory*(1-c.Margin) - u.memory }
		to := slices.MaxFunc(used, func(a, b *claimDevice) int { return cmp.Compare(room(a), room(b)) })
		if room(to) < d.memory {
			continue
		}
		to.memory += d.memory
		d.Reason, d.Unused = Advised, 1
		d.Alternative = Alternative{Kind: FewerDevices, Name: "fewer devices"}
	}
}
