package exporter

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ServerConfig are the parts and settings of the HTTP side.
type ServerConfig struct {
	Gatherer       prometheus.TransactionalGatherer
	Latest         func() *Snapshot
	Node           string
	MetricsPath    string
	CreatedSamples bool // _created lines in OpenMetrics text
	Pprof          bool
	Version        string
	ErrorLog       promhttp.Logger
	Scrapes        *Scrapes
	IdleAfter      time.Duration // the page calls a claim idle that was not active for so long
}

// NewHandler returns the handler of all pages: the metrics, /healthz, /readyz, /api/v1/snapshot and the page at /.
func NewHandler(c ServerConfig) http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerForTransactional(c.Gatherer, promhttp.HandlerOpts{
		ErrorLog:                            c.ErrorLog,
		ErrorHandling:                       promhttp.ContinueOnError,
		EnableOpenMetrics:                   true,
		EnableOpenMetricsTextCreatedSamples: c.CreatedSamples,
	})
	mux.Handle("GET "+c.MetricsPath, c.Scrapes.count(metrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if c.Latest() == nil {
			respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
			return
		}
		respond(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /api/v1/snapshot", func(w http.ResponseWriter, r *http.Request) { serveSnapshot(w, r, c) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { servePage(w, c) })
	if c.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client is gone: nobody to tell
}

func serveSnapshot(w http.ResponseWriter, r *http.Request, c ServerConfig) {
	s := c.Latest()
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }() // as above
		out = json.NewEncoder(z)
	}
	_ = out.Encode(NewReport(s, c.Node)) // as above
}

// Scrapes counts the scrapes, so that the end of the program can wait for the last one. Its zero value is ready.
type Scrapes struct {
	mu   sync.Mutex
	last time.Time
	next chan struct{} // closed at the end of the next scrape; nil: nobody waits
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

// Next returns a channel that is closed when a scrape that begins from now on has been answered. It returns nil when
// nobody scraped within the time before: then nobody will.
func (s *Scrapes) Next(within time.Duration) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.IsZero() || time.Since(s.last) > within {
		return nil
	}
	s.next = make(chan struct{})
	return s.next
}
