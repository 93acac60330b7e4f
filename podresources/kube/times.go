package kube

import "time"

// The waiting times of requests to the API server. All are less up to a quarter or a half at
// random, so that the nodes of a cluster do not ask together.
const (
	// Failures are retried after firstDelay, and twice as long each time, up to maxDelay: an API
	// server that comes back is used within a minute. Errors that last until somebody changes the
	// cluster (forbidden, absent) are retried up to maxDelayPermanent apart.
	firstDelay        = time.Second
	maxDelay          = time.Minute
	maxDelayPermanent = 3 * time.Minute
	// optionalAfter is the time until an optional source that is not served, or may not be read, is
	// requested again.
	optionalAfter = 10 * time.Minute
	// neededAfter is the time until it is checked again whether a device has binding conditions,
	// which costs no request.
	neededAfter = 10 * time.Second
	// renegotiate is how long a version is used before better ones are tried again: an
	// upgrade may add a better one long before it removes the old one.
	renegotiate = time.Hour

	// Requests that take longer have failed: of a page of a list or the opening of a watch, and of an
	// object by its name, which is small, and which others wait for.
	pageTimeout  = 20 * time.Second
	fetchTimeout = 5 * time.Second

	// watchTimeout is the shortest duration that a watch requests; with jitter it is up to twice as
	// long. A watch that has not ended watchGrace after its duration is canceled, since its
	// connection is dead.
	watchTimeout = 5 * time.Minute
	watchGrace   = 30 * time.Second

	// firstRefresh is the time until a claim is read again for the first time: by then its driver
	// has prepared it, and most likely set its status. The time doubles with each request. It is
	// also the shortest time between two requests because of changes of the claim's pods.
	firstRefresh = 5 * time.Second
	// refreshAfter is how long an object that was read by name is used before it is read again. The
	// allocation of a claim does not change while a pod holds it, and its status is read again soon
	// after the allocation and when the claim's pods change.
	refreshAfter = 10 * time.Minute
	// absentAfter is the time until an object is read again that does not exist, may not be read,
	// or disagrees with what the node says: the scheduler and the controllers follow each other
	// within seconds. It doubles with each request.
	absentAfter = 2 * time.Second
	// forgetAfter is how long an object is kept after it is no longer wanted: an answer of the
	// kubelet may leave a claim out for a moment.
	forgetAfter = time.Minute
)
