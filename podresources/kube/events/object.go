package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	component = "dra-exporter"
	// maxMessage is the highest length of a message in events.k8s.io.
	maxMessage = 1024
	// maxName is the highest length of the object's name in an event's name. Names have at most 253
	// bytes.
	maxName = 200
	// maxAnswer is the highest size of an answer, in bytes.
	maxAnswer = 1 << 20
)

// object returns the object of the API for an event. Its name is derived from the object and the
// event, so that after a restart the same event is found.
func (w *Writer) object(e *record) *corev1.Event {
	at := metav1.NewTime(e.At)
	version := "v1"
	if e.Kind == ResourceClaim {
		version = "resource.k8s.io/v1"
	}
	kind := corev1.EventTypeWarning
	if e.Normal {
		kind = corev1.EventTypeNormal
	}
	message := shorten(e.Message, maxMessage)
	sum := sha256.Sum256([]byte(strings.Join([]string{e.Kind, e.UID, e.Reason, message, w.config.Node}, "\x00")))
	name := strings.TrimRight(shorten(e.Name, maxName), ".-") + "." + hex.EncodeToString(sum[:8])
	return &corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: version, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name, UID: types.UID(e.UID),
		},
		Type: kind, Reason: e.Reason, Message: message, FirstTimestamp: at, LastTimestamp: at, Count: e.count,
		Source:              corev1.EventSource{Component: component, Host: w.config.Node},
		ReportingController: component, ReportingInstance: w.config.Node,
	}
}

// shorten cuts a text to a number of bytes, between characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// send creates an event, or updates the count of the existing one. It returns the resulting object
// of the API server.
func (w *Writer) send(ctx context.Context, e *corev1.Event, known bool) (*corev1.Event, Result, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + e.Namespace + "/events"
	change := map[string]any{"count": e.Count, "lastTimestamp": e.LastTimestamp}
	if known {
		out, err := w.patch(ctx, path+"/"+e.Name, change)
		if !isStatus(err, metav1.StatusReasonNotFound) { // the API server keeps events for an hour by default
			return out, Updated, err
		}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, "", fmt.Errorf("encode event: %w", err)
	}
	answer, err := w.config.API.Post(ctx, path, body)
	if err == nil {
		out, err := decode(answer)
		return out, Created, err
	}
	if !isStatus(err, metav1.StatusReasonAlreadyExists) {
		return nil, "", err
	}
	// An earlier process has created it. The answer to the first change has its count.
	delete(change, "count")
	before, err := w.patch(ctx, path+"/"+e.Name, change)
	if err != nil {
		return nil, "", err
	}
	out, err := w.patch(ctx, path+"/"+e.Name, map[string]any{"count": before.Count + e.Count})
	return out, Updated, err
}

func (w *Writer) patch(ctx context.Context, path string, change map[string]any) (*corev1.Event, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("encode change: %w", err)
	}
	answer, err := w.config.API.Patch(ctx, path, body)
	if err != nil {
		return nil, err
	}
	return decode(answer)
}

func decode(answer io.ReadCloser) (*corev1.Event, error) {
	defer func() { _ = answer.Close() }()
	out := &corev1.Event{}
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out); err != nil {
		return nil, driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode event: %w", err))
	}
	return out, nil
}

// isStatus reports whether an error is an answer of the API server with a reason.
func isStatus(err error, reason metav1.StatusReason) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Reason == reason
}

// reviews is the path at which the API server answers what the requesting user may do. Every user
// may ask.
const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// Allowed asks the API server whether events may be created and patched in every namespace. The
// error has the reason forbidden if not.
func Allowed(ctx context.Context, api API) error {
	for _, verb := range []string{"create", "patch"} {
		body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "events"},
			},
		})
		if err != nil {
			return fmt.Errorf("encode review: %w", err)
		}
		answer, err := api.Post(ctx, reviews, body)
		if err != nil {
			return fmt.Errorf("ask whether events may be written: %w", err)
		}
		var review authorizationv1.SelfSubjectAccessReview
		err = json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(&review)
		_ = answer.Close()
		if err != nil {
			return driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode review: %w", err))
		}
		if !review.Status.Allowed {
			return driver.WithReason(driver.ReasonForbidden, fmt.Errorf("may not %s events in every namespace", verb))
		}
	}
	return nil
}
