package kube

import (
	"context"
	"errors"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// What went wrong beside what the API server and the transport say.
var (
	errMalformed = errors.New("malformed answer")
	errTooLarge  = errors.New("answer too large")
	errExpired   = errors.New("the watch is too old to go on")
	errNotServed = errors.New("resource.k8s.io is not served in a version that is known here")
)

// reasonError is an error that names its reason for a label.
type reasonError struct{ error }

func (e reasonError) Unwrap() error { return e.error }

// Reason returns the reason.
func (e reasonError) Reason() string { return Reason(e.error) }

// Reason names what went wrong with a request in one word, from a closed list, for a label; "" for no error.
func Reason(err error) string {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errMalformed):
		return "malformed"
	case errors.Is(err, errTooLarge):
		return "too_large"
	case errors.Is(err, errNotServed):
		return "absent"
	case isExpired(err):
		return "expired"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case apierrors.IsUnauthorized(err):
		return "unauthorized"
	case apierrors.IsNotFound(err):
		return "absent"
	case apierrors.IsTooManyRequests(err):
		return "too_many_requests"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "deadline"
	case isStatus(err):
		return "server"
	default:
		return "unavailable"
	}
}

// isExpired tells whether a watch, or the next page of a list, can not go on from where it was.
func isExpired(err error) bool {
	return errors.Is(err, errExpired) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isStatus tells whether the API server itself answered.
func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// isPathMissing tells whether the path itself is not served, which is not the same as an object that is not there.
func isPathMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}

// isPermanent tells whether an error lasts until somebody changes the cluster.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || errors.Is(err, errNotServed)
}
