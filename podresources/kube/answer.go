package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// page is one page of a list. Its objects are decoded one by one as they arrive: no more than one
// of them is held in memory.
type page struct {
	bounds bounds
	add    func(object json.RawMessage)

	metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	}
	objects int // so far
}

// bounds are the highest sizes, in bytes, of a page of a list, and of one of its objects or one
// event of a watch.
type bounds struct{ page, object int }

// errNotList is the error of an answer that is not a list.
var errNotList = fmt.Errorf("%w: not a list", errMalformed)

// read reads the page.
func (p *page) read(body io.Reader) error {
	bounded := limited(limited(body, p.bounds.page), p.bounds.object)
	decoder := json.NewDecoder(bounded)
	if err := expect(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		bounded.left = p.bounds.object
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		switch key {
		case "metadata":
			err = decoder.Decode(&p.metadata)
		case "items":
			err = p.items(decoder, bounded)
		default:
			err = decoder.Decode(&json.RawMessage{})
		}
		if err != nil {
			return err
		}
	}
	return expect(decoder, '}')
}

// items reads the list of objects, which may be null.
func (p *page) items(decoder *json.Decoder, bounded *limitedReader) error {
	begin, err := decoder.Token()
	if err != nil || begin == nil {
		return err
	}
	if begin != json.Delim('[') {
		return errNotList
	}
	var object json.RawMessage
	for decoder.More() {
		bounded.left = p.bounds.object
		if err := decoder.Decode(&object); err != nil {
			return err
		}
		// Its beginning may have been read with the object before it, and counted there.
		if len(object) > p.bounds.object {
			return errTooLarge
		}
		p.objects++
		p.add(object)
	}
	return expect(decoder, ']')
}

// cut reports whether the remaining received bytes are the beginning of a value.
func cut(decoder *json.Decoder) bool {
	rest, err := io.ReadAll(decoder.Buffered())
	return err != nil || len(bytes.TrimSpace(rest)) > 0
}

// expect reads a delimiter.
func expect(decoder *json.Decoder, want json.Delim) error {
	got, err := decoder.Token()
	if err == nil && got != want {
		err = errNotList
	}
	return err
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
	if errors.Is(err, errMalformed) {
		return err
	}
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return fmt.Errorf("read answer: %w", err)
}
