//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// maxGPUs bounds the GPUs of a machine.
const maxGPUs = 64

// session is NVML between its initialisation and its shutdown.
type session struct {
	lib     nvml.Interface
	begun   time.Time
	brief   bool   // it ends with the sample: what needs two of them, or waits, is not for it
	driver  string // version of the kernel driver
	cuda    string // the newest version of CUDA that it supports
	queries []query
	has     map[string]bool // functions of the library that not every driver has
	events  nvml.EventSet   // nil: none
}

// foundGPU is a GPU as NVML enumerates it.
type foundGPU struct {
	handle   nvml.Device
	minor    int
	hardware driver.Hardware
}

// opened is what an initialisation of NVML found.
type opened struct {
	session *session
	gpus    []foundGPU
	err     error  // GPUs that could not be identified
	bound   string // the devices that the kernel driver had before
}

// openSession opens the library, initialises NVML and enumerates the GPUs.
func openSession(config Config, now time.Time, brief bool) (*opened, error) {
	bound := boundDevices(config.Sysfs)
	lib, err := openLibrary(config.Library)
	if err != nil {
		return nil, fmt.Errorf("initialise NVML: %w", err)
	}
	s := &session{lib: lib, begun: now, brief: brief, has: map[string]bool{}, queries: queries()}
	for _, symbol := range optionalFunctions() {
		s.has[symbol] = lib.Extensions().LookupSymbol(symbol) == nil
	}
	s.driver, _ = lib.SystemGetDriverVersion() // a fact that may be missing
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

// identify says which GPU the one with that index is: by nvmlDeviceGetUUID,
// nvmlDeviceGetPciInfo_v3, nvmlDeviceGetMinorNumber and nvmlDeviceGetName, and what is known of it:
// nvmlDeviceGetSerial and nvmlDeviceGetVbiosVersion.
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
		f.hardware.DeviceNodes = []string{fmt.Sprintf("/dev/nvidia%d", minor)} // as the header says of the minor number
	}
	f.hardware.Model, _ = device.GetName() // facts that may be missing
	f.hardware.Serial, _ = device.GetSerial()
	f.hardware.FirmwareVersion, _ = device.GetVbiosVersion()
	return f, nil
}

// close frees what the GPUs hold, shuts NVML down, which closes all of its files.
func (s *session) close(gpus []*gpu) error {
	for _, g := range gpus {
		g.release()
	}
	if s.events != nil {
		_ = s.events.Free() // the shutdown ends what this does not
	}
	return shutDown(s.lib)
}
