package nvidia

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Retry determines when an attempt may be repeated. The delay doubles after each attempt. It has no
// jitter, since attempts concern only this machine.
type Retry struct {
	delays  backoff.ExponentialBackOff
	at      time.Time
	waiting bool
}

// NewRetry returns a Retry whose delays grow from first to most.
func NewRetry(first, most time.Duration) Retry {
	return Retry{delays: backoff.ExponentialBackOff{InitialInterval: first, MaxInterval: most, Multiplier: 2}}
}

// Postpone postpones the next attempt by the delay.
func (r *Retry) Postpone(now time.Time) {
	r.at, r.waiting = now.Add(r.delays.NextBackOff()), true
}

// Due reports whether the next attempt may start.
func (r *Retry) Due(now time.Time) bool { return !now.Before(r.at) }

// Waiting reports whether an attempt was postponed since the last Reset.
func (r *Retry) Waiting() bool { return r.waiting }

// Reset sets the next delay to the first one. It does not change the time of the next attempt.
func (r *Retry) Reset() {
	r.delays.Reset()
	r.waiting = false
}

// Session is a connection to a library or a daemon, which is opened when it is needed. Opening and
// closing run on their own goroutines, because a call into a vendor's library may never return. A
// Session is not safe for concurrent use.
type Session[T any] struct {
	// Retry determines when a failed attempt to open is repeated.
	Retry Retry
	// Opening and Closing are the names of the operations in errors.
	Opening, Closing string

	current *T
	opening *driver.Call[opened[T]]
	closing *driver.Call[error]
	failed  error // of the last attempt to open, nil after one that succeeded
}

type opened[T any] struct {
	session *T
	err     error
}

// Current returns the open connection, nil if there is none.
func (s *Session[T]) Current() *T { return s.current }

// Open opens the session unless it is open. It calls open, which returns the connection or an
// error, when an attempt is due; between attempts it returns the error of the last one. fresh
// reports whether this call opened the session.
func (s *Session[T]) Open(
	ctx context.Context, now time.Time, open func() (*T, error),
) (fresh bool, err error) {
	if err := s.closed(ctx); err != nil {
		return false, err
	}
	if s.current != nil {
		return false, nil
	}
	if s.opening == nil {
		if s.failed != nil && !s.Retry.Due(now) {
			return false, s.failed
		}
		s.opening = driver.Go(func() opened[T] {
			session, err := open()
			return opened[T]{session, err}
		}, func(err error) opened[T] { return opened[T]{nil, err} })
	}
	o, done := s.opening.Wait(ctx)
	if !done {
		return false, driver.Hung(s.Opening)
	}
	s.opening, s.current, s.failed = nil, o.session, nil
	if s.current == nil {
		s.Retry.Postpone(now)
		s.failed = o.err
		return false, o.err
	}
	return true, nil
}

// Fail postpones the next attempt after a failure of the session. Open returns err until then.
func (s *Session[T]) Fail(now time.Time, err error) {
	s.Retry.Postpone(now)
	s.failed = err
}

// Close closes the session, if it is open, and waits until it is closed or ctx ends.
func (s *Session[T]) Close(ctx context.Context, closeSession func(*T) error) error {
	if session := s.current; session != nil {
		s.current = nil
		s.closing = driver.Go(func() error { return closeSession(session) }, func(err error) error { return err })
	}
	return s.closed(ctx)
}

// closed waits for a close in progress.
func (s *Session[T]) closed(ctx context.Context) error {
	if s.closing == nil {
		return nil
	}
	err, done := s.closing.Wait(ctx)
	if !done {
		return driver.Hung(s.Closing)
	}
	s.closing = nil
	return err
}
