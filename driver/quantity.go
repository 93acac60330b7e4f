package driver

// Quantity is something that can be measured on a device. The quantities are a closed catalogue: every source gives
// the same meaning and unit to the same quantity.
type Quantity uint8

// The catalogue; [Quantity.Spec] describes each.
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
	NumQuantities // the number of quantities, not one of them
)

// MaxLabels is the highest number of labels that a quantity has.
const MaxLabels = 2

// Labels are the values of a quantity's own labels, in the order of Spec.Labels; the rest are empty.
type Labels [MaxLabels]string

// Type tells gauges from counters.
type Type uint8

// The types.
const (
	Gauge   Type = iota
	Counter      // cumulative, rises only
)

// String returns gauge or counter, as in the exposition formats.
func (t Type) String() string {
	if t == Counter {
		return "counter"
	}
	return "gauge"
}

// Sharing says what may be done with a value when several hold the device.
type Sharing uint8

// The ways of sharing.
const (
	Intensive Sharing = iota // never split, never summed: a temperature, a clock, a ratio of an engine
	Additive                 // may be split among holders, whose parts sum to the whole
)

// Label is a label of a quantity.
type Label struct {
	Name   string
	Values []string // the closed list of values; nil: open, bounded by what the hardware has
}

// Spec describes a quantity.
type Spec struct {
	Name    string // as in configuration files and in the label quantity
	Metric  string // the family's name behind the prefix dra_device_, dra_claim_ or dra_pod_
	Help    string
	Unit    string // Prometheus base unit; "" for a state
	Type    Type
	Sharing Sharing // additive quantities appear per claim and per pod too
	Labels  []Label
	// NonNegative values only: a negative one is rejected.
	NonNegative bool
	// Max, when above 0, is the highest value that makes sense; higher ones are rejected.
	Max float64
}

// Spec returns the quantity's description, the zero Spec for one that is not in the catalogue.
func (q Quantity) Spec() Spec {
	if q >= NumQuantities {
		return Spec{}
	}
	return catalogue()[q]
}

