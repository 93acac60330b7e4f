//go:build cgo

package nvml

import (
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// maxEvents bounds the events that one sample takes.
	maxEvents = 256
	// maxCodes bounds the XID codes that are counted apart on one device; NVIDIA's list has fewer than 200.
	maxCodes = 256
	// noInstance is the ID of a GPU or compute instance that an event does not tell (nvmlEventData_t).
	noInstance = 0xffffffff
)

// subscribe asks for the XID errors of the GPUs (nvmlDeviceRegisterEvents). A GPU that reports none, or a machine where
// events can't be had, is as it is.
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

// poll takes the events that have come since the poll before, or since the session began. nvmlEventSetWait_v2 waits for
// at least a millisecond where there is none.
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

// xidCounts count the XID errors of each device, by its UUID, and code.
type xidCounts map[string]map[string]*xidCount

type xidCount struct {
	errors int
	since  time.Time // there was none yet
}

// add counts events. Of an error that is new on a GPU there was none when the GPU was last read.
func (c xidCounts) add(p polled, gpus []*gpu) {
	for _, e := range p.events {
		i := slices.IndexFunc(gpus, func(g *gpu) bool { return g.handle == e.Device })
		if i < 0 {
			continue
		}
		uuid := gpus[i].deviceOf(e.GpuInstanceId, e.ComputeInstanceId)
		codes := c[uuid]
		if codes == nil {
			codes = map[string]*xidCount{}
			c[uuid] = codes
		}
		code := strconv.FormatUint(e.EventData, 10)
		if codes[code] == nil {
			if len(codes) >= maxCodes {
				code = "other"
			}
			if codes[code] == nil {
				codes[code] = &xidCount{since: gpus[i].readAt}
			}
		}
		codes[code].errors++
	}
}

// report adds the counts, as of now, to the samples of devices that could be read; some of these have nothing else to tell.
func (c xidCounts) report(samples []driver.Sample, now time.Time) {
	for i := range samples {
		s := &samples[i]
		for code, count := range c[s.Hardware.UUID] {
			s.Readings = append(s.Readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{"xid", code}, Value: float64(count.errors), At: now, Since: count.since,
			})
		}
	}
}
