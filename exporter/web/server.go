// Package web serves the exporter's pages: the metrics (written by package exposition), the HTML
// page at /, the snapshot as JSON ([Report]), probes and profiles. All of them show the latest
// snapshot; a request causes no reading.
package web

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

// Config configures [NewHandler].
type Config struct {
	Metrics     http.Handler
	Latest      func() *exposition.Snapshot
	Node        string
	MetricsPath string
	Pprof       bool
	Version     string
	Scrapes     *Scrapes
	QuietAfter  time.Duration // a device that no holder used for so long is quiet
}

// NewHandler returns the handler of all pages: the metrics, /healthz, /readyz, /api/v1/snapshot and
// the page at /.
func NewHandler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+c.MetricsPath, c.Scrapes.count(c.Metrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if c.Latest() == nil {
			respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
			return
		}
		respond(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /api/v1/snapshot", func(w http.ResponseWriter, _ *http.Request) { serveSnapshot(w, c) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { servePage(w, c) })
	if c.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return compressed(mux)
}

// compressed compresses answers of more than a packet for clients that accept it, at the fastest
// level: compression is the most expensive part of a scrape.
func compressed(h http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		panic(err) // only if a constant is wrong
	}
	return wrap(h)
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // fails if the client is gone
}

func serveSnapshot(w http.ResponseWriter, c Config) {
	s := c.Latest()
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(NewReport(s, c.Node, c.QuietAfter)) // as above
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
