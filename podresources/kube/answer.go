package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// page is one page of a list.
type page struct {
	Metadata metav1.ListMeta   `json:"metadata"`
	Items    []json.RawMessage `json:"items"`
}

// decodePage decodes a page of at most limit bytes.
func decodePage(body io.Reader, limit int) (*page, error) {
	var p page
	if err := decodeJSON(body, limit, &p); err != nil {
		return nil, err
	}
	if p.Metadata.ResourceVersion == "" {
		return nil, fmt.Errorf("%w: not a list", errMalformed)
	}
	return &p, nil
}

// limitedReader fails with errTooLarge after the remaining bytes.
type limitedReader struct {
	r    io.Reader
	left int
}

func limited(r io.Reader, n int) *limitedReader { return &limitedReader{r: r, left: n} }

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// getJSON decodes the answer to a GET of at most limit bytes.
func getJSON(ctx context.Context, api API, path string, limit int, into any) error {
	body, err := api.Get(ctx, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return decodeJSON(body, limit, into)
}

// decodeJSON decodes an answer of at most limit bytes.
func decodeJSON(body io.Reader, limit int, into any) error {
	if err := json.NewDecoder(limited(body, limit)).Decode(into); err != nil {
		return answerError(err)
	}
	return nil
}

// answerError distinguishes malformed answers from those that could not be read.
func answerError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return fmt.Errorf("read answer: %w", err)
}
