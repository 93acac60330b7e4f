package web

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"net/url"

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
