// Package web serves the exporter's pages: the metrics (written by package exposition), the HTML
// page at /, the snapshot as JSON ([Report]), probes and profiles. All of them show the latest
// snapshot; a request causes no reading. What all requests together can cost is bounded
// ([NewServer]).
package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Config configures [NewHandler].
type Config struct {
	Metrics     *exposition.Renderer
	Latest      func() *exposition.Snapshot
	Node        string
	MetricsPath string
	Pprof       bool
	Version     string
	Scrapes     *Scrapes
	Health      func() error       // why the probes fail; nil: they do not
	QuietAfter  time.Duration      // a device that no holder used for so long is quiet
	Sources     func() []Source    // their state; nil: unknown
	Recorder    *recorder.Recorder // nil: none
	Log         *slog.Logger
}

// Probes are the paths that are answered whoever asks, and however many others do.
func Probes() []string { return []string{"/healthz", "/readyz"} }

func isProfile(page string) bool { return strings.HasPrefix(page, "/debug/pprof/") }

// CheckMetricsPath returns an error if the metrics can't be served under a path: it is not one, has
// a wildcard, or belongs to another page.
func CheckMetricsPath(of string) error {
	switch {
	case !strings.HasPrefix(of, "/"), of == "/", path.Clean(of) != of, strings.ContainsAny(of, "{}? \t"):
		return fmt.Errorf("%q is no path below /", of)
	case slices.Contains(Probes(), of), strings.HasPrefix(of+"/", "/api/"), strings.HasPrefix(of+"/", "/debug/"),
		strings.HasPrefix(of+"/", underPage):
		return fmt.Errorf("%q is the path of another page", of)
	}
	return nil
}

// NewHandler returns the handler of all pages: the metrics, /healthz, /readyz, /api/v1/snapshot,
// /api/v1/history, /api/v1/incidents, and the page at / with what it needs below /page/.
func NewHandler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+c.MetricsPath, c.Scrapes.count(serveMetrics(c.Metrics, newAnswers(c.Latest, c.Log))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { probe(w, c) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if c.Latest() == nil {
			respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
			return
		}
		probe(w, c)
	})
	documents := newAnswers(c.Latest, c.Log)  // of their own, so that no scrape waits for them
	recordings := newAnswers(c.Latest, c.Log) // likewise: queries make many different ones
	for name, report := range map[string]func(w io.Writer, s *exposition.Snapshot) error{
		"snapshot": func(w io.Writer, s *exposition.Snapshot) error { return writeReport(w, s, c.Node, c.QuietAfter) },
		"fit": func(w io.Writer, s *exposition.Snapshot) error {
			return json.NewEncoder(w).Encode(NewFitReport(s, c.Node))
		},
	} {
		mux.HandleFunc("GET /api/v1/"+name, func(w http.ResponseWriter, r *http.Request) {
			serveReport(w, r, c.Latest(), documents, name, report)
		})
	}
	mux.HandleFunc("GET /api/v1/history", serveRecording(c, recordings, c.history))
	mux.HandleFunc("GET /api/v1/incidents", serveRecording(c, recordings, c.incidents))
	mux.HandleFunc("GET /api/v1/receipts", serveRecording(c, recordings, c.receipts))
	newPages(c, documents, recordings).register(mux)
	if c.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// probe answers a probe.
func probe(w http.ResponseWriter, c Config) {
	if c.Health != nil {
		if err := c.Health(); err != nil {
			respond(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
	}
	respond(w, http.StatusOK, "ok\n")
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // fails if the client is gone
}

// serveMetrics answers a scrape in the format that the client prefers. The query parameter name[]
// selects families.
func serveMetrics(metrics *exposition.Renderer, scrapes *answers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		format := exposition.Negotiate(r.Header)
		w.Header().Set("Content-Type", string(format))
		w.Header().Set("Vary", "Accept")
		mediaType, _, _ := strings.Cut(string(format), ";")
		write := func(_ context.Context, to io.Writer) ([]exposition.Part, error) { return metrics.Write(to, format) }
		scrapes.serve(w, r, mediaType, r.URL.Query()["name[]"], write)
	})
}

// serveReport answers with a report of a snapshot as JSON.
func serveReport(
	w http.ResponseWriter, r *http.Request, s *exposition.Snapshot, documents *answers, name string,
	report func(w io.Writer, s *exposition.Snapshot) error,
) {
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if unchanged(w, r, s) {
		return
	}
	documents.serve(w, r, "application/json "+name, nil, func(_ context.Context, to io.Writer) ([]exposition.Part, error) {
		if err := report(to, s); err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		return nil, nil
	})
}

// Scrapes records scrapes, so that the program can wait for the last one before it ends. Its zero
// value is ready, and it is safe for concurrent use.
type Scrapes struct {
	mu   sync.Mutex
	last time.Time
	next chan struct{} // closed at the end of the next scrape; may be nil
}

func (s *Scrapes) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		next := s.next
		s.next = nil
		s.last = time.Now()
		s.mu.Unlock()
		h.ServeHTTP(w, r)
		if next != nil {
			close(next)
		}
	})
}

// Next returns a channel that is closed when a scrape that begins from now on is answered, nil if
// the last scrape was longer ago than within.
func (s *Scrapes) Next(within time.Duration) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.IsZero() || time.Since(s.last) > within {
		return nil
	}
	s.next = make(chan struct{})
	return s.next
}
