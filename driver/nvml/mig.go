//go:build cgo

package nvml

import (
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// instance is a MIG device: a compute instance of a GPU instance.
type instance struct {
	handle      nvml.Device
	hardware    driver.Hardware
	gpuInstance int
	compute     int
	shared      bool // its GPU instance has several compute instances, so that values of it belong to none of them
}

// maxInstances is the maximum number of MIG devices of a GPU.
const maxInstances = 64

// findInstances returns the present MIG devices; none if MIG is off.
func (g *gpu) findInstances(r *reader) []instance {
	was := g.mig
	g.mig = false
	const mode = "nvmlDeviceGetMigMode"
	if !r.ask(mode) {
		return nil
	}
	current, _, answer := g.handle.GetMigMode()
	if !r.took(mode, answer) {
		return nil
	}
	g.mig = current == nvml.DEVICE_MIG_ENABLE
	if was != g.mig {
		g.forget()
	}
	if !g.mig {
		g.dropMeters(nil)
		return nil
	}
	count, answer := g.handle.GetMaxMigDeviceCount()
	if !r.took("nvmlDeviceGetMaxMigDeviceCount", answer) {
		return nil
	}
	var found []instance
	for i := range min(count, maxInstances) {
		if m, ok := g.findInstance(r, i); ok {
			m.hardware.ParentShare = shareOf(m.hardware.Profile, count)
			found = append(found, m)
		}
	}
	for i := range found {
		m := &found[i]
		m.shared = slices.ContainsFunc(found, func(other instance) bool {
			return other.gpuInstance == m.gpuInstance && other.compute != m.compute
		})
		if m.shared {
			m.hardware.Placement = "" // it is that of all of them
		}
	}
	g.dropMeters(found)
	return found
}

// shareOf returns the fraction of its GPU that a MIG device is: the compute slices of its profile,
// divided by those of the GPU, which are as many as the MIG devices that it can have. 0: unknown.
func shareOf(profile string, most int) float64 {
	if share := float64(nvidia.ComputeSlices(profile)) / float64(most); share <= 1 {
		return share
	}
	return 0
}

// findInstance identifies one MIG device. It returns false if there is none with that index, or if
// it is destroyed during the call.
func (g *gpu) findInstance(r *reader, index int) (instance, bool) {
	device, answer := g.handle.GetMigDeviceHandleByIndex(index)
	if !r.took("nvmlDeviceGetMigDeviceHandleByIndex", answer) {
		return instance{}, false
	}
	m := instance{handle: device, hardware: driver.Hardware{
		Kind: driver.KindPartition, Parent: g.hardware.UUID, Vendor: g.hardware.Vendor,
		DriverVersion: g.hardware.DriverVersion, CUDAVersion: g.hardware.CUDAVersion, NUMANode: g.hardware.NUMANode,
	}}
	if m.hardware.UUID, answer = device.GetUUID(); !r.took("nvmlDeviceGetUUID", answer) {
		return instance{}, false
	}
	if m.gpuInstance, answer = device.GetGpuInstanceId(); !r.took("nvmlDeviceGetGpuInstanceId", answer) {
		return instance{}, false
	}
	if m.compute, answer = device.GetComputeInstanceId(); !r.took("nvmlDeviceGetComputeInstanceId", answer) {
		return instance{}, false
	}
	m.hardware.Instance = nvidia.Instance(m.gpuInstance, m.compute)
	m.hardware.Model, _ = device.GetName() // a fact that may be missing
	_, m.hardware.Profile, _ = strings.Cut(m.hardware.Model, " MIG ")
	m.hardware.Placement = g.placement(r, m.gpuInstance)
	return m, true
}

// placement returns the placement of a GPU instance as in the device names of NVIDIA's DRA driver:
// the GPU's minor number, the ID of the profile and the first memory slice (nvmlGpuInstanceInfo_t);
// "" if one of them is unknown.
func (g *gpu) placement(r *reader, id int) string {
	const byID, infoOf = "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"
	if !r.ask(byID) || !r.ask(infoOf) {
		return ""
	}
	gpuInstance, answer := g.handle.GetGpuInstanceById(id)
	if !r.took(byID, answer) {
		return ""
	}
	info, answer := gpuInstance.GetInfo()
	if !r.took(infoOf, answer) || g.minor < 0 {
		return ""
	}
	return nvidia.Placement(g.minor, int(info.ProfileId), int(info.Placement.Start))
}

// readInstance reads the memory and GPM metrics of a MIG device, whose processes have been read.
// They are those of the GPU instance: if it has several compute instances, none of these has
// readings, so that they do not count several times.
func (r *reader) readInstance(m *instance) {
	if m.shared {
		return
	}
	const memory = "nvmlDeviceGetMemoryInfo_v2"
	if r.ask(memory) {
		r.took(memory, values(nvml.Device.GetMemoryInfo_v2, addMemory)(r, m.handle))
	}
	r.gpm(m.hardware.UUID, "nvmlGpmMigSampleGet", func(sample nvml.GpmSample) nvml.Return {
		return sample.MigGet(r.gpu.handle, m.gpuInstance)
	})
	r.report()
}

// dropMeters releases the meters of MIG devices that no longer exist, and in MIG mode that of the
// GPU.
func (g *gpu) dropMeters(present []instance) {
	for uuid, m := range g.meters {
		if !g.mig && uuid == g.hardware.UUID ||
			slices.ContainsFunc(present, func(i instance) bool { return i.hardware.UUID == uuid }) {
			continue
		}
		m.release(g.session.lib)
		delete(g.meters, uuid)
	}
}

// deviceOf returns the UUID of the MIG device with these IDs, or that of the GPU if there is none.
func (g *gpu) deviceOf(gpuInstance, compute uint32) string {
	for i := range g.instances {
		m := &g.instances[i]
		if gpuInstance != noInstance && m.gpuInstance == int(gpuInstance) && (!m.shared || m.compute == int(compute)) {
			return m.hardware.UUID
		}
	}
	return g.hardware.UUID
}
