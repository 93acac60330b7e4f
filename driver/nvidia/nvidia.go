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

// PlacementInName returns the placement that the name of a DRA device has, "" where it has none:
// gpu-MINOR-mig-PROFILE-PROFILE_ID-START, as k8s-dra-driver-gpu makes it (ToCanonicalName in
// cmd/gpu-kubelet-plugin).
func PlacementInName(device string) string {
	fields := regexp.MustCompile(`^gpu-(\d+)-mig-.+-(\d+)-(\d+)$`).FindStringSubmatch(device)
	if fields == nil {
		return ""
	}
	return "nvidia/" + strings.Join(fields[1:], "/")
}
