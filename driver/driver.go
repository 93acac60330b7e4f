// Package driver defines the types that describe devices: their identity in DRA, their hardware,
// the catalogue of quantities that are measured on them, and [Source], the interface of everything
// that reads them.
//
// It imports only the standard library.
//
// Bounds (max…) are for what vendors' libraries send.
package driver

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ID identifies a device as Kubernetes DRA does (KEP-4381): only the three parts together are
// unique in a cluster. For a device of a device plugin, Driver is the resource name and Pool is
// empty.
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

// Kind is the kind of a device, which decides whether it can be measured.
type Kind uint8

// The kinds of devices.
const (
	// KindDevice is a whole device, or a device of unknown kind.
	KindDevice Kind = iota
	// KindPartition is a part of a parent device (MIG instance, virtual function, AMD partition) with
	// its own identity. It may exist only while it is held.
	KindPartition
	// KindPassthrough is passed through to a guest (vfio). The host cannot read it.
	KindPassthrough
	// KindChannel is not hardware (an IMEX channel, a group of other devices).
	KindChannel
)

// Measurable reports whether a source can read devices of this kind.
func (k Kind) Measurable() bool { return k == KindDevice || k == KindPartition }

// Hardware has the identifiers of a piece of hardware outside Kubernetes and some facts about it.
// An empty field is unknown. UUID, PCI, NetDev, RDMADev, Serial, Index, CPUs and DeviceNodes match
// samples with devices of the inventory; the other fields are for information.
type Hardware struct {
	Kind Kind

	UUID   string // vendor's UUID of this device itself, such as GPU-… or MIG-…; case-insensitive
	PCI    string // address of this device itself in the format of NormalizePCI: 0000:3b:00.0
	Parent string // UUID or PCI address of the device that this one is a part of
	// Placement identifies this part of the parent device, for partitions that have no UUID until they
	// are created. The inventory's rule for a driver and the vendor's source agree on its format.
	Placement string
	// Instance is the vendor's number of this part within Parent, while the part exists; of a MIG
	// device, the result of nvidia.Instance. It matches samples of sources that know no UUID of the
	// part. 7 matches 7/0 if that is the only part whose number begins with 7/.
	Instance string
	// ParentShare is the fraction of its parent that this part is, above 0 and at most 1; 0: unknown,
	// or not a part. The fractions of parts that exist at the same time sum to at most 1. For a MIG
	// device it is the fraction of compute slices: 1/7 for 1g.10gb of an H100.
	ParentShare float64

	NetDev  string // name of the network interface in the host's (or its holder's) network namespace
	RDMADev string // name under /sys/class/infiniband
	CPUs    []int  // logical CPU numbers, ascending
	// Index is the number of the device among the DRA driver's devices of the node, from its
	// ResourceSlices; of Tenstorrent devices, tray and position in the tray: 1/0.
	Index string

	DeviceNodes []string // paths under /dev on the host

	Vendor          string // e.g. nvidia
	Model           string // product name
	Profile         string // of a partition: the vendor's name of its size, such as 1g.10gb
	Serial          string // serial number of the board
	FirmwareVersion string // of a GPU: the version of its VBIOS
	DriverVersion   string // version of the kernel driver
	CUDAVersion     string // newest version that the driver supports, such as 12.8
	NUMANode        string // decimal number
	// PCIeRoot is the PCIe root complex of the device, such as pci0000:80
	// (resource.kubernetes.io/pcieRoot); of CPUs, their root complexes, separated by commas.
	PCIeRoot string
}

// Amount is a quantity of a named resource of a device, in the resource's own base unit (bytes for
// memory).
type Amount struct {
	Resource string
	Value    float64
}

// AmountOf returns the amount of a resource, 0 if there is none.
func AmountOf(amounts []Amount, name string) float64 {
	for _, a := range amounts {
		if a.Resource == name {
			return a.Value
		}
	}
	return 0
}

// RequestPolicy defines the amounts of a capacity that a share of a device can consume (KEP-5075,
// CapacityRequestPolicy of k8s.io/api/resource/v1): one of Values, or Min to Max in steps from Min.
// Zero fields are not set. Amounts are in the resource's own base unit.
type RequestPolicy struct {
	Resource       string
	Values         []float64 // ascending; nil: a range
	Min, Max, Step float64
}

// Consumed returns the amount that a request consumes: the smallest allowed amount that is not
// below it. It returns false if there is none; the scheduler does not allocate such a request.
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

