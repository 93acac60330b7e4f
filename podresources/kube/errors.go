package kube

import (
	"context"
	"errors"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Errors in addition to those of the API server and the transport.
var (
	errMalformed  = errors.New("malformed answer")
	errTooLarge   = errors.New("answer too large")
	errRedirected = errors.New("redirected")
	errAnswered   = errors.New("answered") // ends what Node.Check follows
	errNotServed  = errors.New("resource.k8s.io is not served in a supported version")
)

// withReason gives the error of a request its reason.
func withReason(err error) error { return driver.WithReason(reasonOf(err), err) }

// reasonOf returns why a request failed; "" for no error.
func reasonOf(err error) driver.Reason {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errMalformed):
		return driver.ReasonMalformed
	case errors.Is(err, errTooLarge):
		return driver.ReasonTooLarge
	case errors.Is(err, errRedirected):
		return driver.ReasonRedirected
	case errors.Is(err, errNotServed):
		return driver.ReasonAbsent
	case isExpired(err):
		return driver.ReasonExpired
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return driver.ReasonAbsent // creating an object in a namespace that is being deleted is answered as forbidden
	case apierrors.IsForbidden(err):
		return driver.ReasonForbidden
	case apierrors.IsUnauthorized(err):
		return driver.ReasonUnauthorized
	case apierrors.IsNotFound(err):
		return driver.ReasonAbsent
	case apierrors.IsTooManyRequests(err):
		return driver.ReasonRateLimited
	case errors.Is(err, context.Canceled):
		return driver.ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return driver.ReasonTimeout
	case isStatus(err):
		return driver.ReasonServerError
	default:
		return driver.ReasonUnavailable
	}
}

// isExpired reports whether a watch, or the next page of a list, cannot continue from its resource
// version.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isStatus reports whether the error is a response of the API server.
func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// isPathMissing reports whether the path itself is not served, as opposed to an object that does
// not exist.
func isPathMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}

// isPermanent reports whether an error lasts until the cluster is changed.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || errors.Is(err, errNotServed)
}
