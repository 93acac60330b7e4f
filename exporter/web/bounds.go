package web

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

// Bounds of what all clients together can cause; the exporter's README.md describes them.
const (
	maxRequests    = 512      // in flight
	maxReaders     = 16       // of these, of the page and of the JSON, whose answers are large
	maxConnections = 256      // and half of the files that the process may open
	maxStreams     = 250      // of an HTTP/2 connection, each of which is a request in flight
	maxHeader      = 32 << 10 // bytes of a request's header; a token has at most 16 KiB
	sendBuffer     = 64 << 10 // bytes that the kernel buffers for a connection, which Linux doubles

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of a whole request
	writeTimeout  = 30 * time.Second // of a whole answer
	shortTimeout  = time.Second      // of an answer of one line
	pprofTimeout  = time.Minute      // of a profile, which takes as long as its client asks for
	idleTimeout   = 2 * time.Minute

	// How long a request, and a connection without a request, is safe from others of its own client.
	settledRequest    = 250 * time.Millisecond
	settledConnection = 10 * time.Second // a handshake is expensive
)

// ServerConfig configures [NewServer].
type ServerConfig struct {
	Handler http.Handler
	Log     slog.Handler // of warnings about connections, which clients can cause
	// Rejected is called, by several goroutines, with each request that was refused (reason
	// too_many) or cut off before its end (reason timeout), and with each connection that was
	// closed because there were too many. It may be nil.
	Rejected func(driver.Rejection)
	// Users returns the hashes of the users' passwords that exporter-toolkit checks: a wrong one is
	// refused before, in the same time for all users and for those that there are not. It is called
	// for each check; nil: there are none.
	Users func() (map[string]string, error)
}

// NewServer returns a server whose use of memory is bounded whatever its clients do: in its
// connections, their buffers and streams, and the requests in flight. A connection too many takes
// the place of the one that was idle for the longest time, or is closed; a request too many takes
// the place of the oldest one, or is answered with status 503. Clients with few connections and
// requests come first. Probes are always answered. What is put before Handler until the server
// serves, such as a check of passwords, is within the bounds.
func NewServer(c ServerConfig) *http.Server {
	if c.Rejected == nil {
		c.Rejected = func(driver.Rejection) {}
	}
	open := connections{crowd: crowd{max: connectionLimit(), settled: settledConnection}, rejected: c.Rejected}
	server := &http.Server{
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      pprofTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     16 << 10,
			SendPingTimeout:               idleTimeout,
			WriteByteTimeout:              writeTimeout,
		},
		Handler:   checked(c.Handler),
		ConnState: open.changed,
		ErrorLog:  slog.NewLogLogger(c.Log, slog.LevelWarn),
	}
	var users *verifier
	if c.Users != nil {
		users = newVerifier(c.Users)
	}
	// By now, exporter-toolkit has put its handler, which checks passwords, before this one.
	server.BaseContext = func(net.Listener) context.Context {
		server.Handler = outermost(server.Handler, users, c.Rejected)
		return context.Background()
	}
	return server
}

// outermost puts the bounds before a handler, once for each request: exporter-toolkit puts a
// handler before them again for each further address.
func outermost(next http.Handler, users *verifier, rejected func(driver.Rejection)) http.Handler {
	type within struct{}
	all := secured(bounded(passwords(next, users, rejected), rejected))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(within{}) != nil {
			next.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), within{}, true)))
	})
}

// connectionLimit returns how many connections there may be. Half of the files that the process may
// open (RLIMIT_NOFILE) are left for what it reads: without a free one, no connection is accepted.
func connectionLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return maxConnections // never
	}
	return int(max(1, min(maxConnections, files.Cur/2)))
}

// secured adds the headers that keep a browser from running what a name or a client could smuggle
// into a page. Headers that are configured (--web.config.file) have precedence.
func secured(next http.Handler) http.Handler {
	headers := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
			"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options": "nosniff",
		"Referrer-Policy":        "no-referrer",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			if w.Header().Get(name) == "" {
				w.Header().Set(name, value)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// past is a deadline that ends what is being written.
func past() time.Time { return time.Unix(1, 0) }

// bounded bounds the requests in flight and the time that a client may take to read an answer.
func bounded(next http.Handler, rejected func(driver.Rejection)) http.Handler {
	few := crowded(next, maxRequests, rejected)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		controller := http.NewResponseController(w)
		deadline := func(d time.Duration) { _ = controller.SetWriteDeadline(time.Now().Add(d)) } // recorders have none
		if slices.Contains(Probes(), r.URL.Path) {
			deadline(shortTimeout)
			next.ServeHTTP(w, r)
			return
		}
		if !isProfile(r.URL.Path) {
			deadline(writeTimeout)
		}
		few.ServeHTTP(w, r)
	})
}

// crowded bounds the requests in flight. A request that must make place is cut off: its context
// ends, and so does its writing.
func crowded(next http.Handler, most int, rejected func(driver.Rejection)) http.Handler {
	requests := crowd{max: most, settled: settledRequest}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		controller := http.NewResponseController(w)
		m, expelled := requests.enter(client.Of(r.RemoteAddr), func() {
			cancel()
			_ = controller.SetWriteDeadline(past())
		})
		if expelled {
			rejected(driver.Rejection{Input: "requests", Reason: driver.ReasonTimeout, Count: 1})
		}
		if m == nil {
			refuse(w, "too many requests in flight\n", rejected)
			return
		}
		defer requests.leave(m)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// refuse answers a request that is one too many.
func refuse(w http.ResponseWriter, why string, rejected func(driver.Rejection)) {
	rejected(driver.Rejection{Input: "requests", Reason: driver.ReasonTooMany, Count: 1})
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shortTimeout)) // recorders have none
	w.Header().Set("Retry-After", "1")
	respond(w, http.StatusServiceUnavailable, why)
}

// connections bounds the open connections.
type connections struct {
	crowd
	rejected func(driver.Rejection)
	known    sync.Map // of net.Conn: *member
}

// changed is a server's ConnState. A connection that becomes active is the youngest one.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		raw := conn
		if encrypted, ok := conn.(*tls.Conn); ok {
			raw = encrypted.NetConn() // its Close does not wait for the peer
		}
		if t, ok := raw.(*net.TCPConn); ok {
			_ = t.SetWriteBuffer(sendBuffer) // else the kernel's default, which works as well
		}
		m, expelled := c.enter(client.Of(conn.RemoteAddr().String()), func() { _ = raw.Close() })
		if m == nil {
			_ = raw.Close()
		} else {
			c.known.Store(conn, m)
		}
		if expelled || m == nil {
			c.rejected(driver.Rejection{Input: "connections", Reason: driver.ReasonTooMany, Count: 1})
		}
	case http.StateActive:
		if m, ok := c.known.Load(conn); ok {
			c.renew(m.(*member))
		}
	case http.StateClosed, http.StateHijacked:
		if m, ok := c.known.LoadAndDelete(conn); ok {
			c.leave(m.(*member))
		}
	}
}
