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
	// maxEvents is the maximum number of events of one sample.
	maxEvents = 256
	// noInstance is the ID of an event without GPU or compute instance (nvmlEventData_t).
	noInstance = 0xffffffff
)

// subscribe subscribes to the XID errors of the GPUs (nvmlDeviceRegisterEvents). It ignores GPUs
// and machines that do not support events.
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

// polled is the result of poll.
type polled struct {
	events []nvml.EventData
	err    error
}

// poll returns the events since the poll before, or since the start of the session.
// nvmlEventSetWait_v2 waits for at least a millisecond if there is none.
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

// xidCounts has the XID errors of each device, by UUID.
type xidCounts map[string]*nvidia.XIDs

// add counts events. The counter of a new code was zero when the GPU was last read.
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
		c[uuid].Count(nvidia.Error{Code: int64(e.EventData), Before: gpus[i].readAt}) // NVML does not report the time
	}
}

// report adds the counts, as of now, to the samples of all devices, including lost GPUs, whose last
// error shows the cause.
func (c xidCounts) report(samples []driver.Sample, now time.Time) {
	for i := range samples {
		s := &samples[i]
		c[s.Hardware.UUID].Report(s, now)
	}
}
