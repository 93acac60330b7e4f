//go:build cgo

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

const (
	// callTimeout is how long a sample waits for the host engine.
	callTimeout = time.Second

	// retryFirst and retryMost are the minimum and maximum time between two attempts to connect. It
	// doubles after each failure.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Source reads the values of a host engine. It is a [driver.Source].
//
// It makes one call at a time, on its own goroutine. If a call hangs, the goroutine remains, with
// its thread, until the call returns.
type Source struct {
	config      Config
	table       []field
	callTimeout time.Duration

	session nvidia.Session[session]
	reading *driver.Call[report]

	states []*state // of the devices; they outlive sessions
	events time.Time
}

var _ driver.Source = (*Source)(nil)

// New returns a source, or an error of [CheckAddress]. The first Sample connects.
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
	return &Source{
		config: config, table: fields(), callTimeout: callTimeout,
		session: nvidia.Session[session]{
			Retry:   nvidia.NewRetry(retryFirst, retryMost),
			Opening: "connect to DCGM's host engine", Closing: "disconnect from DCGM's host engine",
		},
	}, nil
}

// Name returns dcgm.
func (*Source) Name() string { return "dcgm" }

// Sample returns a sample of each GPU and of each MIG device. For a device without values it
// returns an error, and a sample with only health and XID errors.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read DCGM: %w", err)
	}
	deadline, cancel := context.WithTimeout(ctx, s.callTimeout)
	defer cancel()
	if s.config.Address == Embedded && s.config.Passthrough() {
		return nil, s.close(deadline)
	}
	if err := s.open(deadline); err != nil || s.session.Current() == nil {
		return s.unreadable(), err
	}
	if s.reading == nil {
		session, now := s.session.Current(), s.config.Now()
		s.reading = driver.Go(
			func() report { return session.read(now) },
			func(err error) report { return report{broken: true, err: err} },
		)
	}
	r, done := s.reading.Wait(deadline)
	if !done {
		return s.unreadable(), driver.Hung("read DCGM")
	}
	s.reading = nil
	if r.broken {
		s.session.Fail(s.config.Now(), r.err)
		return s.unreadable(), errors.Join(r.err, s.close(deadline))
	}
	s.session.Retry.Reset()
	s.take(r)
	samples, err := s.samples(s.config.Now())
	return samples, errors.Join(r.err, err)
}

// open connects unless there is a connection. The error wraps driver.ErrAbsent if there is no
// library.
func (s *Source) open(ctx context.Context) error {
	now := s.config.Now()
	if s.events.IsZero() {
		s.events = now
	}
	config, events := s.config, s.events
	_, err := s.session.Open(ctx, now, func() (*session, error) {
		return connect(config.Address, config.Profiling, events)
	})
	if errors.Is(err, errNoLibrary) {
		return fmt.Errorf("%w: %w; in a container, mount DCGM 4 of the host", driver.ErrAbsent, err)
	}
	return err
}

// close closes the session, if there is one, after a call in progress.
func (s *Source) close(ctx context.Context) error {
	if current := s.session.Current(); current != nil {
		if s.reading != nil {
			if _, done := s.reading.Wait(ctx); !done {
				return driver.Hung("read DCGM")
			}
			s.reading = nil
		}
		s.events = current.events
	}
	return s.session.Close(ctx, (*session).close)
}

// take updates the states of devices by a report.
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
			at := driver.Earlier(v.at, r.at) // the counter of a new code was zero just before
			d.xids.Count(nvidia.Error{
				Code: int64(v.number), Before: at.Add(-time.Millisecond), Event: driver.Event{At: at},
			})
		}
	}
	for _, d := range s.states {
		if known, ok := r.health[d.values.EntityId]; ok && d.of&anyGPU != 0 {
			d.health = known
		}
	}
}

// adopt replaces the known devices by those that exist now, and keeps the states of known ones.
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

// samples returns a sample of each known device.
func (s *Source) samples(now time.Time) ([]driver.Sample, error) {
	var errs []error
	samples := make([]driver.Sample, 0, len(s.states))
	for _, d := range s.states {
		readings := d.readings(now)
		unreadable := len(readings) == 0 && d.values != (entity{})
		if unreadable {
			errs = append(errs, fmt.Errorf("read %s: %w", d.name(), noValues(d.lost)))
		}
		sample := driver.Sample{Hardware: d.hardware, Readings: readings, Unreadable: unreadable}
		d.report(&sample, now)
		samples = append(samples, sample)
	}
	return samples, errors.Join(errs...)
}

// unreadable returns a sample with only the XID errors of each known device.
func (s *Source) unreadable() []driver.Sample {
	samples, now := make([]driver.Sample, 0, len(s.states)), s.config.Now()
	for _, d := range s.states {
		sample := driver.Sample{Hardware: d.hardware, Unreadable: true}
		d.xids.Report(&sample, now)
		samples = append(samples, sample)
	}
	return samples
}
