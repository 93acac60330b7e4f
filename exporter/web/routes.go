package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strings"
	"time"

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
var errNoRecorder = errors.New(present.NoRecorder)

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

//go:embed page
var pageFiles embed.FS

// underPage is the path of the files and answers that only the page at / needs.
const underPage = "/page/"

// pages serves the page: as HTML, its rows as JSON for its script, and the details of a device or a
// claim. It is safe for concurrent use.
type pages struct {
	Config
	templates *template.Template
}

// Templates returns the templates of the page (page.html, of a [Page]) and of details (detail.html,
// of a [present.Detail]).
func Templates() *template.Template {
	return template.Must(template.ParseFS(pageFiles, "page/*.html")) // a test executes them all
}

// Assets returns handlers of the page's script and style, by path.
func Assets() map[string]http.Handler {
	return map[string]http.Handler{
		underPage + "script.js": asset("script.js", "text/javascript; charset=utf-8"),
		underPage + "style.css": asset("style.css", "text/css; charset=utf-8"),
	}
}

// asset serves an embedded file.
func asset(name, kind string) http.HandlerFunc {
	content, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // the file is not embedded: a bug
	}
	tag := fmt.Sprintf(`"%x"`, sha256.Sum256(content))[:18] + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-cache") // a newer program may have another file
		w.Header().Set("Etag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	}
}

// Page is the input of page.html.
type Page struct {
	MetricsPath string
	*present.Page
}

// NewPage returns the input of page.html of an exporter with a path of the metrics.
func NewPage(metricsPath string, of *present.Page) Page {
	return Page{strings.TrimPrefix(metricsPath, "/"), of}
}

// Ready reports whether there is a snapshot.
func (p Page) Ready() bool { return p.Time != "" }

// writePage writes the page of a snapshot; nil: there is none yet.
func (p *pages) writePage(to io.Writer, s *exposition.Snapshot) error {
	of := &present.Page{Node: p.Node, Version: p.Version}
	if s != nil {
		of = present.NewPage(s, p.about())
	}
	return p.templates.ExecuteTemplate(to, "page.html", NewPage(p.MetricsPath, of))
}

func (p *pages) writeRows(to io.Writer, s *exposition.Snapshot) error {
	return json.NewEncoder(to).Encode(present.NewPage(s, p.about()))
}

// detail returns the parser of ?device=NAME, ?device=DRIVER/POOL/NAME, ?claim=NAMESPACE/NAME,
// ?pod=NAMESPACE/NAME and ?incident=ID, for details that are laid out by a function. With &own, a
// claim or a pod is without what belongs to others.
func (p *pages) detail(layOut func(to io.Writer, d present.Detail) error) parser {
	return func(query url.Values) (any, writer, error) {
		of := subjectOf(query)
		return of, func(to io.Writer, s *exposition.Snapshot) error {
			return layOut(to, present.NewDetail(s, p.about(), of))
		}, nil
	}
}

// serveDetail returns the handler of details: as HTML, and with ?json as JSON.
func (p *pages) serveDetail(among *answers) http.HandlerFunc {
	asHTML := p.serve(document{typeHTML, among, p.detail(func(to io.Writer, d present.Detail) error {
		err := p.templates.ExecuteTemplate(to, "detail.html", d)
		if err == nil && len(d.Sections) == 0 {
			err = status(http.StatusNotFound)
		}
		return err
	}), false})
	asJSON := p.serve(document{typeJSON, among, p.detail(func(to io.Writer, d present.Detail) error {
		return json.NewEncoder(to).Encode(d)
	}), false})
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("json") {
			asJSON(w, r)
		} else {
			asHTML(w, r)
		}
	}
}

func subjectOf(query url.Values) present.Subject {
	own := query.Has("own")
	switch {
	case query.Get("incident") != "":
		return present.Subject{Incident: query.Get("incident"), Own: own}
	case query.Get("claim") != "":
		return present.Subject{Claim: query.Get("claim"), Own: own}
	case query.Get("pod") != "":
		return present.Subject{Pod: query.Get("pod"), Own: own}
	default:
		return present.Subject{Device: query.Get("device"), Own: own}
	}
}
