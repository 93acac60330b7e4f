package web

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// Kind is what a route serves.
type Kind string

// The kinds of routes.
const (
	KindMetrics Kind = "metrics"
	KindProbe   Kind = "probe"
	KindAPI     Kind = "api"  // JSON
	KindPage    Kind = "page" // HTML, and what it needs
	KindProfile Kind = "profile"
)

// Route is a path of the server.
type Route struct {
	Kind    Kind
	Pattern string // of [http.ServeMux]
	Example string // a path and query
}

// Routes returns all paths of the server.
func Routes(metricsPath string) []Route {
	all := Config{MetricsPath: metricsPath, Scrapes: &Scrapes{}}.routes()
	out := make([]Route, 0, len(all))
	for _, r := range all {
		out = append(out, r.Route)
	}
	return out
}

type route struct {
	Route

	handler http.Handler
}

// routes returns the table of all paths of the server.
func (c Config) routes() []route {
	scrapes := newAnswers(&c, 4, make(chan struct{}, 1), make(chan struct{}, 1))
	// Answers other than scrapes are made and decompressed one at a time, so that a processor stays
	// free for scrapes and for the sampler.
	turns := make(chan struct{}, 1)
	documents := newAnswers(&c, 2, turns, turns)
	recordings := newAnswers(&c, 4, turns, turns) // many different ones, because of queries
	snapshot := func(w io.Writer, s *exposition.Snapshot) error {
		return present.WriteReport(w, s, c.about())
	}
	summary := func(w io.Writer, s *exposition.Snapshot) error {
		return json.NewEncoder(w).Encode(present.NewSummary(s, c.about()))
	}
	fit := func(w io.Writer, s *exposition.Snapshot) error {
		return json.NewEncoder(w).Encode(present.NewFitReport(s, c.Node))
	}
	of := func(kind Kind, path, query string, handler http.Handler) route {
		return route{Route{kind, "GET " + path, path + query}, handler}
	}
	profile := func(path, query string, handler http.HandlerFunc) route {
		return route{Route{KindProfile, path, path + query}, handler}
	}
	api := func(path string, write writer) route {
		return of(KindAPI, path, "", c.serve(document{typeJSON, documents, whole(write), false}))
	}
	recorded := func(path, query string, parse func(url.Values) (any, finder, error)) route {
		return of(KindAPI, path, query, c.serve(document{typeJSON, recordings, c.recorded(parse), true}))
	}
	p, assets := &pages{c, Templates()}, Assets()
	root := of(KindPage, "/", "", c.serve(document{typeHTML, documents, whole(p.writePage), true}))
	root.Pattern = "GET /{$}"
	return []route{
		of(KindMetrics, c.MetricsPath, "", c.Scrapes.count(serveMetrics(c.Metrics, scrapes))),
		of(KindProbe, "/healthz", "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { probe(w, c) })),
		of(KindProbe, "/readyz", "", http.HandlerFunc(c.ready)),
		api("/api/v1/snapshot", snapshot),
		api("/api/v1/summary", summary),
		api("/api/v1/fit", fit),
		recorded("/api/v1/history", "?device=gpu-0", c.history),
		recorded("/api/v1/incidents", "", c.incidents),
		recorded("/api/v1/receipts", "", c.receipts),
		root,
		of(KindPage, underPage+"rows", "", c.serve(document{typeJSON, documents, whole(p.writeRows), false})),
		of(KindPage, underPage+"detail", "?device=gpu-0", p.serveDetail(recordings)),
		of(KindPage, underPage+"script.js", "", assets[underPage+"script.js"]),
		of(KindPage, underPage+"style.css", "", assets[underPage+"style.css"]),
		profile("/debug/pprof/", "", pprof.Index),
		profile("/debug/pprof/cmdline", "", pprof.Cmdline),
		profile("/debug/pprof/profile", "?seconds=1", pprof.Profile),
		profile("/debug/pprof/symbol", "", pprof.Symbol),
		profile("/debug/pprof/trace", "?seconds=1", pprof.Trace),
	}
}

// ready answers the readiness probe.
func (c Config) ready(w http.ResponseWriter, _ *http.Request) {
	if c.Latest() == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	probe(w, c)
}

// switchedOff answers requests for a path that a flag has switched off.
func switchedOff(flag string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusNotFound, "switched off ("+flag+")\n")
	})
}

// The content types of documents.
const (
	typeJSON = "application/json"
	typeHTML = "text/html; charset=utf-8"
)

// document is what readers get under a path: the page or a part of it, or JSON.
type document struct {
	contentType string
	among       *answers
	// parse reads the query. key identifies the document among those of the path.
	parse parser
	// early: it is there before the first snapshot.
	early bool
}

type (
	parser func(url.Values) (key any, write writer, err error)
	// writer writes a document of a snapshot. Its error may be a status.
	writer func(w io.Writer, s *exposition.Snapshot) error
)

// errNoRecorder is the error for a document of the flight recorder if there is none.
var errNoRecorder = errors.New("the flight recorder is off (--no-recorder)")

// serve returns the handler of a document. It is made once for all clients, and has an entity tag:
// a client that has a document with the same content gets status 304.
func (c Config) serve(d document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key, write, err := d.parse(r.URL.Query())
		s := c.Latest()
		switch {
		case errors.Is(err, errNoRecorder):
			respond(w, http.StatusNotFound, err.Error()+"\n")
			return
		case err != nil:
			respond(w, http.StatusBadRequest, err.Error()+"\n")
			return
		case s == nil && !d.early:
			respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
			return
		}
		w.Header().Set("Content-Type", d.contentType)
		name := fmt.Sprintf("%s %s?%+v", d.contentType, r.URL.Path, key)
		d.among.serve(w, r, name, nil, func(to io.Writer) ([]exposition.Part, error) {
			if err := write(to, s); err != nil {
				return nil, fmt.Errorf("write %s: %w", r.URL.Path, err)
			}
			return nil, nil
		})
	}
}

// whole returns the parser of the only document of a path.
func whole(write writer) parser {
	return func(url.Values) (any, writer, error) { return nil, write, nil }
}

// TagOf returns the entity tag of a body. It is the same for all encodings of the body.
func TagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf(`W/"%x"`, sum[:16])
}

// Tagged gives an answer an entity tag. If the client already has the answer, Tagged answers with
// status 304 and returns true.
func Tagged(w http.ResponseWriter, r *http.Request, tag string) bool {
	w.Header().Set("Etag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	for have := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimSpace(have) == tag {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}
