//go:build cgo

package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// session is a connection to a host engine. While a call of it is under way, it belongs to that
// call.
type session struct {
	profiling bool
	layout    layout
	devices   []device
	groups    []dcgm.GroupHandle
	watches   []*watch
	health    dcgm.GroupHandle // whose health is watched
	checks    bool             // it is
	checked   time.Time
	retryAt   time.Time // zero, or when what could not be watched or identified is tried again
	events    time.Time // XID errors up to here were told, by the engine's clock
}

// report is what the engine said at one time.
type report struct {
	at      time.Time // by our clock
	devices []device
	values  []value
	events  []value              // XID errors
	health  map[uint]knownHealth // by GPU; nil: not checked at this time
	err     error                // of what could not be read
	broken  bool                 // nothing can be read any more
}

// engineFailure returns an error of the host engine, or of the connection to it.
func engineFailure(operation string, err error) error {
	return engineError(fmt.Errorf("%s: %w", operation, err))
}

func engineError(err error) error { return driver.WithReason(driver.ReasonHostEngine, err) }

// errNoLibrary says that the library is not there.
var errNoLibrary = errors.New("libdcgm.so.4 not found")

// retryWatches is when what the engine refused to watch is asked for again, and what it could not
// identify.
const retryWatches = time.Minute

// connect connects to the engine, or starts one. XID errors are wanted from a time on.
func connect(address string, profiling bool, events time.Time) (*session, error) {
	err := checkFunctions()
	if err != nil {
		return nil, err
	}
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
		return nil, whyNoLibrary()
	default:
		return nil, engineFailure("connect to DCGM's host engine", err)
	}
}

// close ends the session; the engine forgets what it was to watch.
func (s *session) close() error {
	if err := dcgm.Shutdown(); err != nil {
		return engineFailure("disconnect from DCGM's host engine", err)
	}
	return nil
}

// read asks the engine for what is new.
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

// newEvents returns the events that come after those that were told.
func (s *session) newEvents(values []value) []value {
	told := s.events
	fresh := slices.DeleteFunc(values, func(v value) bool { return v.absent || v.id != xidError || !v.at.After(told) })
	for _, v := range fresh {
		if v.at.After(s.events) {
			s.events = v.at
		}
	}
	return fresh
}

// follow brings what is watched in line with what there is.
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
