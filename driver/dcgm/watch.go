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

// watch is a watch of the engine: fields of a group of entities that it reads periodically.
type watch struct {
	group  dcgm.GroupHandle
	fields dcgm.FieldHandle
	since  time.Time // time of the newest value that was received, by the engine's clock
	events bool      // each value counts, not only the newest
}

const (
	// keepValues is how long the engine keeps values. It is longer than the time between two samples.
	keepValues = 10 * time.Second
	// keepEvents is how long the engine keeps XID errors.
	keepEvents = 10 * time.Minute
	// recent is the maximum age of the first values. The engine may keep hours of values for other
	// clients.
	recent = 5 * time.Second
)

// watch adds the watches of all devices. If the engine rejects profiling or health, they are
// retried later; a failure of the other watches breaks the session.
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

// watched has the entities of one kind.
type watched struct {
	scope    scope
	name     string
	entities []entity
}

// watchEntities watches the fields of entities and the health of GPUs. refused is the error of
// profiling and health.
func (s *session) watchEntities(of watched, now time.Time) (refused, err error) {
	group, err := s.group(of.name, of.entities)
	if err != nil {
		return nil, err
	}
	for _, at := range []schedule{fast, slow} {
		if err := s.addFields(group, of.scope, at, now); err != nil {
			return nil, err
		}
	}
	if s.profiling {
		refused = s.addFields(group, of.scope, profiling, now)
		_ = s.addFields(group, of.scope, pipes, now) // assumed: GPUs before Hopper lack them
	}
	if of.scope&anyGPU != 0 {
		refused = errors.Join(refused, s.watchHealth(group))
	}
	return refused, nil
}

// entities returns the entities to watch: GPUs, GPU instances with one compute instance, and all
// entities including compute instances.
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

// group creates a group of entities. Its name must be unique among all clients of the engine.
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

// addFields watches the fields of a schedule that the engine knows.
func (s *session) addFields(group dcgm.GroupHandle, of scope, at schedule, now time.Time) error {
	fields, every := fieldsOf(of, at), at.interval()
	add := func() error { return s.add(group, fields, every, max(keepValues, 2*every), now.Add(-recent)) }
	if len(fields) == 0 {
		return nil
	}
	err := add()
	if all := len(fields); err != nil {
		fields = slices.DeleteFunc(fields, unknown)
		if len(fields) > 0 && len(fields) < all {
			return add()
		}
	}
	return err
}

// unknown reports whether the engine rejects a group with that field, as it does if its version
// does not know the number.
func unknown(field dcgm.Short) bool {
	handle, err := dcgm.FieldGroupCreate(uniqueName(fmt.Sprint(field)), []dcgm.Short{field})
	return err != nil || dcgm.FieldGroupDestroy(handle) != nil
}

// add adds a watch of fields.
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

// unwatch removes all watches and groups.
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
