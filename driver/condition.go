package driver

// conditionSpec is the part of the standard catalogue for the condition and the settings of the
// hardware, which do not depend on who uses it.
func conditionSpec(q Quantity) Spec {
	switch q {
	case NeedsAttention:
		return Spec{
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
		}
	case LifetimeErrors:
		return Spec{
			Name: "lifetime_errors", NonNegative: true, Max: maxErrors * countsFor, Fact: true,
			Help:   "Errors that the device has recorded over its lifetime, including those before the exporter started.",
			Labels: errorLabels("ecc_corrected", "ecc_uncorrected", "row_remap", "page_retirement"),
		}
	case PowerLimit:
		return Spec{
			Name: "power_limit", Unit: "watts", NonNegative: true, Zero: ZeroIsAbsent, Fact: true,
			Help: "Power limits of the device: enforced is in force now, default applies when the device starts, min and max " +
				"are the range that can be set, critical is the limit of peaks.",
			Labels: []Label{{Name: "limit", Values: []string{"enforced", "default", "min", "max", "critical"}}},
			Limits: "energy", LimitLabels: []string{"enforced", "default"},
		}
	case ClockMax:
		return Spec{
			Name: "clock_max", Unit: "hertz", NonNegative: true, Zero: ZeroIsAbsent, Fact: true,
			Help: "Highest frequency at which one clock domain of the device can run.", Labels: []Label{{Name: "domain"}},
		}
	case PerformanceState:
		return Spec{
			Name: "performance_state", NonNegative: true, Max: maxPerformanceState, Fact: true,
			Help: "Performance state of the device: 0 is the highest; a higher number saves more power.",
		}
	case ThrottleActive:
		return Spec{
			Name: "throttle_active", NonNegative: true, Max: 1, Fact: true,
			Help:   "1 if the device is throttled for the reason now, else 0. dra_device_throttled_seconds_total has the time.",
			Labels: []Label{{Name: "reason"}},
		}
	default:
		return linkSpec(q)
	}
}

// maxPerformanceState is NVML_PSTATE_15. NVML_PSTATE_UNKNOWN is 32.
const maxPerformanceState = 15

// Bounds of quantities whose unit has none.
const (
	maxLanes      = 256
	maxGeneration = 16
	maxRotation   = 1e5
)

// linkSpec is the part of the standard catalogue for the links of the hardware.
func linkSpec(q Quantity) Spec {
	links := []Label{{Name: "link", Values: []string{"pcie", "xgmi"}}}
	switch q {
	case LinkWidth:
		return Spec{
			Name: "link_width", NonNegative: true, Max: maxLanes, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Help: "Negotiated number of lanes of a link of the device.",
		}
	case LinkWidthMax:
		return Spec{
			Name: "link_width_max", NonNegative: true, Max: maxLanes, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Limits: "io_bytes", LimitLabels: []string{}, Link: LinkHasLanes,
			Help: "Highest number of lanes that the link can have with this device in this machine.",
		}
	case LinkGeneration:
		return Spec{
			Name: "link_generation", NonNegative: true, Max: maxGeneration, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Help: "Negotiated generation of a link of the device: 5 for PCIe 5.0. It can fall while the device is idle, to " +
				"save power.",
		}
	case LinkGenerationMax:
		return Spec{
			Name: "link_generation_max", NonNegative: true, Max: maxGeneration, Zero: ZeroIsAbsent, Fact: true, Labels: links,
			Limits: "io_bytes", LimitLabels: []string{}, Link: LinkHasGeneration,
			Help: "Highest generation that the link can have with this device in this machine.",
		}
	case FabricState:
		return Spec{
			Name: "fabric_state", NonNegative: true, Max: 1, Fact: true,
			Help: "1 for the current state of the device in its fabric, which links it to other devices. Absent if it is in " +
				"no fabric.",
			Labels: []Label{{Name: "state", Values: []string{
				"healthy", "limited", "unhealthy", "failed", "not_started", "in_progress",
			}}},
		}
	case MemoryReserved:
		return Spec{
			Name: "memory_reserved", Unit: "bytes", NonNegative: true, Fact: true,
			Help: "Device memory that is reserved for the driver and the firmware. It is included in the capacity, but not in " +
				"the memory in use.",
		}
	default:
		return coolingSpec(q)
	}
}

// coolingSpec is the part of the standard catalogue for power supply and cooling.
func coolingSpec(q Quantity) Spec {
	switch q {
	case TemperatureMargin:
		return Spec{
			Name: "temperature_margin", Unit: "celsius", Fact: true,
			Help: "Difference between the temperature at which the device is throttled and its temperature; negative if it is " +
				"above.",
		}
	case FanSpeed:
		return Spec{
			Name: "fan_speed", Unit: "ratio", NonNegative: true, Max: maxRatio, Fact: true,
			Help: "Speed to which the device's fan is set, as a fraction of its maximum, which a fan may exceed. Absent if " +
				"there is no fan.",
		}
	case Voltage:
		return Spec{
			Name: "voltage", Unit: "volts", Zero: ZeroIsAbsent, Fact: true,
			Help:   "Voltage of one power supply rail of the device.",
			Labels: []Label{{Name: "domain"}},
		}
	case FanRotation:
		return Spec{
			Name: "fan_rotation", Metric: "fan_rpm", NonNegative: true, Max: maxRotation, Zero: ZeroNeedsOther, Fact: true,
			Help:   "Speed of one fan of the device in revolutions per minute; 0 if it does not turn.",
			Labels: []Label{{Name: "fan"}},
		}
	default:
		return Spec{}
	}
}
