// Package nvidia has what the sources of NVIDIA devices share: names of MIG devices, counters of
// XID errors, and sessions with a library that are reopened after a failure. It imports no library
// of NVIDIA.
//
// Bounds (max…) are for what vendors' libraries send.
package nvidia

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
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
