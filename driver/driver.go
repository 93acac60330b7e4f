// Package driver says what a device is and what it does: its identity under DRA, the hardware
// behind it, the catalogue of quantities that are measured on it, and [Source], which every
// vendor's reader implements.
//
// It imports the standard library alone, so that a vendor package needs nothing of ours but this.
package driver

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// ID names a device as Kubernetes DRA does: the three parts together are unique in a cluster, and a
// device's name alone says nothing (KEP-3063, KEP-4381). For an allocation of a device plugin,
// Driver is the resource name and Pool is empty.
type ID struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// String returns the ID as driver/pool/device, for logs and errors.
func (id ID) String() string { return id.Driver + "/" + id.Pool + "/" + id.Device }

// Compare orders IDs by driver, pool and device.
func (id ID) Compare(other ID) int {
	if c := strings.Compare(id.Driver, other.Driver); c != 0 {
		return c
	}
	if c := strings.Compare(id.Pool, other.Pool); c != 0 {
		return c
	}
	return strings.Compare(id.Device, other.Device)
}

// Kind says how a device can be measured at all.
type Kind uint8

// The kinds of devices.
const (
	// KindDevice is a whole device, or one of which nothing else is known.
	KindDevice Kind = iota
	// KindPartition is a part of a parent device (MIG instance, virtual function, AMD partition)
	// with an identity of its own. While it is not held, it may not exist.
	KindPartition
	// KindPassthrough is handed to a guest as it is (vfio): nothing on the host can or may read it.
	KindPassthrough
	// KindChannel is no hardware (an IMEX channel, a group of other devices): there is nothing to
	// measure.
	KindChannel
)

// Measurable reports whether any source could ever read a device of this kind.
func (k Kind) Measurable() bool { return k == KindDevice || k == KindPartition }

// Hardware is what identifies a piece of hardware outside Kubernetes, and a few facts about it. An
// empty field is unknown. UUID, PCI, NetDev, RDMADev, Serial, Index, CPUs and DeviceNodes join
// inventory and telemetry; the others inform.
type Hardware struct {
	Kind Kind

	UUID   string // vendor's UUID of this device itself, e.g. GPU-…, MIG-…; compared without regard to case
	PCI    string // address of this device itself, as NormalizePCI returns it: 0000:3b:00.0
	Parent string // UUID or PCI address of the device that this one is a part of
	// Placement says which part of the parent device this one is, for partitions that come and go
	// and have no UUID until they are there. What it looks like is between the inventory's rule for
	// a driver and the vendor's source.
	Placement string
	// Instance is the number of this part within its Parent, as the parent's vendor counts them
	// while the parts are there: of a MIG device what nvidia.Instance makes. Two sources that know
	// no better name of a part agree on it. A source that knows it only up to a slash, 7 of 7/0,
	// means the part whose number begins so, if there is but one.
	Instance string
	// ParentShare is how large a part of its parent this device is, above 0 and at most 1; 0:
	// unknown, or no part. The shares of parts that exist at the same time sum to 1 at most. A MIG
	// device has the share of its compute slices: 1g.10gb of an H100 is 1/7.
	ParentShare float64

	NetDev  string // name of the network interface in the host's (or its holder's) network namespace
	RDMADev string // name under /sys/class/infiniband
	CPUs    []int  // logical CPU numbers, ascending
	// Index is the number that the DRA driver gives the device among its devices of the node, as its
	// slices say; of Tenstorrent's, tray and place in the tray: 1/0.
	Index string

	DeviceNodes []string // paths under /dev on the host

	Vendor          string // e.g. nvidia
	Model           string // product name
	Profile         string // of a partition: what its vendor calls its size, such as 1g.10gb
	Serial          string // serial number of the board
	FirmwareVersion string // of a GPU: that of its VBIOS
	DriverVersion   string // version of the kernel driver
	CUDAVersion     string // the newest that the driver supports, such as 12.8
	NUMANode        string // decimal number
	// PCIeRoot is the PCIe root complex that the device is below, such as pci0000:80
	// (resource.kubernetes.io/pcieRoot); of CPUs those that they have, separated by commas.
	PCIeRoot string
}

// Amount is a quantity of a named resource of a device, in the resource's own base unit (bytes for
// memory).
type Amount struct {
	Resource string
	Value    float64
}

// RequestPolicy says how much of a capacity a share of a device consumes (KEP-5075,
// CapacityRequestPolicy of k8s.io/api/resource/v1): one of Values, or what lies between Min and Max
// in steps from Min. Zero fields are not set. Amounts are in the resource's own base unit.
type RequestPolicy struct {
	Resource       string
	Values         []float64 // ascending; nil: a range
	Min, Max, Step float64
}

