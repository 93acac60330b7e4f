package kube

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// retryDelay computes the delay before the next attempt. The jitter spreads the nodes of a cluster,
// whose requests fail together while the API server is down.
type retryDelay struct {
	delays backoff.ExponentialBackOff
	jitter func() float64 // in [0, 1)
}

func newRetryDelay(jitter func() float64) *retryDelay {
	return &retryDelay{delays: backoff.ExponentialBackOff{InitialInterval: firstDelay, Multiplier: 2}, jitter: jitter}
}

// next returns the delay after one more failure: twice the previous one up to a limit, less up to
// half of it as jitter.
func (d *retryDelay) next(err error) time.Duration {
	d.delays.MaxInterval = maxDelay
	if isPermanent(err) {
		d.delays.MaxInterval = maxDelayPermanent
	}
	delay := min(d.delays.NextBackOff(), d.delays.MaxInterval)
	return delay - time.Duration(d.jitter()*float64(delay)/2)
}

func (d *retryDelay) reset() { d.delays.Reset() }