// Taint is a taint of a device (KEP-5055). Effect is None, NoSchedule or NoExecute.
type Taint struct {
	Key, Value, Effect string
	// Rule is the name of the DeviceTaintRule that sets the taint; empty: the device's ResourceSlice
	// does.
	Rule string
	// Health is the health of the device that the taint states; HealthNone for most taints.
	Health HealthStatus
}

// Source returns the kind of object that sets the taint: "slice" or "rule".
func (t Taint) Source() string {
	if t.Rule == "" {
		return "slice"
	}
	return "rule"
}

// String returns the taint as kubectl writes it: KEY=VALUE:EFFECT, or KEY:EFFECT without a value.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Entry is the entry of one device in an [Inventory].
type Entry struct {
	Hardware
	Capacity []Amount // by resource name, each once
	// ComputeShare is the fraction of its parent's multiprocessors that a partition has, above 0 and
	// at most 1; 0: unknown, or not a partition. 1g.20gb of an H100 has 26 of 132.
	ComputeShare float64
	// Policies are the request policies of capacities. A share may consume any amount of a capacity
	// without a policy.
	Policies []RequestPolicy
	Taints   []Taint
	// Health is the health that the attributes in its ResourceSlice state.
	Health HealthStatus
	// Local devices belong to a driver that runs on this node. Other devices are offered to several or
	// all nodes.
	Local bool
	// ManyNodes devices can be allocated for other nodes too: their slice, or the device, is available
	// on all nodes or on the nodes that a selector matches.
	ManyNodes bool
	// Unlisted devices are in no ResourceSlice, so that no claim can request them: the parent of
	// static partitions, and devices that only CDI specs or a device plugin describe.
	Unlisted bool
	// DriverGone means that the driver that published the device no longer runs.
	DriverGone bool
	// Socketless devices need no preparation on the node (skipNodeOperations, KEP-5945), so that their
	// driver may have no socket here.
	Socketless bool
	// Shareable devices may be allocated several times (allowMultipleAllocations,
	// KEP-5075).
	Shareable bool
	// Conditional devices have binding conditions (KEP-5007): the device is allocated to a pod before
	// the conditions are met and the pod is bound to the node.
	Conditional bool
}

// Inventory maps devices of this node to their hardware.
type Inventory map[ID]Entry

// SameMap reports whether both variables refer to one map. Equal maps are not enough.
func SameMap[M ~map[K]V, K comparable, V any](a, b M) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// SameSlice reports whether both slices use the same memory, or are empty.
func SameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// Sample has what a source read from one piece of hardware. A Sample without Readings means that
// the source is responsible for the hardware but has nothing to report about it.
type Sample struct {
	// Driver restricts the match to devices of this DRA driver; empty: of any driver.
	Driver string
	// Device is the name of the device within Driver, for sources that know it; empty: match by
	// Hardware.
	Device string
	// Pool is the pool of Device, for sources that know the full ID; empty: any pool.
	Pool string

	Hardware Hardware
	Readings []Reading
	// HealthReason is the driver's message about the health among Readings; "": unknown, or healthy.
	HealthReason string
	Processes    []Process
	Events       []Event // an event that appears in several samples is counted once

	// FromLog means that the source does not read the hardware but a log of its events, with time and
	// process. Its counters take precedence over those of all other sources, and they do not count as
	// telemetry of the device.
	FromLog bool

	// Absent are quantities that the source could be expected to read and cannot, and why.
	Absent []Absence

	// Unreadable means that the hardware cannot be read now. Readings then has only what the driver
	// reported on its own, such as the errors of a GPU that fell off the bus.
	Unreadable bool
}

// Absence is a quantity of a device that a source does not report, and why.
type Absence struct {
	Quantity Quantity
	Why      AbsenceReason
}

// AbsenceReason is why a device lacks a quantity.
type AbsenceReason string

// The reasons.
const (
	// AbsentPackage means that the sensor measures the package that the GPU shares with the processor.
	AbsentPackage AbsenceReason = "package"
	AbsentZero    AbsenceReason = "zero" // the source has 0 where it has no sensor
)

// Reading is one measured value. A value that could not be read has no Reading.
type Reading struct {
	Quantity  Quantity
	Estimated bool    // the source estimates the value; check and the page say so
	Labels    Labels  // values of the quantity's labels, in the order of Spec.Labels
	Value     float64 // in the quantity's unit

	// At is the time of the measurement, as precisely as the source knows it: when the hardware or the
	// vendor's software updated the value, not when it was read. A Reading with the same At as the one
	// before is the same measurement.
	At time.Time

	// Since, of a counter, is the time at which it was zero; zero: unknown. A Since later than the
	// reading before marks a reset. Without Since, a counter that falls was reset.
	Since time.Time
}

