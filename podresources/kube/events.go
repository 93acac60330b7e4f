package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// watched is an object of a list or a watch: what client-go needs of it, and its JSON.
type watched struct {
	metav1.PartialObjectMetadata
	raw json.RawMessage // nil: it was added to the set that is being filled
}

func newWatched(raw json.RawMessage) (*watched, error) {
	o := &watched{raw: raw}
	err := json.Unmarshal(raw, &o.PartialObjectMetadata)
	return o, err
}

// events decodes the events of a watch.
type events struct {
	body    io.ReadCloser
	limit   *limitedReader
	decoder *json.Decoder
	add     func(json.RawMessage) // receives the objects that there are when the watch begins; nil: they are over
	fail    func(error)
	stop    func()
}

var (
	_ watch.Decoder  = (*events)(nil)
	_ watch.Reporter = (*events)(nil)
)

// Decode implements [watch.Decoder].
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	e.limit.left = maxEvent
	var event metav1.WatchEvent
	if err := e.decoder.Decode(&event); err != nil {
		return e.end(answerError(err))
	}
	raw := event.Object.Raw
	if event.Type == string(watch.Error) {
		var status metav1.Status
		_ = json.Unmarshal(raw, &status) // one without a reason ends the watch too
		if err := apierrors.FromObject(&status); !isExpired(err) {
			e.fail(fmt.Errorf("the server ended it: %w", err))
		}
		return watch.Error, &status, nil
	}
	o, err := newWatched(raw)
	if err != nil {
		return e.end(fmt.Errorf("%w: %w", errMalformed, err))
	}
	if e.add != nil {
		switch {
		case event.Type != string(watch.Bookmark):
			e.add(raw)
			o.raw, o.Annotations = nil, nil
		case o.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			e.add = nil
		}
	}
	return watch.EventType(event.Type), o, nil
}

// end reports an error, unless the watch just ends.
func (e *events) end(err error) (watch.EventType, runtime.Object, error) {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, end) {
			return "", nil, end
		}
	}
	e.fail(err)
	return "", nil, err
}

// AsObject implements [watch.Reporter].
func (e *events) AsObject(err error) runtime.Object {
	return &metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
}

// Close implements [watch.Decoder].
func (e *events) Close() {
	e.stop()
	_ = e.body.Close()
}
