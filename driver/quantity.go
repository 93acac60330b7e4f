package driver

import (
	"cmp"
	"slices"
	"strings"
)

// Quantity is a quantity that can be measured on a device: its index in a [Catalogue]. All sources
// report a quantity with the same meaning and unit.
type Quantity uint8

// The quantities of the standard catalogue. Each has its constant here and its entry in describe or
// in a function that describe calls.
const (
	Utilization Quantity = iota
	EngineUtilization
	Occupancy
	ActiveSeconds
	MemoryUsed
	MemoryCapacity
	Power
	Energy
	Temperature
	Clock
	IOBytes
	NetworkPackets
	NetworkErrors
	NetworkDrops
	Errors
	ThrottledSeconds
	Health
	Capacity
	NeedsAttention
	LifetimeErrors
	PowerLimit
	PerformanceState
	ThrottleActive
	LinkWidth
	LinkWidthMax
	LinkGeneration
	LinkGenerationMax
	FabricState
	MemoryReserved
	TemperatureMargin
	FanSpeed
	RDMAEvents
	LinkUp
	HostMemoryUsed
	HostMemoryCapacity
	RequestsInFlight
	FanRotation
	MemoryUsedPeak
	PowerPeak
	Voltage
	RDMAPackets
	RDMAOperations
	StorageUsed
	ClockMax
	TensorThroughput
	TensorSeconds
	NumQuantities // the number of quantities, not one of them
)

// MaxQuantities is the maximum number of quantities in a catalogue.
const MaxQuantities = 64

// MaxLabels is the maximum number of labels of a quantity.
const MaxLabels = 3

// Labels has the values of a quantity's own labels, in the order of Spec.Labels; unused elements
// are empty.
type Labels [MaxLabels]string

// Compare orders labels.
func (l *Labels) Compare(other *Labels) int {
	for i := range l {
		if c := strings.Compare(l[i], other[i]); c != 0 {
			return c
		}
	}
	return 0
}

// Type is the metric type of a quantity.
type Type uint8

// The metric types.
const (
	Gauge   Type = iota
	Counter      // cumulative; falls only when it is reset
)

// String returns gauge or counter, as in the exposition formats.
func (t Type) String() string {
	if t == Counter {
		return "counter"
	}
	return "gauge"
}

// Sharing defines how a value is attributed when a device has several holders.
type Sharing uint8

// The ways of sharing.
const (
	Intensive Sharing = iota // never divided, never summed: a temperature, a clock, the utilization of an engine
	Additive                 // divided among holders; the parts sum to the whole
	// Witnessed values count in full for each holder at the time of the event, and are never summed
	// over holders: errors, throttling, peaks.
	Witnessed
)

// Basis is the proportion in which an additive quantity is divided among holders, where the use of
// the device by their processes is known.
type Basis uint8

// The bases.
const (
	ByWork   Basis = iota // by busy time of the processes: for what work causes, such as power and traffic
	ByTime                // the busy time of the processes itself
	ByMemory              // by memory of the processes
	NumBases              // the number of bases, not one of them
)

// Activity defines whether and how values of a quantity show that the device is active.
type Activity uint8

// The kinds of activity.
const (
	NoActivity Activity = iota // the values do not show activity
	// BusyShare is a fraction of time: the value of a gauge or the rate of a counter. It is compared
	// with --idle.threshold.
	BusyShare
	// Traffic is a counter whose rate is compared with --idle.network-threshold.
	Traffic
)

// Rank is the order in which --max-series drops the families of devices: the lower rank first.
// Families of claims and pods are dropped before those of devices.
type Rank uint8

// The ranks.
const (
	RankMeasurement Rank = iota // values that a source measures
	RankState                   // kept as long as dra_device_up is
)

// Label is a label of a quantity.
type Label struct {
	Name   string
	Values []string // the closed list of values; nil: open, bounded by what the hardware has
	// Optional means that some readings of the quantity lack the label: their series do not have it.
	Optional bool
}

// Accepts reports whether a text may be the label's value, as far as a closed list says so.
func (l *Label) Accepts(value string) bool {
	return l.Values == nil || l.Optional && value == "" || slices.Contains(l.Values, value)
}

