package nvidia

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Retry says when an attempt may be repeated. The delay doubles from attempt to attempt. It has no
// jitter: what is retried is on this machine.
type Retry struct {
	delays  backoff.ExponentialBackOff
	at      time.Time
	waiting bool
}

// NewRetry returns a Retry whose delays grow from first to most.
func NewRetry(first, most time.Duration) Retry {
	return Retry{delays: backoff.ExponentialBackOff{InitialInterval: first, MaxInterval: most, Multiplier: 2}}
}

// Postpone puts the next attempt off.
func (r *Retry) Postpone(now time.Time) {
	r.at, r.waiting = now.Add(r.delays.NextBackOff()), true
}

// Due reports whether the next attempt may begin.
func (r *Retry) Due(now time.Time) bool { return !now.Before(r.at) }

// Waiting reports whether an attempt was put off since the last Reset.
func (r *Retry) Waiting() bool { return r.waiting }

// Reset makes the next delay the first one again. It does not bring the next attempt forward.
func (r *Retry) Reset() {
	r.delays.Reset()
	r.waiting = false
}

// Session is a connection to a library or a daemon, which is opened when it is needed. Opening and
// closing run on goroutines of their own, since a call into a vendor's library may never return.
// A Session belongs to one goroutine.
type Session[T any] struct {
	// Retry bounds attempts to open. An attempt that fails is postponed.
	Retry Retry
	// Opening and Closing name the operations in errors.
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

// Current returns what is open, nil if nothing is.
func (s *Session[T]) Current() *T { return s.current }

// Open opens the session unless it is open. open returns what it opened, or nil with an error. It
// is called when an attempt is due, and between two attempts the error of the last one is
// returned. fresh reports that the session was opened by this call.
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

// Fail says why the next session is not to be opened before its time, after one that broke.
func (s *Session[T]) Fail(now time.Time, err error) {
	s.Retry.Postpone(now)
	s.failed = err
}

// Close closes the session, if it is open, and waits for the end of that.
func (s *Session[T]) Close(ctx context.Context, closeSession func(*T) error) error {
	if session := s.current; session != nil {
		s.current = nil
		s.closing = driver.Go(func() error { return closeSession(session) }, func(err error) error { return err })
	}
	return s.closed(ctx)
}

// closed waits until a session that is being closed is closed.
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
