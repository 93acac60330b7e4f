package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// held is how many bytes of an answer are read before the answer to the client begins. If the
// exporter stops before, the client learns why.
const held = 16 << 10

// serveNode serves a page of a node: as the gateway lays it out, or forwarded from the exporter.
// The path must be one of a fixed list, and the address comes from the list of exporters, so that
// nothing else of the request decides where it goes.
func (g *gateway) serveNode(w http.ResponseWriter, r *http.Request, user *access.User) {
	node, path := r.PathValue("node"), "/"+r.PathValue("path")
	if !g.paths[path] || len(r.URL.RawQuery) > maxQuery {
		respond(w, http.StatusNotFound, "exporters have no such page")
		return
	}
	if !g.allowed(w, r, user, path) {
		return
	}
	if own, ok := g.assets[path]; ok {
		own.ServeHTTP(w, r)
		return
	}
	address, ok := g.addressOf(w, r, node)
	if !ok {
		return
	}
	var err error
	switch path {
	case "/":
		err = g.servePage(w, r, address)
	case "/page/detail":
		err = g.serveDetail(w, r, address)
	default:
		err = g.forward(w, r, address, path)
	}
	if err != nil {
		g.Log.DebugContext(r.Context(), "an exporter does not answer", "node", node, "error", err)
		g.respondFailure(w, node, err)
	}
}

// servePage serves the page of an exporter.
func (g *gateway) servePage(w http.ResponseWriter, r *http.Request, address string) error {
	memory := g.memory.Open(maxPage)
	defer memory.Close()
	var page present.Page
	_, err := g.ask(r.Context(), address, "/page/rows", "", func(body io.Reader) (err error) {
		page, err = decode.Read[present.Page](body, memory)
		return err
	})
	if err == nil {
		g.pages.serve(w, r, "page.html", "", func() any { return web.NewPage(g.MetricsPath, &page) })
	}
	return err
}

// serveDetail serves the details of a device, claim, pod or incident.
func (g *gateway) serveDetail(w http.ResponseWriter, r *http.Request, address string) error {
	return g.withDetail(r.Context(), address, r.URL.Query(), func(d present.Detail) error {
		g.pages.serve(w, r, "detail.html", "", func() any { return &d })
		return nil
	})
}

// respondFailure says why there is no answer of a node.
func (g *gateway) respondFailure(w http.ResponseWriter, node string, err error) {
	status := http.StatusBadGateway
	if isSilence(err) {
		status = http.StatusGatewayTimeout
	}
	respond(w, status, "the exporter of node "+node+" "+reason(err))
}

// forward sends an answer of an exporter to the client. It returns an error if nothing has been
// sent, and aborts the answer to the client if the exporter stops later.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, address, path string) error {
	header := pick(r.Header, "Accept", "If-None-Match", "Accept-Encoding")
	answer, end, err := g.fetch(r.Context(), address, path, r.URL.RawQuery, header)
	if err != nil {
		return err
	}
	defer end()
	defer answer.Body.Close()
	if err := checkAnswer(answer); err != nil {
		return err
	}
	body := io.LimitReader(answer.Body, maxAnswer)
	start, err := io.ReadAll(io.LimitReader(body, held))
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(start), body)); err != nil {
		panic(http.ErrAbortHandler) // the client learns that the answer is incomplete
	}
	return nil
}

func pick(from http.Header, names ...string) http.Header {
	out := http.Header{}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			out[name] = slices.Clone(values)
		}
	}
	return out
}

// checkAnswer refuses answers that exporters do not give, and removes all headers that do not
// describe the content. A browser does not execute any of the content types, nor use them as a
// style.
func checkAnswer(a *http.Response) error {
	if err := checkStatus(a.StatusCode); err != nil {
		return err
	}
	header := pick(a.Header, "Content-Type", "Content-Encoding", "Content-Length", "Etag", "Vary", "Retry-After")
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	known := []string{
		"application/json", "text/plain", "application/openmetrics-text", "application/vnd.google.protobuf",
	}
	switch {
	case a.StatusCode == http.StatusNotModified:
		header.Del("Content-Type")
	case err != nil || !slices.Contains(known, kind) || len(header["Content-Type"]) != 1:
		return fmt.Errorf("%w: content of type %.100q", errUnexpected, header.Get("Content-Type"))
	}
	a.Header = header
	return nil
}

// checkStatus refuses statuses that the gateway does not forward, such as redirects.
func checkStatus(status int) error {
	switch status {
	case http.StatusOK, http.StatusNotModified, http.StatusBadRequest, http.StatusNotFound, http.StatusServiceUnavailable:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return errRefused
	default:
		return fmt.Errorf("%w: status %d", errUnexpected, status)
	}
}

// holder is a claim or a pod.
type holder struct{ Kind, Namespace, Name string }

func (h holder) String() string { return h.Namespace + "/" + h.Name }

// ownPage is the page of a claim or pod for users who may not see everything of its node.
type ownPage struct {
	present.Detail
	Grafana string
}

// serveOwn serves a claim or pod to users who may see it, but not everything of its node: the
// exporter leaves out what belongs to others.
func (g *gateway) serveOwn(w http.ResponseWriter, r *http.Request, node string, of holder) {
	address, _, err := g.exporters.address(r.Context(), node)
	if err == nil {
		query := url.Values{of.Kind: {of.String()}, "own": {""}}
		err = g.withDetail(r.Context(), address, query, func(d present.Detail) error {
			if !d.Own {
				return fmt.Errorf("%w: details of more than the user may see", errUnexpected)
			}
			d.Node = node
			if strings.Contains(r.Header.Get("Accept"), "application/json") {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(d) // fails if the client is gone
				return nil
			}
			page := ownPage{Detail: d}
			if g.Grafana != "" {
				page.Grafana = g.Grafana + "/d/dra-claim?" + url.Values{
					"var-node": {node}, "var-namespace": {of.Namespace}, "var-" + of.Kind: {of.Name},
				}.Encode()
			}
			g.pages.serve(w, r, "own.html", "", func() any { return page })
			return nil
		})
	}
	if err != nil {
		g.respondFailure(w, node, err)
	}
}

// withDetail asks an exporter for details, which use returns before they are forgotten.
func (g *gateway) withDetail(
	ctx context.Context, address string, query url.Values, use func(present.Detail) error,
) error {
	memory := g.memory.Open(maxPage)
	defer memory.Close()
	query.Set("json", "")
	var d present.Detail
	_, err := g.ask(ctx, address, "/page/detail?"+query.Encode(), "", func(body io.Reader) (err error) {
		d, err = decode.Read[present.Detail](body, memory)
		return err
	})
	if err != nil {
		return err
	}
	return use(d)
}

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
