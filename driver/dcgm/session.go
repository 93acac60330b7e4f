//go:build cgo

package dcgm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// session is a connection to a host engine. While a call is in progress, it belongs to that call.
type session struct {
	profiling bool
	layout    layout
	devices   []device
	groups    []dcgm.GroupHandle
	watches   []*watch
	health    dcgm.GroupHandle // group with health watches
	checks    bool             // health watches are enabled
	checked   time.Time
	retryAt   time.Time // when failed watches and identifications are retried; zero: none failed
	events    time.Time // time of the last reported XID error, by the engine's clock
}

// report is the result of one read of the engine.
type report struct {
	at      time.Time // by our clock
	devices []device
	values  []value
	events  []value              // XID errors
	health  map[uint]knownHealth // by GPU; nil: not checked
	err     error                // of what could not be read
	broken  bool                 // the session cannot be used any more
}

// engineFailure returns an error of the host engine or of the connection to it.
func engineFailure(operation string, err error) error {
	return engineError(fmt.Errorf("%s: %w", operation, err))
}

func engineError(err error) error { return driver.WithReason(driver.ReasonHostEngine, err) }

// errNoLibrary is the error if the library cannot be opened. go-dcgm returns one with this text.
var errNoLibrary = errors.New("libdcgm.so.4 not found")

// retryWatches is the delay before watches that the engine rejected, and identifications that
// failed, are retried.
const retryWatches = time.Minute

// connect connects to a host engine, or starts an embedded one. XID errors after events are
// reported.
func connect(address string, profiling bool, events time.Time) (*session, error) {
	var err error
	switch {
	case address == Embedded:
		_, err = dcgm.Init(dcgm.Embedded)
	case strings.HasPrefix(address, "/"):
		_, err = dcgm.Init(dcgm.Standalone, address, "1") // addressIsUnixSocket of dcgmConnectV2Params_v2
	default:
		_, err = dcgm.Init(dcgm.Standalone, address, "0")
	}
	switch {
	case err == nil:
		return &session{profiling: profiling, events: events}, nil
	case err.Error() == errNoLibrary.Error(): // go-dcgm's text
		return nil, driver.WithReason(driver.ReasonNoLibrary, errNoLibrary)
	default:
		return nil, engineFailure("connect to DCGM's host engine", err)
	}
}

// close disconnects from the engine, which ends the watches.
func (s *session) close() error {
	if err := dcgm.Shutdown(); err != nil {
		return engineFailure("disconnect from DCGM's host engine", err)
	}
	return nil
}

// read returns what is new since the last read.
func (s *session) read(now time.Time) report {
	r := report{at: now}
	if r.broken, r.err = s.follow(now); r.broken {
		return r
	}
	r.devices = s.devices
	for _, w := range s.watches {
		values, next, err := dcgm.GetValuesSince(w.group, w.fields, w.since)
		if err != nil {
			r.err, r.broken = errors.Join(r.err, engineFailure("get values from DCGM", err)), true
			return r
		}
		if w.events {
			r.events = append(r.events, s.newEvents(decode(values))...)
			w.since = s.events
			continue
		}
		r.values = append(r.values, decode(values)...)
		if next.After(w.since) {
			w.since = next
		}
	}
	var err error
	r.health, err = s.checkHealth(now)
	r.err = errors.Join(r.err, err)
	return r
}

// newEvents returns the events that were not reported yet.
func (s *session) newEvents(values []value) []value {
	last := s.events
	fresh := slices.DeleteFunc(values, func(v value) bool { return v.absent || v.id != xidError || !v.at.After(last) })
	for _, v := range fresh {
		if v.at.After(s.events) {
			s.events = v.at
		}
	}
	return fresh
}

// follow watches the present layout: it renews the watches if the layout has changed or a retry is
// due.
func (s *session) follow(now time.Time) (broken bool, err error) {
	found, err := findLayout()
	if err != nil {
		err = engineError(err)
		if found.gpus == nil {
			return true, err
		}
		found.parts = s.layout.parts
	}
	retry := !s.retryAt.IsZero() && !now.Before(s.retryAt)
	if found.equal(s.layout) && !retry && s.groups != nil {
		return false, err
	}
	if failure := s.unwatch(); failure != nil {
		return true, errors.Join(err, failure)
	}
	s.layout, s.retryAt = found, time.Time{}
	var failure error
	if s.devices, failure = found.identify(); failure != nil {
		s.retryAt = now.Add(retryWatches)
		err = errors.Join(err, engineError(failure))
	}
	broken, failure = s.watch(now)
	return broken, errors.Join(err, failure)
}

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
