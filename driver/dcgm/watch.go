//go:build cgo

package dcgm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// watch is what the engine reads for us: some fields of a group of entities.
type watch struct {
	group  dcgm.GroupHandle
	fields dcgm.FieldHandle
	since  time.Time // values up to here were taken, by the engine's clock
	events bool      // each value counts, not the newest alone
}

const (
	// keepValues is for how long the engine keeps values: longer than any pause between two of our
	// readings.
	keepValues = 10 * time.Second
	// keepEvents is for how long it keeps XID errors, while it is not asked.
	keepEvents = 10 * time.Minute
	// recent is how far back values are taken at first: others may let the engine keep hours of
	// them.
	recent = 5 * time.Second
)

// watch asks the engine to read what the devices have. Without the usual fields the session is of
// no use; profiling and health are left out where the engine refuses them, and tried again later.
func (s *session) watch(now time.Time) (broken bool, err error) {
	gpus, instances, everything := s.entities()
	if len(gpus) == 0 {
		s.groups = []dcgm.GroupHandle{}
		return false, nil
	}
	all, err := s.group("all", everything)
	if err != nil {
		return true, err
	}
	if err := s.add(all, []dcgm.Short{xidError}, time.Second, keepEvents, s.events); err != nil {
		return true, err
	}
	s.watches[0].events = true
	var refused []error
	for _, of := range []watched{{anyGPU | wholeGPU, "gpus", gpus}, {instance, "instances", instances}} {
		if len(of.entities) == 0 {
			continue
		}
		optional, err := s.watchEntities(of, now)
		if err != nil {
			return true, err
		}
		refused = append(refused, optional)
	}
	err = errors.Join(refused...)
	if err != nil {
		s.retryAt = now.Add(retryWatches)
	}
	return false, err
}

// watched are entities of one kind.
type watched struct {
	scope    scope
	name     string
	entities []entity
}

// watchEntities watches the fields of entities, and GPUs' health. What is refused of profiling and
// health is told apart.
func (s *session) watchEntities(of watched, now time.Time) (refused, err error) {
	group, err := s.group(of.name, of.entities)
	if err != nil {
		return nil, err
	}
	for _, at := range []schedule{fast, slow} {
		if err := s.addFields(group, vocabularies(of.scope, at), at.interval(), now); err != nil {
			return nil, err
		}
	}
	// An engine may know none of these numbers, which is no error.
	_ = s.addFields(group, vocabularies(of.scope, newer), newer.interval(), now)
	if s.profiling {
		refused = s.addFields(group, vocabularies(of.scope, profiling), profiling.interval(), now)
		// Before Hopper they can't be had (a guess), which is no error.
		_ = s.addFields(group, vocabularies(of.scope, units), units.interval(), now)
		_ = s.addFields(group, vocabularies(of.scope, pipes), pipes.interval(), now)
	}
	if of.scope&anyGPU != 0 {
		refused = errors.Join(refused, s.watchHealth(group))
	}
	return refused, nil
}

// entities returns what is watched: GPUs, the GPU instances that are one MIG device each, and these
// with all compute instances.
func (s *session) entities() (gpus, instances, everything []entity) {
	for _, d := range s.devices {
		everything = append(everything, d.events...)
		switch d.values.EntityGroupId {
		case dcgm.FE_GPU:
			gpus = append(gpus, d.values)
		case dcgm.FE_GPU_I:
			instances = append(instances, d.values)
		}
	}
	return gpus, instances, everything
}

// group makes a group of entities. The engine wants its names to be unique: other exporters may be
// there.
func (s *session) group(name string, entities []entity) (dcgm.GroupHandle, error) {
	group, err := dcgm.CreateGroup(uniqueName(name))
	if err != nil {
		return group, engineFailure("make a group of DCGM's devices", err)
	}
	s.groups = append(s.groups, group)
	for _, e := range slices.Compact(entities) {
		if err := dcgm.AddEntityToGroup(group, e.EntityGroupId, e.EntityId); err != nil {
			return group, engineFailure("make a group of DCGM's devices", err)
		}
	}
	return group, nil
}

func uniqueName(name string) string { return fmt.Sprintf("dra-exporter-%d-%s", os.Getpid(), name) }

// addFields watches the fields of the first vocabulary that the engine takes.
func (s *session) addFields(group dcgm.GroupHandle, vocabularies [][]dcgm.Short, every time.Duration,
	now time.Time,
) error {
	var errs []error
	for _, fields := range vocabularies {
		if len(fields) == 0 {
			return nil
		}
		err := s.add(group, fields, every, max(keepValues, 2*every), now.Add(-recent))
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// add watches fields.
func (s *session) add(group dcgm.GroupHandle, fields []dcgm.Short, every, keep time.Duration, since time.Time) error {
	const operation = "watch DCGM's fields"
	handle, err := dcgm.FieldGroupCreate(uniqueName(fmt.Sprintf("%d-%d", len(s.watches), fields[0])), fields)
	if err != nil {
		return engineFailure(operation, err)
	}
	const unlimited = 0 // samples, within their age
	if err := dcgm.WatchFieldsWithGroupEx(handle, group, every.Microseconds(), keep.Seconds(), unlimited); err != nil {
		return errors.Join(engineFailure(operation, err), dcgm.FieldGroupDestroy(handle))
	}
	s.watches = append(s.watches, &watch{group: group, fields: handle, since: since})
	return nil
}

// unwatch lets the engine forget all that it was to watch.
func (s *session) unwatch() error {
	var errs []error
	for _, w := range s.watches {
		errs = append(errs, dcgm.UnwatchFields(w.fields, w.group), dcgm.FieldGroupDestroy(w.fields))
	}
	for _, g := range s.groups {
		errs = append(errs, dcgm.DestroyGroup(g))
	}
	s.watches, s.groups, s.checks = nil, nil, false
	if err := errors.Join(errs...); err != nil {
		return engineFailure("end DCGM's watches", err)
	}
	return nil
}
