//go:build cgo

package dcgm

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// healthInterval is the interval of health checks.
const healthInterval = 10 * time.Second

// watchHealth enables the engine's health watches for a group of GPUs. The first check has no
// result: "stateful information about all of the enabled watches within a group is created but no
// error results are provided".
func (s *session) watchHealth(group dcgm.GroupHandle) error {
	if err := dcgm.HealthSet(group, dcgm.DCGM_HEALTH_WATCH_ALL); err != nil {
		return engineFailure("watch health", err)
	}
	if _, err := dcgm.HealthCheck(group); err != nil {
		return engineFailure("check health", err)
	}
	s.health, s.checks = group, true
	return nil
}

// checkHealth returns the health of each GPU, or nil if no check is due. A GPU is unhealthy if it
// or one of its instances has an incident that is a failure (DCGM_HEALTH_RESULT_FAIL), not a
// warning.
func (s *session) checkHealth(now time.Time) (map[uint]knownHealth, error) {
	if !s.checks || now.Sub(s.checked) < healthInterval {
		return nil, nil //nolint:nilnil // no check is due
	}
	s.checked = now
	response, err := dcgm.HealthCheck(s.health)
	if err != nil {
		return nil, engineFailure("check health", err)
	}
	status := map[uint]knownHealth{}
	for _, gpu := range s.layout.gpus {
		status[gpu] = knownHealth{driver.HealthGood.Reading(now), ""}
	}
	for _, incident := range response.Incidents {
		gpu, ok := s.gpuOf(incident.EntityInfo)
		if ok && incident.Health >= dcgm.DCGM_HEALTH_RESULT_FAIL {
			status[gpu] = knownHealth{driver.HealthBad.Reading(now), driver.OneLine(incident.Error.Message)}
		}
	}
	return status, nil
}

// gpuOf returns the GPU that is the entity or has it as a part.
func (s *session) gpuOf(e entity) (uint, bool) {
	if e.EntityGroupId == dcgm.FE_GPU {
		return e.EntityId, true
	}
	for _, p := range s.layout.parts {
		if p.gpuInstance != e && p.compute != e {
			continue
		}
		i := slices.IndexFunc(s.devices, func(d device) bool { return d.hardware.UUID == p.gpuUUID })
		if i >= 0 {
			return s.devices[i].values.EntityId, true
		}
	}
	return 0, false
}

// knownHealth is the health of a GPU at the time of a check.
type knownHealth struct {
	driver.Reading
	reason string // the engine's message if it is unhealthy
}