// Spec describes a quantity. No package has other knowledge of a particular quantity, so that a new
// one needs only its entry in the catalogue and a source that reads it.
type Spec struct {
	Name   string // as in configuration files and in the label quantity
	Metric string // name of the family after the prefix dra_device_, dra_claim_ or dra_pod_
	Help   string
	Unit   string // Prometheus base unit; "" for a state or a count
	Type   Type
	// Sharing is Additive or Witnessed if claims and pods have the quantity too.
	Sharing Sharing
	Labels  []Label

	// NonNegative means that negative values are rejected.
	NonNegative bool
	// Max, if above 0, is the highest accepted value, and Min, if below 0, the lowest; others are
	// rejected.
	Max, Min float64
	// MaxRate, of a counter, is more than any device can count in a second; 0: unknown.
	MaxRate float64
	// Zero is the meaning of 0.
	Zero Zero

	// Basis is the basis of division of an additive quantity.
	Basis Basis
	// MeasuresBasis means that the value of this gauge of a process is the process's amount of Basis.
	// Exactly one gauge measures each basis, except ByWork, which uses the measure of ByTime.
	MeasuresBasis bool
	// Integral is the name of the counter that the integral of this gauge over time replaces if no
	// source reads it; "" if there is none.
	Integral string
	// Limits is the name of the counter whose highest possible rate per second this gauge is, for
	// values of the first label in LimitLabels; "" if there is none.
	Limits      string
	LimitLabels []string
	// Link, if set, means that Limits is bounded by the speed of the link that the first label of both
	// names, of which this gauge is a part.
	Link LinkPart
	// Peak is the name of the quantity that is the highest value of this gauge so far: of the device,
	// and of each holder's part since it began to hold; "" if there is none.
	Peak string
	// Distributed means that the ledger keeps the distribution over time of each claim's part of this
	// additive gauge, which has no labels.
	Distributed bool
	// SoleLabels are the values of the first label of this intensive gauge for which a claim that
	// holds the device alone has the quantity too.
	SoleLabels []string
	// Divided means that a partition which does not measure this additive quantity gets a part of its
	// parent's value, by its activity and its share of the parent (join.DivideParent).
	Divided bool

	// Activity defines whether values show that the device is active. ActiveLabels restricts it to
	// these values of the first label; nil: all.
	Activity     Activity
	ActiveLabels []string
	// Failure means that an increase is an error of the device, whose time
	// dra_device_last_error_timestamp_seconds shows. AppearLabels are the values of the first label
	// whose series appear with their first error: its value counts if the device was read before. A
	// source may begin to read the others at any time.
	Failure      bool
	AppearLabels []string
	// State means that the values of the first label are exclusive states. The present one has value
	// 1.
	State bool

	// Rank is the rank of the device's family.
	Rank Rank
	// Fact means that the values are settings or conditions of the hardware, which all sources read
	// from the same place. dra_device_quantity_source_info omits the quantity.
	Fact bool
	// Internal quantities are reported only by drivers and ResourceSlices. A scrape configuration
	// cannot name them.
	Internal bool
	// Derived quantities are computed from others. A source cannot report them.
	Derived bool
}

// The label for how severe an error is, and its value for one that the device survives.
const (
	labelSeverity    = "severity"
	severityNonfatal = "nonfatal"
)

// Hits reports whether an error with these labels hits those who hold the device.
func (s *Spec) Hits(labels Labels) bool {
	for i := range s.Labels {
		if s.Labels[i].Name == labelSeverity {
			return labels[i] != severityNonfatal
		}
	}
	return true
}

// ShowsActivity reports whether values with these labels show that the device is active or idle.
func (s *Spec) ShowsActivity(labels Labels) bool {
	return s.Activity != NoActivity && (s.ActiveLabels == nil || slices.Contains(s.ActiveLabels, labels[0]))
}

// Catalogue has the description of each quantity, by its index. It is immutable.
type Catalogue []Spec

// Standard returns the standard catalogue.
func Standard() Catalogue {
	c := make(Catalogue, NumQuantities)
	for q := range NumQuantities {
		c[q] = specOf(q)
	}
	return c
}

// OrStandard returns the catalogue, or the standard one if c is nil.
func (c Catalogue) OrStandard() Catalogue {
	if c == nil {
		return Standard()
	}
	return c
}

// With returns a catalogue with more quantities, whose indices follow those of c.
func (c Catalogue) With(more ...Spec) Catalogue {
	out := slices.Concat(c, more)
	for i := range out[len(c):] {
		out[len(c)+i].boundRate()
	}
	return out
}

// Has reports whether the quantity is in the catalogue.
func (c Catalogue) Has(q Quantity) bool { return int(q) < len(c) }

// Spec returns the description of a quantity, which the caller must not change. It is empty for a
// quantity outside the catalogue.
func (c Catalogue) Spec(q Quantity) *Spec {
	if !c.Has(q) {
		return &Spec{}
	}
	return &c[q]
}

// Named returns the quantity with the given name.
func (c Catalogue) Named(name string) (Quantity, bool) {
	i := slices.IndexFunc(c, func(s Spec) bool { return s.Name == name })
	return Quantity(max(i, 0)), i >= 0 && name != ""
}

