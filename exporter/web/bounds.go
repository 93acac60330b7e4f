package web

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

// Limits for all clients together; exporter/HTTP.md describes them.
const (
	maxRequests    = 512      // in flight
	maxReaders     = 16       // of these, for the page and the JSON, whose answers are large
	maxKnown       = 32       // further requests in flight, of known clients
	maxConnections = 256      // at most half of the files that the process may open
	maxStreams     = 250      // of one HTTP/2 connection; each stream is a request in flight
	maxHeader      = 32 << 10 // bytes of a request's header; a token has at most 16 KiB
	sendBuffer     = 64 << 10 // bytes that the kernel buffers for a connection, which Linux doubles

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of a whole request
	writeTimeout  = 30 * time.Second // of a whole answer
	shortTimeout  = time.Second      // of an answer of one line
	pprofTimeout  = time.Minute      // of a profile, which takes as long as its client asks for
	idleTimeout   = 2 * time.Minute

	// The age up to which a request, or an idle connection, is not dropped for another one of the same
	// client.
	settledRequest    = 250 * time.Millisecond
	settledConnection = 10 * time.Second // a handshake is expensive
)

// ServerConfig configures [NewServer].
type ServerConfig struct {
	Handler http.Handler
	Log     slog.Handler // receives warnings about connections, which clients can cause
	// Rejected is called concurrently: for each request that was refused (reason too_many) or cut off
	// (reason timeout), and for each connection that was closed because there were too many. It may be
	// nil.
	Rejected func(driver.Rejection)
}

// NewServer returns a server whose use of memory is bounded whatever its clients do: connections,
// their buffers and streams, and requests in flight are limited. At the limit, a new connection
// replaces the one that has been idle for longest, or is closed. A new request replaces the oldest
// one, or is answered with status 503. Clients with few connections and requests have precedence.
// Probes are always answered. The bounds include handlers that are put before Handler until the
// server serves, such as a check of passwords.
func NewServer(c ServerConfig) *http.Server {
	if c.Rejected == nil {
		c.Rejected = func(driver.Rejection) {}
	}
	open := newConnections(connectionLimit(), c.Rejected)
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
		Handler:     checked(c.Handler),
		ConnState:   open.changed,
		ConnContext: open.context,
		ErrorLog:    slog.NewLogLogger(c.Log, slog.LevelWarn),
	}
	// exporter-toolkit puts its handler, which checks passwords, before Handler before this call.
	server.BaseContext = func(net.Listener) context.Context {
		server.Handler = outermost(server.Handler, c.Rejected)
		return context.Background()
	}
	return server
}

// outermost applies the bounds before a handler, once for each request: exporter-toolkit calls
// BaseContext, and so outermost, again for each further address.
func outermost(next http.Handler, rejected func(driver.Rejection)) http.Handler {
	type within struct{}
	all := secured(bounded(passwords(next, rejected), rejected))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(within{}) != nil {
			next.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), within{}, true)))
	})
}

// connectionLimit returns the maximum number of connections. It leaves half of the files that the
// process may open (RLIMIT_NOFILE) for reading: without a free one, no connection is accepted.
func connectionLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return maxConnections // getrlimit does not fail
	}
	return int(max(1, min(maxConnections, files.Cur/2)))
}

// secured adds headers that keep a browser from running text that a name or a client puts into a
// page. Headers configured with --web.config.file have precedence.
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

// past is a deadline that interrupts a write.
func past() time.Time { return time.Unix(1, 0) }

// bounded bounds the requests in flight and the time that a client may take to read an answer.
func bounded(next http.Handler, rejected func(driver.Rejection)) http.Handler {
	few, ofKnown := crowded(next, maxRequests, rejected), crowded(next, maxKnown, rejected)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		controller := http.NewResponseController(w)
		deadline := func(d time.Duration) { _ = controller.SetWriteDeadline(time.Now().Add(d)) } // not in tests
		if slices.Contains(Probes(), r.URL.Path) {
			deadline(shortTimeout)
			next.ServeHTTP(w, r)
			return
		}
		if !isProfile(r.URL.Path) {
			deadline(writeTimeout)
		}
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			recognize(r.Context())
		}
		if isKnown(r.Context()) {
			ofKnown.ServeHTTP(w, r)
			return
		}
		few.ServeHTTP(w, r)
	})
}

// crowded bounds the requests in flight. A request that must give way is cut off: its context ends,
// and its writing is interrupted.
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

