// Package web serves the metrics (written by package exposition), the HTML page at /, the snapshot
// as JSON ([Report]), probes and profiles. All answers are made from the latest snapshot. A request
// causes no reading, and the cost of all requests together is bounded ([NewServer]).
//
// Bounds (max…) are for what clients of the HTTP port send.
package web

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
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
	Health      func() error            // why the probes fail; nil: they succeed
	QuietAfter  time.Duration           // a device that was not used for this time is quiet
	Sources     func() []present.Source // states of the sources; nil: unknown
	Recorder    *recorder.Recorder      // nil: none
	Log         *slog.Logger
	MaxAnswers  int // size limit of answers kept in memory, in bytes; 0: MaxAnswers
	// WithoutAPI and WithoutPage switch the JSON and the page off.
	WithoutAPI, WithoutPage bool
	// Hosts are further names of the server, which [Config.knows] accepts.
	Hosts    []string
	Rejected func(driver.Rejection) // called for each refused request; may be nil
	// GiveWay is called before each piece of work. It waits while other work is more urgent. It may be
	// nil.
	GiveWay func(context.Context)
}

// about returns what people see of the node beside its snapshot.
func (c Config) about() present.Config {
	out := present.Config{Node: c.Node, Version: c.Version, Recorder: c.Recorder, QuietAfter: c.QuietAfter}
	if c.Sources != nil {
		out.Sources = c.Sources()
	}
	return out
}

// Probes are the paths that need no check of the client and are outside of all limits.
func Probes() []string { return []string{"/healthz", "/readyz"} }

func isProfile(page string) bool { return strings.HasPrefix(page, "/debug/pprof/") }

// CheckMetricsPath returns an error if the metrics can't be served under a path: it is invalid, has
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

// NewHandler returns the handler of all [Routes].
func NewHandler(c Config) http.Handler {
	if c.Rejected == nil {
		c.Rejected = func(driver.Rejection) {}
	}
	if c.GiveWay == nil {
		c.GiveWay = func(context.Context) {}
	}
	mux, readers := http.NewServeMux(), http.NewServeMux()
	few := c.forBrowsers(crowded(readers, maxReaders, c.Rejected))
	for _, r := range c.routes() {
		handler := r.handler
		switch {
		case r.Kind == KindProfile && !c.Pprof:
			continue
		case r.Kind == KindAPI && c.WithoutAPI:
			handler = switchedOff("--no-web.api")
		case r.Kind == KindPage && c.WithoutPage:
			handler = switchedOff("--no-web.page")
		case r.Kind == KindAPI, r.Kind == KindPage:
			readers.Handle(r.Pattern, handler)
			handler = few
		}
		if r.Kind != KindProbe {
			handler = c.giveWay(handler)
		}
		mux.Handle(r.Pattern, handler)
	}
	return mux
}

// giveWay lets more urgent work go before a handler.
func (c Config) giveWay(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.GiveWay(r.Context())
		next.ServeHTTP(w, r)
	})
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
		write := func(to io.Writer) ([]exposition.Part, error) { return metrics.Write(to, format) }
		scrapes.serve(w, r, mediaType, r.URL.Query()["name[]"], write)
	})
}

// Scrapes records scrapes, so that the program can wait for one before it exits. The zero value is
// ready to use. Scrapes is safe for concurrent use.
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

// Next returns a channel that is closed once a scrape that begins from now on has been answered. It
// is nil if no scrape was answered within that time.
func (s *Scrapes) Next(within time.Duration) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.IsZero() || time.Since(s.last) > within {
		return nil
	}
	s.next = make(chan struct{})
	return s.next
}
