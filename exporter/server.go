package exporter

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
)

// ServerConfig are the parts and settings of the HTTP side.
type ServerConfig struct {
	Metrics     http.Handler
	Latest      func() *Snapshot
	Node        string
	MetricsPath string
	Pprof       bool
	Version     string
	Scrapes     *Scrapes
	IdleAfter   time.Duration // the page calls a claim idle that was not active for so long
}

// NewHandler returns the handler of all pages: the metrics, /healthz, /readyz, /api/v1/snapshot and the page at /.
func NewHandler(c ServerConfig) http.Handler {
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

// compressed compresses the answers of more than a packet for the clients that ask for it, quickly rather than well: it
// takes longer than all else of a scrape.
func compressed(h http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		panic(err) // of constants alone
	}
	return wrap(h)
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client is gone: nobody to tell
}

func serveSnapshot(w http.ResponseWriter, c ServerConfig) {
	s := c.Latest()
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(NewReport(s, c.Node)) // as above
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