// Consumed returns what a request for an amount consumes: the least amount that the policy allows
// from there on. It returns false if the policy allows none, and such a request is not allocated.
func (p RequestPolicy) Consumed(amount float64) (float64, bool) {
	if p.Values != nil {
		i, _ := slices.BinarySearch(p.Values, amount)
		if i == len(p.Values) {
			return 0, false
		}
		return p.Values[i], true
	}
	amount = max(amount, p.Min)
	if p.Step > 0 {
		amount = p.Min + math.Ceil((amount-p.Min)/p.Step)*p.Step
	}
	return amount, p.Max == 0 || amount <= p.Max
}

// Taint keeps, or chases, pods away from a device (KEP-5055). Effect is None, NoSchedule or
// NoExecute.
type Taint struct {
	Key, Value, Effect string
	// Rule is the name of the DeviceTaintRule that the taint comes from; empty: the device's
	// ResourceSlice.
	Rule string
	// Health is what the taint says of the device's health. Most taints say nothing.
	Health HealthStatus
}

// Source returns where the taint comes from: "slice" or "rule".
func (t Taint) Source() string {
	if t.Rule == "" {
		return "slice"
	}
	return "rule"
}

// String returns the taint as kubectl writes it, KEY=VALUE:EFFECT, without =VALUE where that is
// empty.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Entry is what an inventory knows of one device.
type Entry struct {
	Hardware
	Capacity []Amount // by resource name, each once
	// ComputeShare is the part of its parent's multiprocessors that a partition has, above 0 and at
	// most 1; 0: unknown, or no part. 1g.20gb of an H100 has 26 of 132.
	ComputeShare float64
	// Policies say what shares of the device may consume; a capacity without one may be consumed in
	// any amount.
	Policies []RequestPolicy
	Taints   []Taint
	// Health is what the attributes of its ResourceSlice say.
	Health HealthStatus
	// Local devices belong to a driver that runs on this node; others are offered to several nodes,
	// or all.
	Local bool
	// ManyNodes devices may be used from other nodes too: their slice, or they themselves, are offered
	// to all nodes, or to those that a selector matches.
	ManyNodes bool
	// Unlisted devices are in no ResourceSlice, so that no claim can ask for them: the parent of
	// static partitions, and what only CDI specs or a device plugin describe.
	Unlisted bool
	// DriverGone says that the driver that offered the device runs no more.
	DriverGone bool
	// Socketless devices need nothing done on the node (skipNodeOperations, KEP-5945): their driver
	// may have no socket here.
	Socketless bool
	// Pieces are the parts of a device that stands for devices of other drivers, which it groups, and
	// that is no hardware itself: each is known by one or more of UUID, PCI, NetDev and RDMADev.
	Pieces []Hardware
	// Shareable devices may be allocated several times (allowMultipleAllocations,
	// KEP-5075).
	Shareable bool
	// Conditional devices have binding conditions (KEP-5007): a pod that is allocated one is bound to
	// the node when the conditions are met, and holds the device before.
	Conditional bool
}

// Inventory maps devices of this node to their hardware.
type Inventory map[ID]Entry

// Is reports whether both are the same map, not only equal ones.
func (v Inventory) Is(other Inventory) bool {
	return reflect.ValueOf(v).Pointer() == reflect.ValueOf(other).Pointer()
}

// Sample is what a source read from one piece of hardware. A Sample without Readings says: this
// hardware is mine, and there is nothing of it to read; with Unreadable: I can not read it now.
type Sample struct {
	// Driver restricts the match to devices of this DRA driver; empty: any.
	Driver string
	// Device is the name of the device within Driver, for sources that are told it; empty: match by
	// Hardware.
	Device string
	// Pool is the pool of Device, for sources that are told all three parts of its ID; empty: any.
	Pool string

	Hardware Hardware
	Readings []Reading
	// HealthReason is why the health among Readings is what it is, in the driver's words; "": unknown,
	// or healthy.
	HealthReason string
	Processes    []Process
	Events       []Event // each in one sample; one that is there again is the same

	// Witness says that the source does not read the hardware, but is told of what happens to it,
	// each time when and to which process. What it counts comes before the counts of the sources that
	// are earlier in the list, and is no telemetry of the device.
	Witness bool

	// Unreadable says that the hardware can't be read now. Readings are then only what the driver
	// reported of it by itself, such as the errors of a GPU that fell off the bus.
	Unreadable bool
}

