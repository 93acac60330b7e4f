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
	shared      bool // its GPU instance has several compute instances: what NVML says of that is of none of these
}

// maxInstances bounds the MIG devices of a GPU.
const maxInstances = 64

// findInstances returns the MIG devices that there are now, so that a new layout is followed; none
// where MIG is off.
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
			m.hardware.Placement = "" // which of them is meant, it does not say
		}
	}
	g.dropMeters(found)
	return found
}

// shareOf returns which part of its GPU a MIG device is: the compute slices of its profile, of
// those that the GPU has. These are as many as it can have MIG devices. 0: unknown.
func shareOf(profile string, most int) float64 {
	if share := float64(nvidia.ComputeSlices(profile)) / float64(most); share <= 1 {
		return share
	}
	return 0
}

// findInstance identifies one MIG device. There may be none of that index, and one may be destroyed
// meanwhile.
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

// placement says where on the GPU a GPU instance lies, as NVIDIA's DRA driver does in its devices'
// names: by the GPU's minor number, the profile's ID and the first memory slice
// (nvmlGpuInstanceInfo_t). It is "" where that is unknown.
func (g *gpu) placement(r *reader, id int) string {
	const byID, infoOf = "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"
	if g.minor < 0 || !r.ask(byID) || !r.ask(infoOf) {
		return ""
	}
	gpuInstance, answer := g.handle.GetGpuInstanceById(id)
	if !r.took(byID, answer) {
		return ""
	}
	info, answer := gpuInstance.GetInfo()
	if !r.took(infoOf, answer) {
		return ""
	}
	return nvidia.Placement(g.minor, int(info.ProfileId), int(info.Placement.Start))
}

// readInstance reads a MIG device: its memory, processes and GPM metrics. All three are of the GPU
// instance; where that has several compute instances, none of them has the readings, which would
// count several times.
func (r *reader) readInstance(m *instance) {
	if m.shared {
		return
	}
	const memory = "nvmlDeviceGetMemoryInfo_v2"
	if r.ask(memory) {
		r.took(memory, readMemory(r, m.handle))
	}
	r.gpm(m.hardware.UUID, "nvmlGpmMigSampleGet", func(sample nvml.GpmSample) nvml.Return {
		return sample.MigGet(r.gpu.handle, m.gpuInstance)
	})
	r.memoryOfProcesses(m.handle)
	r.report()
}

// dropMeters releases the meters of MIG devices that are gone, and that of the GPU where it has
// such.
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

// deviceOf returns the UUID of the MIG device with these IDs; of the GPU where they are not given
// or there is none.
func (g *gpu) deviceOf(gpuInstance, compute uint32) string {
	for i := range g.instances {
		m := &g.instances[i]
		if gpuInstance != noInstance && m.gpuInstance == int(gpuInstance) && (!m.shared || m.compute == int(compute)) {
			return m.hardware.UUID
		}
	}
	return g.hardware.UUID
}
