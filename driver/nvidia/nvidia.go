// Package nvidia has what the sources of NVIDIA devices share: names of MIG devices, counters of
// XID errors, and sessions with a library that are reopened after a failure. It imports no library
// of NVIDIA.
//
// Bounds (max…) are for what vendors' libraries send.
package nvidia

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
)

// Instance returns driver.Hardware.Instance of a MIG device, given NVML's IDs of its GPU instance
// and of its compute instance.
func Instance(gpuInstance, compute int) string {
	return strconv.Itoa(gpuInstance) + "/" + strconv.Itoa(compute)
}

// Placement returns driver.Hardware.Placement of a MIG device, given the minor number of its GPU,
// the ID of its profile, and its first memory slice.
func Placement(minor, profile, start int) string {
	return fmt.Sprintf("nvidia/%d/%d/%d", minor, profile, start)
}

// CUDAVersion returns the CUDA version for its number in NVML and DCGM: 12.8 for 12080
// (CUDA_VERSION in cuda.h). It returns "" if the number is not positive.
func CUDAVersion(number int) string {
	if number <= 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", number/1000, number%1000/10)
}

// ComputeSlices returns the number of compute slices of a MIG profile: 3 for 3g.40gb, 1 for
// 1c.3g.40gb and 1g.10gb+me (NVIDIA's MIG User Guide, "Partitioning"). It returns 0 if the text is
// not a profile.
func ComputeSlices(profile string) int {
	first, _, _ := strings.Cut(profile, ".")
	number, isCompute := strings.CutSuffix(first, "c")
	if !isCompute {
		var isGPU bool
		if number, isGPU = strings.CutSuffix(first, "g"); !isGPU {
			return 0
		}
	}
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return 0
	}
	return int(n)
}

// ParentInName returns the name of the GPU's DRA device, gpu-MINOR (CanonicalName of GpuInfo in
// cmd/gpu-kubelet-plugin), given the name of a MIG device. It returns "" for other names.
func ParentInName(device string) string {
	parent, _, isMIG := strings.Cut(device, "-mig-")
	if !isMIG || PlacementInName(device) == "" {
		return ""
	}
	return parent
}

// PlacementInName returns the placement in the name of a MIG device's DRA device,
// gpu-MINOR-mig-PROFILE-PROFILE_ID-START with a profile such as 1g10gb or 1g10gb-me
// (ToCanonicalName in cmd/gpu-kubelet-plugin of kubernetes-sigs/dra-driver-nvidia-gpu). It returns
// "" for other names.
func PlacementInName(device string) string {
	fields := regexp.MustCompile(`^gpu-(\d+)-mig-.+-(\d+)-(\d+)$`).FindStringSubmatch(device)
	if fields == nil {
		return ""
	}
	return "nvidia/" + strings.Join(fields[1:], "/")
}

// Fills returns the quantities that both NVML and DCGM have.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.EngineUtilization, driver.Occupancy, driver.MemoryUsed, driver.MemoryCapacity,
		driver.Power, driver.Energy, driver.Temperature, driver.Clock, driver.IOBytes, driver.Errors,
		driver.ThrottledSeconds, driver.NeedsAttention, driver.LifetimeErrors, driver.PowerLimit, driver.ClockMax,
		driver.PerformanceState, driver.ThrottleActive, driver.LinkWidth, driver.LinkWidthMax, driver.LinkGeneration,
		driver.LinkGenerationMax, driver.FabricState, driver.MemoryReserved, driver.TemperatureMargin, driver.FanSpeed,
	}
}

// RecoveryAction returns the reading of driver.NeedsAttention for a recovery action that the driver
// requests (nvmlDeviceGpuRecoveryAction_t). Its value is 0 for NVML_GPU_RECOVERY_ACTION_NONE.
func RecoveryAction(code float64, at time.Time) driver.Reading {
	action, value := "investigate", 1.
	switch code {
	case 0: // NONE
		action, value = "reset", 0
	case 1, 4, 6: // GPU_RESET, DRAIN_AND_RESET, BUS_RESET
		action = "reset"
	case 2, 7: // NODE_REBOOT, SYSTEM_REBOOT
		action = "reboot"
	case 3: // DRAIN_P2P
		action = "drain"
	case 5: // RECOVER_IMEX_DOMAIN
		action = "recover_fabric"
	}
	return driver.Reading{
		Quantity: driver.NeedsAttention, Labels: driver.Labels{action, "recovery_action"}, Value: value, At: at,
	}
}

// ThrottleActive returns the readings of driver.ThrottleActive for a bitmask of reasons
// (nvmlClocksEventReason*, equal to DCGM_CLOCKS_EVENT_REASON_*). The labels are those of
// driver.ThrottledSeconds, and other for all other reasons except an idle GPU and configured
// clocks. A hardware slowdown whose cause has its own bit counts only for that cause.
func ThrottleActive(mask uint64, at time.Time) []driver.Reading {
	const (
		gpuIdle, chosenClocks, hardwareSlowdown = 0x1, 0x2, 0x8
		power, thermal, hwThermal, powerBrake   = 0x4, 0x20, 0x40, 0x80
	)
	other := mask &^ (gpuIdle | chosenClocks | power | thermal | hwThermal | powerBrake)
	if mask&(hwThermal|powerBrake) != 0 {
		other &^= hardwareSlowdown
	}
	var out []driver.Reading
	for _, reason := range []struct {
		name string
		bits uint64
	}{
		{"power", mask & power},
		{"thermal", mask & thermal},
		{"hw_thermal", mask & hwThermal},
		{"hw_power_brake", mask & powerBrake},
		{"other", other},
	} {
		out = append(out, driver.Reading{
			Quantity: driver.ThrottleActive, Labels: driver.Labels{reason.name}, Value: driver.Flag(reason.bits != 0), At: at,
		})
	}
	return out
}