// refuse answers a request above the limit.
func refuse(w http.ResponseWriter, why string, rejected func(driver.Rejection)) {
	rejected(driver.Rejection{Input: "requests", Reason: driver.ReasonTooMany, Count: 1})
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shortTimeout)) // test recorders: none
	w.Header().Set("Retry-After", "1")
	respond(w, http.StatusServiceUnavailable, why)
}

// forBrowsers refuses requests that a page of another site makes a browser send: requests to a name
// that another site may own and resolve to this server (DNS rebinding), and requests with another
// origin. Links from other sites work.
func (c Config) forBrowsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !c.knows(r.Host):
			c.refuseBrowser(w, http.StatusMisdirectedRequest,
				"not a name of this server: add it to --web.host, or use its address\n")
		case !c.isOwnOrigin(r):
			c.refuseBrowser(w, http.StatusForbidden, "requests of other sites are refused\n")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (c Config) refuseBrowser(w http.ResponseWriter, status int, why string) {
	c.Rejected(driver.Rejection{Input: "requests", Reason: driver.ReasonForbidden, Count: 1})
	respond(w, status, why)
}

// knows reports whether the host of a request certainly means this server: an address, a name
// without a dot, a name below a domain that public DNS does not have, the node's name, or one of
// Hosts.
func (c Config) knows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if address, _, _ := strings.Cut(name, "%"); address != "" {
		if _, err := netip.ParseAddr(address); err == nil {
			return true
		}
	}
	private := func(domain string) bool { return strings.HasSuffix(name, domain) }
	return !strings.Contains(name, ".") || name == strings.ToLower(c.Node) || slices.Contains(c.Hosts, name) ||
		slices.ContainsFunc([]string{".localhost", ".svc", ".cluster.local", ".internal"}, private)
}

// isOwnOrigin reports whether a request comes from a page of this server, or from no page.
func (c Config) isOwnOrigin(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// Limits of the checks of passwords. A check takes some 60 ms. exporter-toolkit makes one check at
// a time, and remembers the results of a hundred: with it alone, a scrape took up to 5.6 s while 50
// clients guessed passwords for 20 s on two busy processors, and with this 62 ms.
const (
	maxChecks       = 16 // checks at a time, of passwords that are not known to have been right
	maxClientChecks = 2  // the same for one client
	maxRight        = 128
)

// checks counts the checks in progress. It is safe for concurrent use.
type checks struct {
	mu    sync.Mutex
	count map[client.ID]int
	all   int
	right map[password]bool // have been right, and may have changed since
}

// password is the hash of a user's name and password.
type password [sha256.Size]byte

// passedKey is the context key of the function that [checked] calls.
type passedKey struct{}

// passwords bounds the requests that wait for the check of a password. Passwords that have been
// right are not limited. next must check the password, and call a handler of [checked] if it is
// right.
func passwords(next http.Handler, rejected func(driver.Rejection)) http.Handler {
	c := checks{count: map[client.ID]int{}, right: map[password]bool{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Get("Authorization")
		if scheme, _, _ := strings.Cut(header, " "); !strings.EqualFold(scheme, "Basic") {
			next.ServeHTTP(w, r)
			return
		}
		by, secret := client.Of(r.RemoteAddr), password(sha256.Sum256([]byte(header)))
		known, ok := c.begin(by, secret)
		switch {
		case known: // exporter-toolkit checks whether it is still right
			next.ServeHTTP(w, passedBy(r, func() {}))
			return
		case !ok:
			refuse(w, "too many passwords to check\n", rejected)
			return
		}
		end := sync.OnceFunc(func() { c.end(by) })
		defer end()
		next.ServeHTTP(w, passedBy(r, func() {
			c.remember(secret)
			end()
		}))
	})
}

// passedBy returns the request with a function for [checked] to call.
func passedBy(r *http.Request, passed func()) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), passedKey{}, passed))
}

// checked is the handler that follows the check of passwords.
func checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if passed, ok := r.Context().Value(passedKey{}).(func()); ok {
			recognize(r.Context())
			passed()
		}
		next.ServeHTTP(w, r)
	})
}

// begin begins a check. known: the password has been right, and needs no check. ok is false if too
// many checks are in progress.
func (c *checks) begin(by client.ID, secret password) (known, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.right[secret] {
		return true, false
	}
	if c.all >= maxChecks || c.count[by] >= maxClientChecks {
		return false, false
	}
	c.all++
	c.count[by]++
	return false, true
}

func (c *checks) end(by client.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.count[by]--; c.count[by] == 0 {
		delete(c.count, by)
	}
}

// remember records a password that is right. If there are too many, another one is forgotten.
func (c *checks) remember(secret password) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.right) >= maxRight {
		for other := range c.right {
			delete(c.right, other)
			break
		}
	}
	c.right[secret] = true
}