func catalogue() [NumQuantities]Spec { //nolint:funlen // a table
	directions := Label{Name: "direction", Values: []string{"receive", "transmit"}}
	specs := [NumQuantities]Spec{
		Utilization: {
			Metric: "utilization_ratio", Unit: "ratio", Sharing: Additive, NonNegative: true, Max: maxRatio,
			Help: "Share of time in which any engine of the device was busy, 0 to 1.",
		},
		EngineUtilization: {
			Metric: "engine_utilization_ratio", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Share of time in which one engine of the device was busy, 0 to 1.",
			Labels: []Label{{Name: "engine", Values: []string{
				"sm", "tensor", "dram", "copy", "encoder", "decoder", "jpeg", "ofa", "render", "video", "compute",
			}}},
		},
		Occupancy: {
			Metric: "occupancy_ratio", Unit: "ratio", NonNegative: true, Max: maxRatio,
			Help: "Resident warps or waves as a share of what the device can hold, 0 to 1.",
		},
		ActiveSeconds: {
			Metric: "active_seconds_total", Unit: "seconds", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Time in which the device was busy: the integral of its utilization.",
		},
		MemoryUsed: {
			Metric: "memory_used_bytes", Unit: "bytes", Sharing: Additive, NonNegative: true,
			Help: "Device memory in use.",
		},
		MemoryCapacity: {
			Metric: "memory_capacity_bytes", Unit: "bytes", NonNegative: true,
			Help: "Device memory in all.",
		},
		Power: {
			Metric: "power_watts", Unit: "watts", Sharing: Additive, NonNegative: true,
			Help: "Power drawn by the device.",
		},
		Energy: {
			Metric: "energy_joules_total", Unit: "joules", Type: Counter, Sharing: Additive, NonNegative: true,
			Help: "Energy used by the device: its hardware counter, or else the integral of its power.",
		},
		Temperature: {
			Metric: "temperature_celsius", Unit: "celsius",
			Help: "Temperature of one sensor of the device.", Labels: []Label{{Name: "sensor"}},
		},
		Clock: {
			Metric: "clock_hertz", Unit: "hertz", NonNegative: true,
			Help: "Frequency of one clock domain of the device.", Labels: []Label{{Name: "domain"}},
		},
		IOBytes: {
			Metric: "io_bytes_total", Unit: "bytes", Type: Counter, Sharing: Additive, NonNegative: true,
			Help:   "Bytes that crossed one of the device's links.",
			Labels: []Label{{Name: "link", Values: []string{"pcie", "nvlink", "network", "rdma", "xgmi"}}, directions},
		},
		NetworkPackets: {
			Metric: "network_packets_total", Type: Counter, NonNegative: true,
			Help: "Packets that the network device received or transmitted.", Labels: []Label{directions},
		},
		NetworkErrors: {
			Metric: "network_errors_total", Type: Counter, NonNegative: true,
			Help: "Packets that the network device received or transmitted with errors.", Labels: []Label{directions},
		},
		NetworkDrops: {
			Metric: "network_drops_total", Type: Counter, NonNegative: true,
			Help: "Packets that the network device dropped.", Labels: []Label{directions},
		},
		Errors: {
			Metric: "errors_total", Type: Counter, NonNegative: true,
			Help: "Errors that the device or its driver reported.",
			Labels: []Label{
				{Name: "kind", Values: []string{
					"xid", "ecc_corrected", "ecc_uncorrected", "pcie_replay", "ras", "link_down", "row_remap", "page_retirement", "other",
				}},
				{Name: "code"},
			},
		},
		ThrottledSeconds: {
			Metric: "throttled_seconds_total", Unit: "seconds", Type: Counter, NonNegative: true,
			Help: "Time in which the device ran below its clocks.", Labels: []Label{{Name: "reason"}},
		},
		Health: {
			Metric: "health", NonNegative: true, Max: 1,
			Help:   "Health of the device as its driver tells it: 1 for the present status, 0 for the others.",
			Labels: []Label{{Name: "status", Values: []string{"healthy", "unhealthy", "unknown"}}},
		},
		Capacity: {
			Metric: "capacity", NonNegative: true,
			Help:   "What the device has of a resource, in the resource's base unit (memory in bytes, speed in bytes per second).",
			Labels: []Label{{Name: "resource"}},
		},
	}
	for q := range NumQuantities {
		specs[q].Name = q.String()
	}
	return specs
}

// maxRatio leaves room for rounding and for counters read a little apart: 1.1 is late, 50 is a percentage.
const maxRatio = 1.5

// String returns the quantity's name, as in configuration files and in the label quantity; "" for one that is not in the
// catalogue. It costs nothing.
func (q Quantity) String() string {
	if q >= NumQuantities {
		return ""
	}
	return [NumQuantities]string{
		Utilization:       "utilization",
		EngineUtilization: "engine_utilization",
		Occupancy:         "occupancy",
		ActiveSeconds:     "active_seconds",
		MemoryUsed:        "memory_used",
		MemoryCapacity:    "memory_capacity",
		Power:             "power",
		Energy:            "energy",
		Temperature:       "temperature",
		Clock:             "clock",
		IOBytes:           "io_bytes",
		NetworkPackets:    "network_packets",
		NetworkErrors:     "network_errors",
		NetworkDrops:      "network_drops",
		Errors:            "errors",
		ThrottledSeconds:  "throttled_seconds",
		Health:            "health",
		Capacity:          "capacity",
	}[q]
}

// QuantityNamed returns the quantity of that name.
func QuantityNamed(name string) (Quantity, bool) {
	for q := range NumQuantities {
		if q.String() == name {
			return q, true
		}
	}
	return 0, false
}

// Configurable tells whether a scrape configuration may name the quantity: the catalogue less what only drivers and
// slices say of themselves.
func (q Quantity) Configurable() bool { return q < Health }