// Reading is one measured value. What was not read has no Reading: there is no zero in its place.
type Reading struct {
	Quantity  Quantity
	Estimated bool    // the source did not count or measure it, but estimates it: check and the page say so
	Labels    Labels  // the values of the quantity's labels, in their order
	Value     float64 // in the quantity's unit

	// At is the time at which the value was true, as near as the source can know it: when the
	// hardware or the vendor's software refreshed it, not when somebody asked. Reading the same At
	// twice means: nothing new.
	At time.Time

	// Since belongs to counters: when the count stood at zero, where the source knows it. A Since
	// later than the reading before marks a reset. Without it a counter that falls is taken to have
	// restarted at zero.
	Since time.Time
}

// Event is something that happened to the hardware once, which a counter among the readings of the
// same source counts too, at the latest in the next sample. It says when it was; whatever a counter
// counts beyond its events happened at an unknown time between two readings.
type Event struct {
	Quantity Quantity
	Labels   Labels // of the counter
	// At is when it happened, as near as the source can know it. Two events of one counter have
	// different times.
	At time.Time
	// PID is the process that caused it or was hit, in the host's PID namespace; 0: not told.
	PID int
	// PodUID is that of the pod of the process, if the source looked it up when it learned of the
	// event; "": by PID, at the next tick.
	PodUID string
}

// Process is one process's use of the hardware, for attribution. PID is in the host's PID
// namespace.
type Process struct {
	PID      int
	Readings []Reading // additive quantities only
}

// Source reads the devices of one kind.
//
// Sample returns what it could read, with an error for what it could not: both may be there. It
// returns soon after ctx ends, leaves no goroutine behind, and is called by one goroutine at a
// time. Hardware that is not there is no error: it returns nothing. The samples belong to the
// caller. A source is called at every tick; one for which reading is expensive reads less
// often, and returns the readings that it has with their own At.
type Source interface {
	// Name is the source's name in flags and in the label source; it is constant.
	Name() string
	Sample(ctx context.Context) ([]Sample, error)
}

// Watcher is implemented by a [Source] that follows its inputs by itself, so that Sample returns
// what is known by now and waits for nothing.
type Watcher interface {
	// Watch follows the inputs until ctx ends, and leaves no goroutine behind. It is called once, and
	// is safe for concurrent use with Sample, which finds nothing without it.
	Watch(ctx context.Context)
}

// Describer is implemented by a [Source] that knows more of its inputs than samples and errors
// say.
type Describer interface {
	// Describe returns a line for a person about each input, in a constant order. It is safe for
	// concurrent use with Sample.
	Describe() []string
}

// Resumer is implemented by a [Source] that follows a log, so that what is written to the log while
// no process reads it is counted by the next one.
type Resumer interface {
	// Position returns how far the log has been read; nil: nowhere. It is safe for concurrent use with
	// Sample.
	Position() []byte
	// Resume makes the source go on from the position that another process of the same boot had at a
	// time. It is called before Sample and Watch.
	Resume(position []byte, at time.Time)
}

// NormalizePCI returns a PCI address as the kernel writes it (domain:bus:device.function in lower
// case, the domain in four digits), accepting a missing domain, an eight-digit domain (as NVML and
// DCGM print it), upper case, and dashes or underscores for separators. It returns "" for what is
// no PCI address.
func NormalizePCI(address string) string {
	var part [4]uint32
	fields := strings.FieldsFunc(address, func(r rune) bool { return r == ':' || r == '.' || r == '-' || r == '_' })
	switch len(fields) {
	case 3:
		fields = append([]string{"0"}, fields...)
	case 4:
	default:
		return ""
	}
	limit := [4]uint32{0xffffffff, 0xff, 0x1f, 0x7}
	for i, field := range fields {
		v, ok := parseHex(field)
		if !ok || v > limit[i] {
			return ""
		}
		part[i] = v
	}
	var b [16]byte
	out := appendHex(b[:0], part[0], 4)
	out = appendHex(append(out, ':'), part[1], 2)
	out = appendHex(append(out, ':'), part[2], 2)
	out = appendHex(append(out, '.'), part[3], 1)
	return string(out)
}

func parseHex(s string) (uint32, bool) {
	if s == "" || len(s) > 8 {
		return 0, false
	}
	var v uint32
	for i := range len(s) {
		d := strings.IndexByte("0123456789abcdefABCDEF", s[i])
		if d < 0 {
			return 0, false
		}
		if d > 0xf {
			d -= len("ABCDEF")
		}
		v = v<<4 | uint32(d)
	}
	return v, true
}

func appendHex(b []byte, v uint32, digits int) []byte {
	for digits < 8 && v>>(4*digits) != 0 {
		digits++
	}
	for i := digits - 1; i >= 0; i-- {
		b = append(b, "0123456789abcdef"[v>>(4*i)&0xf])
	}
	return b
}
