package gateway

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
)

// held is how many bytes of an answer are read before the answer to the client begins. If the
// exporter stops before, the client learns why.
const held = 64 << 10

// serveNode forwards a request for a page of an exporter. The path must be one of a fixed list, and
// the address comes from the list of exporters, so that nothing else of the request decides where
// it goes. The script and the style are the gateway's own.
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
	address, known, err := g.exporters.address(r.Context(), node)
	switch {
	case err != nil:
		respond(w, http.StatusServiceUnavailable, "the API server did not return the addresses of the exporters")
		return
	case !known:
		respond(w, http.StatusNotFound, "this node has no exporter")
		return
	}
	leave, ok := g.places.enter(w, node, user)
	if !ok {
		return
	}
	defer leave()
	header := pick(r.Header, "Accept", "If-None-Match", "Accept-Encoding")
	if isPage(path) {
		header.Set("Accept-Encoding", "identity") // it is cleaned
		sandbox(w.Header())                       // also if it has not changed
	}
	answer, end, err := g.fetch(r.Context(), address, path, r.URL.RawQuery, header)
	if err == nil {
		defer end()
		defer answer.Body.Close()
		err = forward(w, r, answer)
	}
	if err != nil {
		g.Log.DebugContext(r.Context(), "an exporter does not answer", "node", node, "error", err)
		g.respondFailure(w, node, err)
	}
}

// isPage reports whether a path of exporters is an HTML page.
func isPage(path string) bool { return path == "/" || path == "/page/detail" }

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
func forward(w http.ResponseWriter, r *http.Request, answer *http.Response) error {
	if err := checkAnswer(answer); err != nil {
		return err
	}
	body := io.LimitReader(answer.Body, maxAnswer)
	isHTML := strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html")
	if isHTML {
		body = newCleaner(body)
	}
	start, err := io.ReadAll(io.LimitReader(body, held))
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	maps.Copy(w.Header(), answer.Header)
	var to io.Writer = w
	if isHTML && web.AcceptsGzip(r.Header) {
		w.Header().Set("Content-Encoding", "gzip")
		z, err := gzip.NewWriterLevel(w, web.CompressionLevel)
		if err != nil {
			return fmt.Errorf("compress an answer: %w", err)
		}
		defer func() { _ = z.Close() }() // fails if the client is gone
		to = z
	}
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(to, io.MultiReader(bytes.NewReader(start), body)); err != nil {
		panic(http.ErrAbortHandler) // the client learns that the answer is incomplete
	}
	return nil
}

// sandbox forbids a page what it does not need, such as to navigate other windows. The form of its
// dialog sends nothing. Its script, the gateway's own, needs its origin to ask for rows as the
// user. The two together are unsafe only for a page in a frame, which the policy forbids.
func sandbox(header http.Header) {
	policy := header.Get("Content-Security-Policy")
	header.Set("Content-Security-Policy", strings.TrimPrefix(policy+"; ", "; ")+
		"sandbox allow-scripts allow-same-origin allow-forms allow-popups allow-popups-to-escape-sandbox")
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

// content has the content types of exporters' answers. A browser does not execute any of them, nor
// use them as a style. "": the type stays as the exporter sent it.
func content() map[string]string {
	return map[string]string{
		"text/html": "text/html; charset=utf-8", "application/json": "application/json",
		"text/plain": "", "application/openmetrics-text": "", "application/vnd.google.protobuf": "",
	}
}

// checkAnswer refuses answers that exporters do not give, and removes all headers that do not
// describe the content.
func checkAnswer(a *http.Response) error {
	if err := checkStatus(a.StatusCode); err != nil {
		return err
	}
	header := pick(a.Header, "Content-Type", "Content-Encoding", "Content-Length", "Etag", "Vary", "Retry-After")
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	constant, known := content()[kind]
	switch {
	case a.StatusCode == http.StatusNotModified:
		header.Del("Content-Type")
	case err != nil || !known || len(header["Content-Type"]) != 1:
		return fmt.Errorf("%w: content of type %.100q", errUnexpected, header.Get("Content-Type"))
	case kind == "text/html" && (header.Get("Content-Encoding") != "" || !isPage(a.Request.URL.Path)):
		return fmt.Errorf("%w: a page that is compressed, or not expected", errUnexpected)
	case constant != "":
		header.Set("Content-Type", constant)
	}
	if kind == "text/html" {
		header.Del("Content-Length")
		header.Set("Vary", "Accept-Encoding")
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
