//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

const (
	// maxEvents bounds the events that one sample takes.
	maxEvents = 256
	// noInstance is the ID of a GPU or compute instance that an event does not tell
	// (nvmlEventData_t).
	noInstance = 0xffffffff
)

// subscribe asks for the XID errors of the GPUs (nvmlDeviceRegisterEvents). A GPU that reports
// none, or a machine where events can't be had, is as it is.
func (s *session) subscribe(gpus []foundGPU) {
	set, answer := s.lib.EventSetCreate()
	if answer != nvml.SUCCESS {
		return
	}
	s.events = set
	for _, g := range gpus {
		_ = g.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set)
	}
}

// polled is what the events say.
type polled struct {
	events []nvml.EventData
	err    error
}

// poll takes the events that have come since the poll before, or since the session began.
// nvmlEventSetWait_v2 waits for at least a millisecond where there is none.
func (s *session) poll() polled {
	var p polled
	if s.events == nil {
		return p
	}
	for len(p.events) < maxEvents {
		event, answer := s.events.Wait(1)
		switch {
		case answer == nvml.SUCCESS:
			if event.EventType == nvml.EventTypeXidCriticalError {
				p.events = append(p.events, event)
			}
			continue
		case answer != nvml.ERROR_TIMEOUT && kindOf(answer) == unreadable:
			p.err = failure("nvmlEventSetWait_v2", answer)
		}
		break
	}
	return p
}

// xidCounts count the XID errors of each device, by its UUID.
type xidCounts map[string]*nvidia.XIDs

// add counts events. A GPU had no error of a new code when it was last read.
func (c xidCounts) add(p polled, gpus []*gpu) {
	for _, e := range p.events {
		i := slices.IndexFunc(gpus, func(g *gpu) bool { return g.handle == e.Device })
		if i < 0 {
			continue
		}
		uuid := gpus[i].deviceOf(e.GpuInstanceId, e.ComputeInstanceId)
		if c[uuid] == nil {
			c[uuid] = &nvidia.XIDs{}
		}
		c[uuid].Count(int64(e.EventData), gpus[i].readAt, driver.Event{}) // NVML does not tell when
	}
}

// report adds the counts, as of now, to the samples of the devices, also of those that can't be
// read: the error that says why a GPU is lost comes when it is.
func (c xidCounts) report(samples []driver.Sample, now time.Time) {
	for i := range samples {
		s := &samples[i]
		c[s.Hardware.UUID].Report(s, now)
	}
}
