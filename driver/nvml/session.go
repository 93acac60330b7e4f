//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// maxGPUs is the maximum number of GPUs of a machine.
const maxGPUs = 64

// session is the time between an initialisation of NVML and its shutdown.
type session struct {
	lib     nvml.Interface
	begun   time.Time
	brief   bool   // it ends after one sample, so that GPM and events are not available
	driver  string // version of the kernel driver
	cuda    string // newest version of CUDA that the driver supports
	queries []query
	has     sync.Map      // whether the library has a function, by its name
	events  nvml.EventSet // nil: none
}

// foundGPU is a GPU as NVML enumerates it.
type foundGPU struct {
	handle   nvml.Device
	minor    int
	hardware driver.Hardware
}

// opened is the result of an initialisation of NVML.
type opened struct {
	session *session
	gpus    []foundGPU
	err     error  // of GPUs that could not be identified
	bound   string // result of boundDevices before the initialisation
}

// openSession opens the library, initialises NVML and enumerates the GPUs.
func openSession(config Config, now time.Time, brief bool) (*opened, error) {
	bound := boundDevices(config.Sysfs)
	lib, err := openLibrary(config.Library)
	if err != nil {
		return nil, fmt.Errorf("initialise NVML: %w", err)
	}
	s := &session{lib: lib, begun: now, brief: brief, queries: queries()}
	s.driver, _ = lib.SystemGetDriverVersion() // may be missing
	if version, answer := lib.SystemGetCudaDriverVersion_v2(); answer == nvml.SUCCESS {
		s.cuda = nvidia.CUDAVersion(version)
	}
	o := &opened{session: s, bound: bound}
	count, answer := lib.DeviceGetCount()
	o.err = failure("nvmlDeviceGetCount_v2", answer)
	for i := range min(count, maxGPUs) {
		found, err := s.identify(i)
		if err != nil {
			o.err = errors.Join(o.err, fmt.Errorf("identify GPU %d: %w", i, err))
			continue
		}
		o.gpus = append(o.gpus, found)
	}
	if !brief {
		s.subscribe(o.gpus)
	}
	return o, nil
}

// lacks reports whether a name is that of a function that the library does not have: old drivers
// lack some. The program would end if it called one.
func (s *session) lacks(name string) bool {
	if !strings.HasPrefix(name, "nvml") {
		return false // a field
	}
	has, known := s.has.Load(name)
	if !known {
		has = s.lib.Extensions().LookupSymbol(name) == nil
		s.has.Store(name, has)
	}
	return has != true
}

// identify returns the identity and facts of the GPU with an index.
func (s *session) identify(index int) (foundGPU, error) {
	device, answer := s.lib.DeviceGetHandleByIndex(index)
	if answer != nvml.SUCCESS {
		return foundGPU{}, failure("nvmlDeviceGetHandleByIndex_v2", answer)
	}
	f := foundGPU{handle: device, minor: -1, hardware: driver.Hardware{
		Vendor: "nvidia", DriverVersion: s.driver, CUDAVersion: s.cuda,
	}}
	if f.hardware.UUID, answer = device.GetUUID(); answer != nvml.SUCCESS {
		return foundGPU{}, failure("nvmlDeviceGetUUID", answer)
	}
	if pci, answer := device.GetPciInfo(); answer == nvml.SUCCESS {
		f.hardware.PCI = driver.NormalizePCI(fmt.Sprintf("%x:%x:%x.0", pci.Domain, pci.Bus, pci.Device))
	}
	if minor, answer := device.GetMinorNumber(); answer == nvml.SUCCESS {
		f.minor = minor
		f.hardware.DeviceNodes = []string{fmt.Sprintf("/dev/nvidia%d", minor)} // see nvml.h
	}
	f.hardware.Model, _ = device.GetName() // these may be missing
	f.hardware.Serial, _ = device.GetSerial()
	f.hardware.FirmwareVersion, _ = device.GetVbiosVersion()
	return f, nil
}

// close frees the GPUs' objects and shuts NVML down, which closes all of its files.
func (s *session) close(gpus []*gpu) error {
	for _, g := range gpus {
		g.release()
	}
	if s.events != nil {
		_ = s.events.Free() // the shutdown frees it too
	}
	return shutDown(s.lib)
}
