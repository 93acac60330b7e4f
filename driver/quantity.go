package driver

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Quantity is a quantity that can be measured on a device: its index in a [Catalogue]. All sources
// report a quantity with the same meaning and unit.
type Quantity uint8

// The quantities of the standard catalogue. Each has its constant here and its entry in table.
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
func Standard() Catalogue { return standard() }

//nolint:gochecknoglobals // a constant: nobody changes it
var standard = sync.OnceValue(func() Catalogue {
	c := table()
	for i := range c {
		c[i].bound()
		c[i].Metric = cmp.Or(c[i].Metric, c[i].metric())
	}
	return c
})

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
func (q Quantity) Spec() Spec { return *standard().Spec(q) }

// String returns the name of a quantity of the standard catalogue; "" for others.
func (q Quantity) String() string { return standard().Spec(q).Name }

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

// table returns the standard catalogue, without what follows from the units.
func table() Catalogue { //nolint:funlen // a table
	links := []Label{{Name: "link", Values: []string{"pcie", "xgmi"}}}
	return Catalogue{
		Utilization: {
			Name: "utilization", Unit: "ratio", Sharing: Additive, NonNegative: true, Max: maxRatio,
			Help:  "Share of time in which any engine of the device was busy, 0 to 1.",
			Basis: ByTime, MeasuresBasis: true, Integral: "active_seconds", Activity: BusyShare, Distributed: true,
		},
		EngineUtilization: {
			Name: "engine_utilization", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Share of time in which one engine of the device was busy, 0 to 1.",
			Labels: []Label{{Name: "engine", Values: []string{
				"sm", "tensor", "dram", "copy", "encoder", "decoder", "jpeg", "ofa", "render", "video", "compute",
				"fp64", "fp32", "fp16", "int", "video_enhance", "npu",
			}}},
			SoleLabels: []string{"sm", "tensor", "dram", "fp64", "fp32", "fp16", "int", "compute", "npu"},
		},
		Occupancy: {
			Name: "occupancy", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Resident warps or waves as a share of what the device can hold, 0 to 1.",
		},
		ActiveSeconds: {
			Name: "active_seconds", Unit: "seconds", Type: Counter, Sharing: Additive, NonNegative: true,
			Help:  "Busy time of the device: the integral of its utilization.",
			Basis: ByTime, Activity: BusyShare,
		},
		MemoryUsed: {
			Name: "memory_used", Unit: "bytes", Sharing: Additive, NonNegative: true,
			Help:  "Device memory in use.",
			Basis: ByMemory, MeasuresBasis: true, Peak: "memory_used_peak", Distributed: true,
		},
		MemoryCapacity: {
			Name: "memory_capacity", Unit: "bytes", NonNegative: true, Zero: ZeroIsAbsent,
			Help: "Total memory of the device.",
		},
		Power: {
			Name: "power", Unit: "watts", Sharing: Additive, NonNegative: true, Zero: ZeroIsAbsentOfWhole,
			Help:     "Power drawn by the device.",
			Integral: "energy", Divided: true, Peak: "power_peak", Distributed: true,
		},
		Energy: {
			Name: "energy", Unit: "joules", Type: Counter, Sharing: Additive, NonNegative: true,
			Zero:    ZeroNeedsOther,
			Help:    "Energy used by the device: its hardware counter, or else the integral of its power.",
			Divided: true,
		},
		Temperature: {
			Name: "temperature", Unit: "celsius", Zero: ZeroIsAbsent,
			Help: "Temperature of one sensor of the device.", Labels: []Label{{Name: "sensor"}},
		},
		Clock: {
			Name: "clock", Unit: "hertz", NonNegative: true, Zero: ZeroIsAbsentOfWhole,
			Help: "Frequency of one clock domain of the device.", Labels: []Label{{Name: "domain"}},
		},
		IOBytes: {
			Name: "io_bytes", Unit: "bytes", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Bytes that crossed one of the device's links.",
			Labels: []Label{
				{Name: "link", Values: []string{"pcie", "nvlink", "network", "rdma", "xgmi", "storage"}}, directions(),
			},
			Activity: Traffic, ActiveLabels: []string{"network", "rdma"},
		},
		NetworkPackets: packets("network_packets", "Packets that the network device received or transmitted."),
		NetworkErrors:  packets("network_errors", "Packets that the network device received or transmitted with errors."),
		NetworkDrops:   packets("network_drops", "Packets that the network device dropped."),
		Errors: {
			Name: "errors", Type: Counter, Sharing: Witnessed, NonNegative: true, MaxRate: maxErrors,
			Help: "Errors that the device or its driver reported. Those of NVLink 5 (XID 144 to 150) and of " +
				"NVSwitches (codes from 10000 on) have the severity that the driver logs; a nonfatal error hits no holder.",
			Labels: append(
				errorLabels("xid", "ecc_corrected", "ecc_uncorrected", "pcie_replay", "ras", "link_down", "row_remap",
					"page_retirement", "nvlink", "pcie_aer", "port", "other"),
				Label{Name: labelSeverity, Values: []string{"fatal", severityNonfatal, "unknown"}, Optional: true},
			),
			Failure: true, AppearLabels: []string{"xid"},
		},
		ThrottledSeconds: {
			Name: "throttled_seconds", Unit: "seconds", Type: Counter, Sharing: Witnessed, NonNegative: true,
			Help:   "Time in which the device was throttled, which means that it ran below its maximum clocks, by reason.",
			Labels: []Label{{Name: "reason"}},
		},
		Health: {
			Name: "health", NonNegative: true, Max: 1,
			Help:   "Health of the device as its driver reports it: 1 for the present status. The others have no series.",
			Labels: []Label{{Name: "status", Values: []string{"healthy", "unhealthy", "unknown"}}},
			State:  true, Internal: true,
		},
		Capacity: {
			Name: "capacity", NonNegative: true,
			Help: "Capacity of the device for one resource, in the resource's base unit (memory in bytes, speed in bytes per " +
				"second).",
			Labels:   []Label{{Name: "resource"}},
			Internal: true,
		},
		NeedsAttention: {
			Name: "needs_attention", NonNegative: true, Max: 1, Fact: true,
			Help: "1 for each condition of the device that requires action by an operator; if there is none, 1 for action " +
				"none.",
			Labels: []Label{
				{Name: "action", Values: []string{
					"none", "reset", "reboot", "drain", "rma", "recover_fabric", "investigate",
				}},
				{Name: "reason", Values: []string{
					"ok", "row_remap_pending", "row_remap_failed", "page_retirement_pending", "channel_repair_pending",
					"tpc_repair_pending", "sram_ecc_threshold", "unrepairable_memory", "recovery_action",
				}},
			},
		},
		LifetimeErrors: {
			Name: "lifetime_errors", NonNegative: true, Max: maxErrors * countsFor, Fact: true,
			Help:   "Errors that the device has recorded over its lifetime, including those before the exporter started.",
			Labels: errorLabels("ecc_corrected", "ecc_uncorrected", "row_remap", "page_retirement"),
		},
		PowerLimit: {
			Name: "power_limit", Unit: "watts", NonNegative: true, Zero: ZeroIsAbsent, Fact: true,
			Help: "Power limits of the device: enforced is in force now, default applies when the device starts, min and max " +
				"are the range that can be set, critical is the limit of peaks.",
			Labels: []Label{{Name: "limit", Values: []string{"enforced", "default", "min", "max", "critical"}}},
			Limits: "energy", LimitLabels: []string{"enforced", "default"},
		},
		PerformanceState: {
			Name: "performance_state", NonNegative: true, Max: maxPerformanceState, Fact: true,
			Help: "Performance state of the device: 0 is the highest; a higher number saves more power.",
		},
		ThrottleActive: {
			Name: "throttle_active", NonNegative: true, Max: 1, Fact: true,
			Help:   "1 if the device is throttled for the reason now, else 0. dra_device_throttled_seconds_total has the time.",
			Labels: []Label{{Name: "reason"}},
		},
		LinkWidth: {
			Name: "link_width", NonNegative: true, Max: maxLanes, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Help: "Negotiated number of lanes of a link of the device.",
		},
		LinkWidthMax: {
			Name: "link_width_max", NonNegative: true, Max: maxLanes, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Limits: "io_bytes", LimitLabels: []string{}, Link: LinkHasLanes,
			Help: "Highest number of lanes that the link can have with this device in this machine.",
		},
		LinkGeneration: {
			Name: "link_generation", NonNegative: true, Max: maxGeneration, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Help: "Negotiated generation of a link of the device: 5 for PCIe 5.0. It can fall while the device is idle, to " +
				"save power.",
		},
		LinkGenerationMax: {
			Name: "link_generation_max", NonNegative: true, Max: maxGeneration, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Limits: "io_bytes", LimitLabels: []string{}, Link: LinkHasGeneration,
			Help: "Highest generation that the link can have with this device in this machine.",
		},
		FabricState: {
			Name: "fabric_state", NonNegative: true, Max: 1, Fact: true,
			Help: "1 for the current state of the device in its fabric, which links it to other devices. Absent if it is in " +
				"no fabric.",
			Labels: []Label{{Name: "state", Values: []string{
				"healthy", "limited", "unhealthy", "failed", "not_started", "in_progress",
			}}},
		},
		MemoryReserved: {
			Name: "memory_reserved", Unit: "bytes", NonNegative: true, Fact: true,
			Help: "Device memory that is reserved for the driver and the firmware. It is included in the capacity, but not in " +
				"the memory in use.",
		},
		TemperatureMargin: {
			Name: "temperature_margin", Unit: "celsius", Fact: true,
			Help: "Difference between the temperature at which the device is throttled and its temperature; negative if it is " +
				"above.",
		},
		FanSpeed: {
			Name: "fan_speed", Unit: "ratio", NonNegative: true, Max: maxRatio, Fact: true,
			Help: "Speed to which the device's fan is set, as a fraction of its maximum, which a fan may exceed. Absent if " +
				"there is no fan.",
		},
		RDMAEvents: {
			Name: "rdma_events", Type: Counter, NonNegative: true, MaxRate: maxBytesRate,
			Help: "Congestion, retransmissions and failures that the RDMA device counts, by the name of the kernel's file. " +
				"port_xmit_wait counts ticks of the hardware, retrans_bytes counts bytes.",
			Labels: []Label{{Name: "event"}},
		},
		LinkUp: {
			Name: "link_up", NonNegative: true, Max: 1, Fact: true,
			Help:   "1 if the link of a port of the device is up (RDMA: its state is ACTIVE), 0 if it is not.",
			Labels: []Label{{Name: "link", Values: []string{"network", "rdma"}}, {Name: "port"}},
		},
		HostMemoryUsed: {
			Name: "host_memory_used", Unit: "bytes", NonNegative: true,
			Help: "Memory of the host that the device uses as its own (GTT of AMD GPUs).",
		},
		HostMemoryCapacity: {
			Name: "host_memory_capacity", Unit: "bytes", NonNegative: true, Fact: true,
			Help: "Highest amount of the host's memory that the device can use as its own.",
		},
		RequestsInFlight: {
			Name: "requests_in_flight", NonNegative: true, Max: 1e9,
			Help: "Requests that the storage device has received and not completed yet.",
		},
		FanRotation: {
			Name: "fan_rotation", Metric: "fan_rpm", NonNegative: true, Max: maxRotation, Zero: ZeroNeedsOther, Fact: true,
			Help:   "Speed of one fan of the device in revolutions per minute; 0 if it does not turn.",
			Labels: []Label{{Name: "fan"}},
		},
		MemoryUsedPeak: {
			Name: "memory_used_peak", Unit: "bytes", Sharing: Witnessed, NonNegative: true,
			Help: "Highest memory use of all readings so far.",
			Fact: true, Internal: true, Derived: true,
		},
		PowerPeak: {
			Name: "power_peak", Unit: "watts", Sharing: Witnessed, NonNegative: true,
			Help: "Highest power of all readings so far.",
			Fact: true, Internal: true, Derived: true,
		},
		Voltage: {
			Name: "voltage", Unit: "volts", Zero: ZeroIsAbsent, Fact: true,
			Help:   "Voltage of one power supply rail of the device.",
			Labels: []Label{{Name: "domain"}},
		},
		RDMAPackets: packets("rdma_packets", "Packets that the RDMA device received or transmitted."),
		RDMAOperations: {
			Name: "rdma_operations", Type: Counter, NonNegative: true, MaxRate: maxBytesRate,
			Help: "Operations that the RDMA device counts, by the name of the kernel's file: requests, work requests, packets " +
				"of a kind. Files whose names end in bytes or Octets count bytes.",
			Labels: []Label{{Name: "operation"}},
		},
		StorageUsed: {
			Name: "storage_used", Unit: "bytes", NonNegative: true,
			Help: "Storage of the device that is allocated, as counted by the device (NVMe: NUSE of its namespaces). " +
				"dra_device_capacity{resource=\"storage\"} is the total.",
		},
		ClockMax: {
			Name: "clock_max", Unit: "hertz", NonNegative: true, Zero: ZeroIsAbsent, Fact: true,
			Help: "Highest frequency at which one clock domain of the device can run.", Labels: []Label{{Name: "domain"}},
		},
		TensorThroughput: {
			Name: "tensor_throughput", Unit: "ratio", Sharing: Additive, NonNegative: true, Max: maxRatio,
			Help: "Share of the highest rate of the tensor cores that they reach, 0 to 1: the share of time in which they are " +
				"busy, times the clock of the SMs over its maximum.",
			Integral: "tensor_seconds", Internal: true, Derived: true,
		},
		TensorSeconds: {
			Name: "tensor_seconds", Unit: "seconds", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Time for which the tensor cores were busy, at the highest clock: the integral of their throughput, by " +
				"which an hour at half of the clock counts half an hour. Its rate is the overall FLOP utilization.",
			Internal: true, Derived: true,
		},
	}
}

// packets returns a counter of packets by direction.
func packets(name, help string) Spec {
	return Spec{
		Name: name, Help: help, Type: Counter, NonNegative: true, MaxRate: maxPackets, Labels: []Label{directions()},
	}
}

func errorLabels(kinds ...string) []Label {
	return []Label{{Name: "kind", Values: kinds}, {Name: "code"}}
}

// Bounds of quantities whose unit has none. The highest performance state is NVML_PSTATE_15;
// NVML_PSTATE_UNKNOWN is 32.
const (
	maxPerformanceState = 15
	maxLanes            = 256
	maxGeneration       = 16
	maxRotation         = 6e4 // hwmon chips return 65535 for no value
)

func directions() Label { return Label{Name: "direction", Values: []string{"receive", "transmit"}} }

// maxRatio allows for rounding and for counters that were read at slightly different times: 1.1 is
// such an error, 50 is a percentage.
const maxRatio = 1.5
