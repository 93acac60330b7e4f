// Package nvidia holds what the sources of NVIDIA's devices share: names of MIG devices, counting
// of XID errors, and sessions with a library that are opened again when they fail. It imports no
// library of NVIDIA's.
package nvidia

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Instance returns driver.Hardware.Instance of a MIG device: NVML's IDs of its GPU instance and of
// its compute instance.
func Instance(gpuInstance, compute int) string {
	return strconv.Itoa(gpuInstance) + "/" + strconv.Itoa(compute)
}

// Placement returns driver.Hardware.Placement of a MIG device: the minor number of its GPU, the ID
// of its profile, and its first memory slice.
func Placement(minor, profile, start int) string {
	return fmt.Sprintf("nvidia/%d/%d/%d", minor, profile, start)
}

// CUDAVersion returns the version of CUDA that NVML and DCGM write as a number: 12.8 of 12080
// ("CUDA 11.1 = 11100", dcgm_fields.h; CUDA_VERSION of cuda.h). It is "" for what is none.
func CUDAVersion(number int) string {
	if number <= 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", number/1000, number%1000/10)
}

// ComputeSlices returns how many compute slices a MIG profile has: 3 of 3g.40gb, 1 of 1c.3g.40gb
// and of 1g.10gb+me; 0 of what is no profile (NVIDIA's MIG User Guide, "Partitioning").
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

// ParentInName returns the name that the GPU of a MIG device has as a DRA device, gpu-MINOR
// (CanonicalName of GpuInfo in cmd/gpu-kubelet-plugin), given the name of the MIG device; "" where
// that is none.
func ParentInName(device string) string {
	parent, _, isMIG := strings.Cut(device, "-mig-")
	if !isMIG || PlacementInName(device) == "" {
		return ""
	}
	return parent
}

// PlacementInName returns the placement that the name of a DRA device has, "" where it has none:
// gpu-MINOR-mig-PROFILE-PROFILE_ID-START with a profile such as 1g10gb or 1g10gb-me, as
// kubernetes-sigs/dra-driver-nvidia-gpu makes it (ToCanonicalName in cmd/gpu-kubelet-plugin).
func PlacementInName(device string) string {
	fields := regexp.MustCompile(`^gpu-(\d+)-mig-.+-(\d+)-(\d+)$`).FindStringSubmatch(device)
	if fields == nil {
		return ""
	}
	return "nvidia/" + strings.Join(fields[1:], "/")
}
