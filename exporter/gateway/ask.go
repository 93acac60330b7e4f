package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// Limits of a request for an exporter.
const (
	askTimeout   = 4 * time.Second  // without a byte of the answer
	wholeTimeout = 20 * time.Second // of all of it; that of the answer to the client is longer
)

var (
	errUnchanged  = errors.New("not modified")
	errNotAsked   = errors.New("has not answered yet")
	errSilent     = errors.New("does not answer in time")
	errSlow       = errors.New("sends its answer too slowly")
	errRefused    = errors.New("refuses the gateway's own token")
	errUnexpected = errors.New("answers what no exporter answers")
	errTooLarge   = errors.New("answers too much")
	errNoRoom     = errors.New("has an answer for which there is no memory")
)

// isSilence reports whether an exporter did not answer in time.
func isSilence(err error) bool { return errors.Is(err, errSilent) || errors.Is(err, errSlow) }

// fetch sends a request to an exporter. The answer must begin in time, and all of it must have
// arrived at the deadline. end ends the request.
func (g *gateway) fetch(
	ctx context.Context, address, path, query string, header http.Header,
) (answer *http.Response, end func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(askTimeout, func() { cancel(errSilent) })
	defer late.Stop()
	whole := time.AfterFunc(wholeTimeout, func() { cancel(errSlow) })
	end = func() {
		whole.Stop()
		cancel(nil)
	}
	u := url.URL{Scheme: g.Scheme, Host: address, Path: path, RawQuery: query}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("ask an exporter: %w", err)
	}
	request.Header = header
	request.Header.Set("User-Agent", "") // none is sent
	if answer, err = g.Transport.RoundTrip(request); err != nil {
		err = because(ctx, err)
		end()
		return nil, nil, fmt.Errorf("ask an exporter: %w", err)
	}
	answer.Body = &body{answer.Body, ctx}
	return answer, end, nil
}

// because returns the reason for which a request was ended, if there is one.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && err != nil && !errors.Is(err, io.EOF) {
		return cause
	}
	return err
}

// body is a body whose errors are the reason for which its request was ended.
type body struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // that of the request
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, because(b.ctx, err)
}

// ask gets a document of a path and query from an exporter. With a tag, it returns errUnchanged if
// the document still has that tag.
func (g *gateway) ask(
	ctx context.Context, address, at, tag string, read func(io.Reader) error,
) (newTag string, err error) {
	header := http.Header{}
	if tag != "" {
		header.Set("If-None-Match", tag)
	}
	path, query, _ := strings.Cut(at, "?")
	answer, end, err := g.fetch(ctx, address, path, query, header)
	if err != nil {
		return "", err
	}
	defer end()
	defer answer.Body.Close()
	switch err := checkStatus(answer.StatusCode); {
	case err != nil:
		return "", err
	case answer.StatusCode == http.StatusNotModified && tag != "":
		return tag, errUnchanged
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: status %d", errUnexpected, answer.StatusCode)
	}
	err = read(answer.Body)
	switch {
	case err == nil:
		_, _ = io.CopyN(io.Discard, answer.Body, 1) // at its end, the connection can be used again
		return answer.Header.Get("Etag"), nil
	case errors.Is(err, decode.ErrTooLarge):
		return "", errTooLarge
	case errors.Is(err, decode.ErrNoRoom):
		return "", errNoRoom
	case isSilence(err), errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
		return "", fmt.Errorf("read an answer: %w", because(ctx, err))
	default:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			return "", fmt.Errorf("read an answer: %w", op)
		}
		return "", fmt.Errorf("%w: %w", errUnexpected, err)
	}
}

// reason describes in words why an exporter did not answer. It names no addresses.
func reason(err error) string {
	var timeout net.Error
	var op *net.OpError
	if err == nil {
		return ""
	}
	for _, known := range []error{errNotAsked, errSilent, errSlow, errRefused, errTooLarge, errNoRoom} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return errSilent.Error()
	case errors.Is(err, errUnexpected):
		return strings.ToValidUTF8(fmt.Sprintf("%.200v", err), "?")
	case errors.As(err, &op):
		return "can't be reached: " + op.Err.Error()
	}
	return "the connection failed"
}
