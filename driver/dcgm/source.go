//go:build cgo

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// patience is how long a sample waits for the host engine.
	patience = time.Second

	// retryFirst and retryMost bound the time between two attempts to connect; it doubles from one to the other.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Source reads what a host engine reads. It is a [driver.Source].
//
// One call at a time is made, on a goroutine of its own, which remains, with its thread, until the call returns.
type Source struct {
	config   Config
	table    []field
	patience time.Duration

	session *session // nil: not connected
	opening *driver.Call[opened]
	reading *driver.Call[report]
	closing *driver.Call[error]

	states []*state // of the devices; they outlive sessions
	events time.Time

	retryAt time.Time
	retry   time.Duration
	failed  error // why there is no session; nil: there is no library
}

// opened is what became of an attempt to connect.
type opened struct {
	session *session
	err     error
}

var _ driver.Source = (*Source)(nil)

// New returns a source, which does not connect yet, or an error of CheckAddress.
func New(config Config) (*Source, error) {
	if err := CheckAddress(config.Address); err != nil {
		return nil, err
	}
	if config.Passthrough == nil {
		config.Passthrough = func() bool { return false }
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Source{config: config, table: fields(), patience: patience}, nil
}

// Name returns dcgm.
func (*Source) Name() string { return "dcgm" }

// Sample returns a sample of each GPU and of each MIG device. One of which the engine has no values has a sample without
// readings, and an error.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read DCGM: %w", err)
	}
	deadline, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if s.config.Address == Embedded && s.config.Passthrough() {
		return nil, s.close(deadline)
	}
	if err := s.open(deadline); err != nil || s.session == nil {
		return s.unreadable(), err
	}
	if s.reading == nil {
		session, now := s.session, s.config.Now()
		s.reading = driver.Go(func() report { return session.read(now) })
	}
	r, done := s.reading.Wait(deadline)
	if !done {
		return s.unreadable(), driver.HungError("read DCGM")
	}
	s.reading = nil
	if r.broken {
		s.postpone(r.err)
		return s.unreadable(), errors.Join(r.err, s.close(deadline))
	}
	s.retry = 0
	s.take(r)
	samples, err := s.samples(s.config.Now())
	return samples, errors.Join(r.err, err)
}

// open connects, if that can be now. Without a session and an error there is no library.
func (s *Source) open(ctx context.Context) error {
	if s.closing != nil {
		if err := s.closed(ctx); err != nil {
			return err
		}
	}
	if s.session != nil {
		return nil
	}
	now := s.config.Now()
	if s.opening == nil {
		if now.Before(s.retryAt) {
			return s.failed
		}
		if s.events.IsZero() {
			s.events = now
		}
		config, events := s.config, s.events
		s.opening = driver.Go(func() opened {
			session, err := connect(config.Address, config.Profiling, events)
			return opened{session, err}
		})
	}
	o, done := s.opening.Wait(ctx)
	if !done {
		return driver.HungError("connect to DCGM's host engine")
	}
	s.opening, s.session, s.failed = nil, o.session, nil
	if s.session == nil {
		s.postpone(o.err)
	}
	return s.failed
}

// postpone puts the next attempt to connect off.
func (s *Source) postpone(err error) {
	s.retry = min(max(2*s.retry, retryFirst), retryMost)
	s.retryAt = s.config.Now().Add(s.retry)
	s.failed = err
	if errors.Is(err, errNoLibrary) {
		s.failed = nil
	}
}

// close ends the session, if there is one and no call of it is under way.
func (s *Source) close(ctx context.Context) error {
	if s.session != nil && s.reading != nil {
		if _, done := s.reading.Wait(ctx); !done {
			return driver.HungError("read DCGM")
		}
		s.reading = nil
	}
	if s.session != nil {
		session := s.session
		s.session, s.events = nil, session.events
		s.closing = driver.Go(session.close)
	}
	if s.closing == nil {
		return nil
	}
	return s.closed(ctx)
}

// closed waits for the end of a session.
func (s *Source) closed(ctx context.Context) error {
	err, done := s.closing.Wait(ctx)
	if !done {
		return driver.HungError("disconnect from DCGM's host engine")
	}
	s.closing = nil
	return err
}

// take takes what the engine said.
func (s *Source) take(r report) {
	s.adopt(r.devices)
	byValues, byEvents := map[entity]*state{}, map[entity]*state{}
	for _, d := range s.states {
		byValues[d.values] = d
		for _, e := range d.events {
			byEvents[e] = d
		}
	}
	for _, v := range r.values {
		if d := byValues[v.entity]; d != nil {
			d.take(v, r.at)
		}
	}
	for _, v := range r.events {
		if d := byEvents[v.entity]; d != nil {
			d.count(int64(v.number), earlier(v.at, r.at))
		}
	}
	for _, d := range s.states {
		if status, ok := r.health[d.values.EntityId]; ok && d.of&anyGPU != 0 {
			d.health = knownHealth{status, r.at}
		}
	}
}

// adopt brings the known devices in line with those that there are.
func (s *Source) adopt(devices []device) {
	states := make([]*state, 0, len(devices))
	for _, d := range devices {
		i := slices.IndexFunc(s.states, func(known *state) bool { return known.is(d) })
		if i < 0 {
			states = append(states, newState(d, s.table))
			continue
		}
		s.states[i].renew(d)
		states = append(states, s.states[i])
	}
	s.states = states
}

// samples makes samples of what is known.
func (s *Source) samples(now time.Time) ([]driver.Sample, error) {
	var errs []error
	samples := make([]driver.Sample, 0, len(s.states))
	for _, d := range s.states {
		readings := d.readings(now)
		if len(readings) == 0 && d.values != (entity{}) {
			errs = append(errs, fmt.Errorf("read %s: %w", d.name(), noValuesError{d.lost}))
		}
		samples = append(samples, driver.Sample{Hardware: d.hardware, Readings: readings})
	}
	return samples, errors.Join(errs...)
}

// unreadable returns a sample without readings of all that is known.
func (s *Source) unreadable() []driver.Sample {
	samples := make([]driver.Sample, 0, len(s.states))
	for _, d := range s.states {
		samples = append(samples, driver.Sample{Hardware: d.hardware})
	}
	return samples
}
