//go:build cgo

package dcgm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

const (
	// maxGPUs is the maximum number of GPUs of an engine (DCGM_MAX_NUM_DEVICES).
	maxGPUs = 32
	// liveData is DCGM_FV_FLAG_LIVE_DATA of dcgm_agent.h: values are read now, without a watch.
	liveData = 1
)

// layout has the GPUs and MIG devices by the engine's numbers.
type layout struct {
	gpus  []uint
	parts []part
}

// part is a MIG device: a compute instance of a GPU instance.
type part struct {
	gpuUUID             string
	gpuInstance         entity
	compute             entity
	nvmlID, nvmlCompute uint
	profile             uint // of the GPU instance
	shared              bool // its GPU instance has several compute instances, so that values of it belong to none of them
}

func (l layout) equal(other layout) bool {
	return slices.Equal(l.gpus, other.gpus) && slices.Equal(l.parts, other.parts)
}

// findLayout returns the engine's GPUs and MIG devices. If only the MIG devices cannot be listed,
// it returns the GPUs and an error.
func findLayout() (layout, error) {
	gpus, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil {
		return layout{}, fmt.Errorf("list DCGM's GPUs: %w", err)
	}
	l := layout{gpus: gpus[:min(len(gpus), maxGPUs)]}
	slices.Sort(l.gpus)
	hierarchy, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		return l, fmt.Errorf("list DCGM's MIG instances: %w", err)
	}
	l.parts = partsOf(hierarchy.EntityList[:min(hierarchy.Count, uint(len(hierarchy.EntityList)))])
	return l, nil
}

// partsOf returns the compute instances of a hierarchy (dcgmMigHierarchyInfo_v2, which has each
// entity with its parent).
func partsOf(all []dcgm.MigHierarchyInfo_v2) []part {
	var parts []part
	siblings, profiles := map[entity]int{}, map[entity]uint{}
	for _, e := range all {
		if e.Entity.EntityGroupId != dcgm.FE_GPU_CI {
			profiles[e.Entity] = e.Info.NvmlMigProfileId
			continue
		}
		siblings[e.Parent]++
		parts = append(parts, part{
			gpuUUID: e.Info.GpuUuid, gpuInstance: e.Parent, compute: e.Entity,
			nvmlID: e.Info.NvmlInstanceId, nvmlCompute: e.Info.NvmlComputeInstanceId,
		})
	}
	for i := range parts {
		parts[i].shared = siblings[parts[i].gpuInstance] > 1
		parts[i].profile = profiles[parts[i].gpuInstance]
	}
	return parts
}

// device is a GPU or a MIG device.
type device struct {
	hardware driver.Hardware
	of       scope    // scopes of its fields, without regard to MIG mode
	values   entity   // entity with its fields; zero: none
	events   []entity // entities with its XID errors
	profile  uint     // of a MIG device
}

// identify returns the devices of a layout, and an error for those that cannot be identified.
func (l layout) identify() ([]device, error) {
	if len(l.gpus) == 0 {
		return nil, nil
	}
	facts, err := readFacts(l.gpus)
	if err != nil {
		return nil, err
	}
	var devices []device
	var errs []error
	for _, gpu := range l.gpus {
		h := facts[gpu]
		if h.UUID == "" {
			errs = append(errs, fmt.Errorf("identify DCGM's GPU %d: it has no UUID", gpu))
			continue
		}
		e := entity{EntityGroupId: dcgm.FE_GPU, EntityId: gpu}
		devices = append(devices, device{hardware: h, of: anyGPU | wholeGPU, values: e, events: []entity{e}})
	}
	for _, p := range l.parts {
		d := p.device()
		if i := slices.IndexFunc(devices, func(d device) bool { return d.hardware.UUID == p.gpuUUID }); i >= 0 {
			d.hardware.DriverVersion = devices[i].hardware.DriverVersion
			d.hardware.CUDAVersion = devices[i].hardware.CUDAVersion
		}
		devices = append(devices, d)
	}
	return devices, errors.Join(errs...)
}

// device returns the MIG device. DCGM does not report its UUID: it is identified by its GPU and the
// numbers of its instances.
func (p part) device() device {
	d := device{
		hardware: driver.Hardware{
			Kind: driver.KindPartition, Parent: p.gpuUUID, Vendor: "nvidia",
			Instance: nvidia.Instance(int(p.nvmlID), int(p.nvmlCompute)),
		},
		of: instance, events: []entity{p.compute}, profile: p.profile,
	}
	if !p.shared {
		d.values, d.events = p.gpuInstance, append(d.events, p.gpuInstance)
	}
	return d
}

// readFacts returns the identity and facts of GPUs.
func readFacts(gpus []uint) (map[uint]driver.Hardware, error) {
	entities := make([]entity, len(gpus))
	for i, gpu := range gpus {
		entities[i] = entity{EntityGroupId: dcgm.FE_GPU, EntityId: gpu}
	}
	ids := []dcgm.Short{
		dcgm.DCGM_FI_DEV_GPU_UUID, dcgm.DCGM_FI_DEV_PCI_BUS_ID, dcgm.DCGM_FI_DEV_GPU_NAME,
		dcgm.DCGM_FI_SYSTEM_DRIVER_VERSION, dcgm.DCGM_FI_CUDA_DRIVER_VERSION, dcgm.DCGM_FI_DEV_BOARD_SERIAL,
		dcgm.DCGM_FI_DEV_VBIOS_VERSION,
	}
	values, err := dcgm.EntitiesGetLatestValues(entities, ids, liveData)
	if err != nil {
		return nil, fmt.Errorf("identify DCGM's GPUs: %w", err)
	}
	facts := map[uint]driver.Hardware{}
	for i := range values {
		v := &values[i]
		h := facts[v.EntityID]
		h.Vendor = "nvidia"
		switch v.FieldID {
		case dcgm.DCGM_FI_DEV_GPU_UUID:
			h.UUID = text(v)
		case dcgm.DCGM_FI_DEV_PCI_BUS_ID:
			h.PCI = driver.NormalizePCI(text(v))
		case dcgm.DCGM_FI_DEV_GPU_NAME:
			h.Model = text(v)
		case dcgm.DCGM_FI_SYSTEM_DRIVER_VERSION:
			h.DriverVersion = text(v)
		case dcgm.DCGM_FI_CUDA_DRIVER_VERSION:
			if n := decode(values[i : i+1])[0]; !n.absent {
				h.CUDAVersion = nvidia.CUDAVersion(int(n.number))
			}
		case dcgm.DCGM_FI_DEV_BOARD_SERIAL:
			h.Serial = text(v)
		case dcgm.DCGM_FI_DEV_VBIOS_VERSION:
			h.FirmwareVersion = text(v)
		}
		facts[v.EntityID] = h
	}
	return facts, nil
}
