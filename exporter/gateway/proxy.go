package gateway

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"

	"github.com/dra-exporter/dra-exporter/exporter/web/access"
)

// target is the destination of a forwarded request.
type target struct{ node, address, path string }

// targetKey is the context key of the target.
type targetKey struct{}

// serveNode forwards a request for a page of an exporter. The path must be one of a fixed list, and
// the address comes from the list of exporters, so that nothing else of the request decides where
// it goes. The script and the style are the gateway's own.
func (g *gateway) serveNode(w http.ResponseWriter, r *http.Request, user *access.User) {
	to := target{node: r.PathValue("node"), path: "/" + r.PathValue("path")}
	if !g.paths[to.path] || len(r.URL.RawQuery) > maxQuery {
		respond(w, http.StatusNotFound, "exporters have no such page")
		return
	}
	if !g.allowed(w, r, user, to.path) {
		return
	}
	if own, ok := g.assets[to.path]; ok {
		own.ServeHTTP(w, r)
		return
	}
	address, known, err := g.exporters.address(r.Context(), to.node)
	switch {
	case err != nil:
		respond(w, http.StatusServiceUnavailable, "the API server did not return the addresses of the exporters")
	case !known:
		respond(w, http.StatusNotFound, "this node has no exporter")
	default:
		to.address = address
		g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, to)))
	}
}

// newProxy returns a proxy that removes headers: an exporter does not receive the user's headers,
// and sets only headers that describe its content.
func (g *gateway) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: final{g.Transport},
		Rewrite: func(p *httputil.ProxyRequest) {
			to, _ := p.In.Context().Value(targetKey{}).(target)
			p.Out.URL = &url.URL{Scheme: g.Scheme, Host: to.address, Path: to.path, RawQuery: p.Out.URL.RawQuery}
			p.Out.Host, p.Out.Body, p.Out.ContentLength, p.Out.Trailer = "", http.NoBody, 0, nil
			p.Out.TransferEncoding = nil
			p.Out.Header = pick(p.In.Header, "Accept", "Accept-Encoding", "If-None-Match")
		},
		ModifyResponse: checkAnswer,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			to, _ := r.Context().Value(targetKey{}).(target)
			g.Log.DebugContext(r.Context(), "an exporter does not answer", "node", to.node, "error", err)
			w.Header().Del("Etag")
			respond(w, http.StatusBadGateway, "the exporter of node "+to.node+": "+reason(err))
		},
		ErrorLog: nil,
	}
}

// final hides the interim answers of a request (such as 103 Early Hints), whose headers nobody
// checks.
type final struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (f final) RoundTrip(r *http.Request) (*http.Response, error) {
	return f.next.RoundTrip(r.WithContext(mute{r.Context()})) //nolint:contextcheck // only without values
}

// mute is a context without values.
type mute struct{ context.Context } //nolint:containedctx // it is one

// Value implements [context.Context].
func (mute) Value(any) any { return nil }

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
		return fmt.Errorf("%w: content of type %q", errUnexpected, header.Get("Content-Type"))
	case constant != "":
		header.Set("Content-Type", constant)
	}
	a.Header, a.Trailer = header, nil
	a.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(a.Body, maxAnswer), a.Body}
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