// Spec returns the description of a quantity of the standard catalogue; it is empty for others.
func (q Quantity) Spec() Spec { return specOf(q) }

// String returns the name of a quantity of the standard catalogue; "" for others.
func (q Quantity) String() string { return describe(q).Name }

// specOf returns the description of a quantity of the standard catalogue.
func specOf(q Quantity) Spec {
	s := describe(q)
	s.bound()
	s.Metric = cmp.Or(s.Metric, s.metric())
	return s
}

// metric returns the name of the family by the rules of Prometheus: the name, its unit unless the
// name ends with it, and total for a counter.
func (s *Spec) metric() string {
	name := s.Name
	if s.Unit != "" && !strings.HasSuffix(name, s.Unit) {
		name += "_" + s.Unit
	}
	if s.Type == Counter {
		name += "_total"
	}
	return name
}

// describe returns the description of a quantity without the bounds of its unit, and without the
// name of its family unless that is not [Spec.metric].
func describe(q Quantity) Spec { //nolint:funlen // a table
	switch q {
	case Utilization:
		return Spec{
			Name: "utilization", Unit: "ratio", Sharing: Additive, NonNegative: true, Max: maxRatio,
			Help:  "Share of time in which any engine of the device was busy, 0 to 1.",
			Basis: ByTime, MeasuresBasis: true, Integral: "active_seconds", Activity: BusyShare, Distributed: true,
		}
	case EngineUtilization:
		return Spec{
			Name: "engine_utilization", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Share of time in which one engine of the device was busy, 0 to 1.",
			Labels: []Label{{Name: "engine", Values: []string{
				"sm", "tensor", "dram", "copy", "encoder", "decoder", "jpeg", "ofa", "render", "video", "compute",
				"fp64", "fp32", "fp16", "int", "video_enhance", "npu",
			}}},
			SoleLabels: []string{"sm", "tensor", "dram", "fp64", "fp32", "fp16", "int", "compute", "npu"},
		}
	case Occupancy:
		return Spec{
			Name: "occupancy", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Resident warps or waves as a share of what the device can hold, 0 to 1.",
		}
	case ActiveSeconds:
		return Spec{
			Name: "active_seconds", Unit: "seconds", Type: Counter, Sharing: Additive, NonNegative: true,
			Help:  "Busy time of the device: the integral of its utilization.",
			Basis: ByTime, Activity: BusyShare,
		}
	case MemoryUsed:
		return Spec{
			Name: "memory_used", Unit: "bytes", Sharing: Additive, NonNegative: true,
			Help:  "Device memory in use.",
			Basis: ByMemory, MeasuresBasis: true, Peak: "memory_used_peak", Distributed: true,
		}
	case MemoryCapacity:
		return Spec{
			Name: "memory_capacity", Unit: "bytes", NonNegative: true, Zero: ZeroIsAbsent,
			Help: "Total memory of the device.",
		}
	case HostMemoryUsed:
		return Spec{
			Name: "host_memory_used", Unit: "bytes", NonNegative: true,
			Help: "Memory of the host that the device uses as its own (GTT of AMD GPUs).",
		}
	case HostMemoryCapacity:
		return Spec{
			Name: "host_memory_capacity", Unit: "bytes", NonNegative: true, Fact: true,
			Help: "Highest amount of the host's memory that the device can use as its own.",
		}
	case Power:
		return Spec{
			Name: "power", Unit: "watts", Sharing: Additive, NonNegative: true, Zero: ZeroIsAbsentOfWhole,
			Help:     "Power drawn by the device.",
			Integral: "energy", Divided: true, Peak: "power_peak", Distributed: true,
		}
	case Energy:
		return Spec{
			Name: "energy", Unit: "joules", Type: Counter, Sharing: Additive, NonNegative: true,
			Zero:    ZeroNeedsOther,
			Help:    "Energy used by the device: its hardware counter, or else the integral of its power.",
			Divided: true,
		}
	case Temperature:
		return Spec{
			Name: "temperature", Unit: "celsius", Zero: ZeroIsAbsent,
			Help: "Temperature of one sensor of the device.", Labels: []Label{{Name: "sensor"}},
		}
	case Clock:
		return Spec{
			Name: "clock", Unit: "hertz", NonNegative: true, Zero: ZeroIsAbsentOfWhole,
			Help: "Frequency of one clock domain of the device.", Labels: []Label{{Name: "domain"}},
		}
	case IOBytes:
		return Spec{
			Name: "io_bytes", Unit: "bytes", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Bytes that crossed one of the device's links.",
			Labels: []Label{
				{Name: "link", Values: []string{"pcie", "nvlink", "network", "rdma", "xgmi", "storage"}}, directions(),
			},
			Activity: Traffic, ActiveLabels: []string{"network", "rdma"},
		}
	case NetworkPackets:
		return Spec{
			Name: "network_packets", Type: Counter, NonNegative: true, MaxRate: maxPackets,
			Help: "Packets that the network device received or transmitted.", Labels: []Label{directions()},
		}
	case NetworkErrors:
		return Spec{
			Name: "network_errors", Type: Counter, NonNegative: true, MaxRate: maxPackets,
			Help: "Packets that the network device received or transmitted with errors.", Labels: []Label{directions()},
		}
	case NetworkDrops:
		return Spec{
			Name: "network_drops", Type: Counter, NonNegative: true, MaxRate: maxPackets,
			Help: "Packets that the network device dropped.", Labels: []Label{directions()},
		}
	case Errors:
		return Spec{
			Name: "errors", Type: Counter, Sharing: Witnessed, NonNegative: true, MaxRate: maxErrors,
			Help: "Errors that the device or its driver reported. Those of NVLink 5 (XID 144 to 150) and of " +
				"NVSwitches (codes from 10000 on) have the severity that the driver logs; a nonfatal error hits no holder.",
			Labels: append(
				errorLabels("xid", "ecc_corrected", "ecc_uncorrected", "pcie_replay", "ras", "link_down", "row_remap",
					"page_retirement", "nvlink", "pcie_aer", "port", "other"),
				Label{Name: labelSeverity, Values: []string{"fatal", severityNonfatal, "unknown"}, Optional: true},
			),
			Failure: true, AppearLabels: []string{"xid"},
		}
	case ThrottledSeconds:
		return Spec{
			Name: "throttled_seconds", Unit: "seconds", Type: Counter, Sharing: Witnessed, NonNegative: true,
			Help:   "Time in which the device was throttled, which means that it ran below its maximum clocks, by reason.",
			Labels: []Label{{Name: "reason"}},
		}
	case Health:
		return Spec{
			Name: "health", NonNegative: true, Max: 1,
			Help:   "Health of the device as its driver reports it: 1 for the present status. The others have no series.",
			Labels: []Label{{Name: "status", Values: []string{"healthy", "unhealthy", "unknown"}}},
			State:  true, Internal: true,
		}
	case Capacity:
		return Spec{
			Name: "capacity", NonNegative: true,
			Help: "Capacity of the device for one resource, in the resource's base unit (memory in bytes, speed in bytes per " +
				"second).",
			Labels:   []Label{{Name: "resource"}},
			Internal: true,
		}
	case RequestsInFlight:
		return Spec{
			Name: "requests_in_flight", NonNegative: true, Max: 1e9,
			Help: "Requests that the storage device has received and not completed yet.",
		}
	case StorageUsed:
		return Spec{
			Name: "storage_used", Unit: "bytes", NonNegative: true,
			Help: "Storage of the device that is allocated, as counted by the device (NVMe: NUSE of its namespaces). " +
				"dra_device_capacity{resource=\"storage\"} is the total.",
		}
	case MemoryUsedPeak:
		return Spec{
			Name: "memory_used_peak", Unit: "bytes", Sharing: Witnessed, NonNegative: true,
			Help: "Highest memory use of all readings so far.",
			Fact: true, Internal: true, Derived: true,
		}
	case PowerPeak:
		return Spec{
			Name: "power_peak", Unit: "watts", Sharing: Witnessed, NonNegative: true,
			Help: "Highest power of all readings so far.",
			Fact: true, Internal: true, Derived: true,
		}
	case TensorThroughput:
		return Spec{
			Name: "tensor_throughput", Unit: "ratio", Sharing: Additive, NonNegative: true, Max: maxRatio,
			Help: "Share of the highest rate of the tensor cores that they reach, 0 to 1: the share of time in which they are " +
				"busy, times the clock of the SMs over its maximum.",
			Integral: "tensor_seconds", Internal: true, Derived: true,
		}
	case TensorSeconds:
		return Spec{
			Name: "tensor_seconds", Unit: "seconds", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Time for which the tensor cores were busy, at the highest clock: the integral of their throughput, by " +
				"which an hour at half of the clock counts half an hour. Its rate is the overall FLOP utilization.",
			Internal: true, Derived: true,
		}
	case RDMAEvents, RDMAPackets, RDMAOperations, LinkUp:
		return networkSpec(q)
	default:
		return conditionSpec(q)
	}
}

func errorLabels(kinds ...string) []Label {
	return []Label{{Name: "kind", Values: kinds}, {Name: "code"}}
}

func directions() Label { return Label{Name: "direction", Values: []string{"receive", "transmit"}} }

// maxRatio allows for rounding and for counters that were read at slightly different times: 1.1 is
// such an error, 50 is a percentage.
const maxRatio = 1.5
