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