// Event is an event of the hardware. A counter of the same source counts it too, at the latest in
// the next sample. What a counter counts beyond its events happened at unknown times between two
// readings.
type Event struct {
	Quantity Quantity
	Labels   Labels // of the counter
	// At is the time of the event, as precisely as the source knows it. Two events of one counter have
	// different times.
	At time.Time
	// PID is the process that caused the event or was affected, in the host's PID namespace; 0:
	// unknown.
	PID int
	// PodUID is the UID of the process's pod, if the source looked it up when it received the event;
	// "": it is looked up by PID at the next tick.
	PodUID string
}

// Process is the use of the hardware by one process, for attribution. PID is in the host's PID
// namespace.
type Process struct {
	PID      int
	Readings []Reading // additive quantities only
}

// Source reads the devices of one kind. Sample returns what it could read and an error for what it
// could not read; it may return both. If there is no hardware of its kind, it returns no samples
// and no error. It returns soon after ctx ends, leaves no goroutine behind, and is called by one
// goroutine at a time. The caller owns the samples. Sample is called at every tick; if reading is
// expensive, it reads less often and returns the readings that it has, with their own At.
type Source interface {
	// Name returns the constant name of the source in flags and in the label source.
	Name() string
	Sample(ctx context.Context) ([]Sample, error)
}

// Completer is a [Source] that does not read all values with each Sample. ReadAll makes the next
// Sample read all of them: a holder may have come or gone. It is safe for concurrent use.
type Completer interface {
	Source
	ReadAll()
}

// Watcher is implemented by a [Source] that watches its inputs in the background. Its Sample
// returns what is known at that time, without waiting.
type Watcher interface {
	// Watch watches the inputs until ctx ends, and leaves no goroutine behind. It is called once, and
	// is safe for concurrent use with Sample. Without Watch, Sample returns nothing.
	Watch(ctx context.Context)
}

// Describer is implemented by a [Source] that can describe the state of its inputs.
type Describer interface {
	// Describe returns a line of text about each input, in a constant order. It is safe for concurrent
	// use with Sample.
	Describe() []string
}

// Resumer is implemented by a [Source] that reads a log. It lets the source count records that were
// written while the exporter did not run.
type Resumer interface {
	// Position returns the position up to which the log has been read; nil: none. It is safe for
	// concurrent use with Sample.
	Position() []byte
	// Resume makes the source continue at the position that an earlier process of the same boot had at
	// the given time. It is called before Sample and Watch.
	Resume(position []byte, at time.Time)
}

// NormalizePCI returns a PCI address as the kernel writes it: domain:bus:device.function in lower
// case, with a domain of four digits. It accepts a missing domain, a domain of eight digits (as
// NVML and DCGM write it), upper case, and dashes or underscores as separators. It returns "" if
// the text is not a PCI address.
func NormalizePCI(address string) string {
	fields := strings.FieldsFunc(address, func(r rune) bool { return r == ':' || r == '.' || r == '-' || r == '_' })
	switch len(fields) {
	case 3:
		fields = append([]string{"0"}, fields...)
	case 4:
	default:
		return ""
	}
	var parts [4]uint64
	for i, highest := range [...]uint64{math.MaxUint32, 0xff, 0x1f, 0x7} {
		n, err := strconv.ParseUint(fields[i], 16, 32)
		if err != nil || n > highest {
			return ""
		}
		parts[i] = n
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", parts[0], parts[1], parts[2], parts[3])
}

// HealthStatus is the health of a device as its driver reports it (KEP-4680). A greater value is
// worse.
type HealthStatus uint8

// The health statuses.
const (
	HealthNone    HealthStatus = iota // no statement about health
	HealthGood                        // healthy
	HealthUnknown                     // the driver reports unknown, or its last report has expired
	HealthBad                         // unhealthy
)

// String returns the value of the label status: healthy, unknown or unhealthy; "" for HealthNone.
func (h HealthStatus) String() string {
	return [...]string{HealthNone: "", HealthGood: "healthy", HealthUnknown: "unknown", HealthBad: "unhealthy"}[h]
}

// Reading returns the status as a reading of [Health].
func (h HealthStatus) Reading(at time.Time) Reading {
	return Reading{Quantity: Health, Labels: Labels{h.String()}, Value: 1, At: at}
}

// MaxMessage is the maximum length in bytes of what [OneLine] returns.
const MaxMessage = 256

// OneLine returns a driver's message as one line of at most [MaxMessage] bytes. Control characters
// and invalid UTF-8 become spaces.
func OneLine(message string) string {
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError
	}), " ")
	if len(message) <= MaxMessage {
		return message
	}
	end := MaxMessage - len("…")
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