// FabricProbe is the state of a GPU's registration with the fabric of its machine or rack
// (nvmlGpuFabricState_t).
type FabricProbe uint64

// The states of a probe: NVML_GPU_FABRIC_STATE_NOT_STARTED to _COMPLETED.
const (
	FabricNotStarted FabricProbe = iota + 1
	FabricInProgress
	FabricCompleted
)

// FabricState returns the reading of driver.FabricState, or false if the GPU is in no fabric.
// failed means that the probe completed with an error. summary is healthSummary of
// nvmlGpuFabricInfo_v3_t (NVML_GPU_FABRIC_HEALTH_SUMMARY_*), 0 if it is unknown.
func FabricState(probe FabricProbe, failed bool, summary uint64, at time.Time) (driver.Reading, bool) {
	const unhealthy, limited = 2, 3
	state := "healthy"
	switch {
	case probe == FabricNotStarted:
		state = "not_started"
	case probe == FabricInProgress:
		state = "in_progress"
	case probe != FabricCompleted:
		return driver.Reading{}, false
	case failed:
		state = "failed"
	case summary == unhealthy:
		state = "unhealthy"
	case summary == limited:
		state = "limited"
	}
	return driver.Reading{Quantity: driver.FabricState, Labels: driver.Labels{state}, Value: 1, At: at}, true
}

// Attention removes the readings of driver.NeedsAttention whose value is 0. If that removes all of
// them, it adds the reading with action none and reason ok.
func Attention(readings []driver.Reading) []driver.Reading {
	none := driver.Reading{Quantity: driver.NeedsAttention, Labels: driver.Labels{"none", "ok"}, Value: 1}
	known, asked := false, false
	readings = slices.DeleteFunc(readings, func(r driver.Reading) bool {
		if r.Quantity != driver.NeedsAttention {
			return false
		}
		known, asked = true, asked || r.Value != 0
		if r.At.After(none.At) {
			none.At = r.At
		}
		return r.Value == 0
	})
	if known && !asked {
		readings = append(readings, none)
	}
	return readings
}

// MaxCodes is the maximum number of XID codes and severities per device that are counted
// separately; further codes are counted as "other". NVIDIA's list has fewer than 200.
const MaxCodes = 256

// XIDs counts the XID errors of one device by code and severity. The zero value is ready to use.
type XIDs struct {
	counts []xidCount
	events []driver.Event // not reported yet
	late   []driver.Event // to be reported one report later
}

// maxEvents is the maximum number of events of one sample.
const maxEvents = 64

type xidCount struct {
	labels       driver.Labels
	errors, late int
	since        time.Time
}

// Error is an error to be counted.
type Error struct {
	Code int64
	// Severity is what the driver's log says. Errors whose lines have one, and that were not read
	// from the log, are counted with severity unknown, one report later: the log, if it is read, is
	// then first, so that the error is counted once.
	Severity xid.Severity
	// Before is a time at which the counter of the code was zero; it is used only for the first error
	// of a code.
	Before time.Time
	// Event has the time and the process of the error, if they are known; with the zero time, the
	// error has no event.
	Event driver.Event
}

// Count counts one error.
func (x *XIDs) Count(e Error) {
	labels := driver.Labels{"xid", strconv.FormatInt(e.Code, 10)}
	unknown := e.Severity == xid.NoSeverity || e.Severity == xid.Unknown
	late := unknown && xid.HasSeverity(e.Code)
	switch {
	case late:
		labels[2] = string(xid.Unknown)
	case !unknown:
		labels[2] = string(e.Severity)
	}
	i := x.find(labels)
	if i < 0 && len(x.counts) >= MaxCodes {
		labels, late = driver.Labels{"xid", "other"}, false
		i = x.find(labels)
	}
	if i < 0 {
		x.counts = append(x.counts, xidCount{labels: labels, since: e.Before})
		i = len(x.counts) - 1
	}
	count, events := &x.counts[i].errors, &x.events
	if late {
		count, events = &x.counts[i].late, &x.late
	}
	*count++
	if !e.Event.At.IsZero() && len(*events) < maxEvents {
		e.Event.Quantity, e.Event.Labels = driver.Errors, labels
		*events = append(*events, e.Event)
	}
}

func (x *XIDs) find(labels driver.Labels) int {
	return slices.IndexFunc(x.counts, func(c xidCount) bool { return c.labels == labels })
}

// Report adds a reading of each code that was counted to a sample, and the events since the last
// report.
func (x *XIDs) Report(s *driver.Sample, now time.Time) {
	if x == nil {
		return
	}
	for i := range x.counts {
		c := &x.counts[i]
		if c.errors > 0 {
			s.Readings = append(s.Readings, driver.Reading{
				Quantity: driver.Errors, Labels: c.labels, Value: float64(c.errors), At: now, Since: c.since,
			})
		}
		c.errors, c.late = c.errors+c.late, 0
	}
	s.Events = append(s.Events, x.events...)
	x.events, x.late = x.late, nil
}
