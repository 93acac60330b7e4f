package web

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// rejections counts a server's rejections.
type rejections struct {
	mu    sync.Mutex
	count map[string]driver.Rejections
}

func (r *rejections) add(rejected driver.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == nil {
		r.count = map[string]driver.Rejections{}
	}
	if r.count[rejected.Input] == nil {
		r.count[rejected.Input] = driver.Rejections{}
	}
	r.count[rejected.Input].Add(rejected.Reason, rejected.Count)
}

// Requests in flight are bounded. A client with few requests, and a probe, are always answered; a
// client that has them all gets status 503, or takes the place of its own oldest one.
func TestRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts rejections
		var ended atomic.Int32
		handler := bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stuck" {
				<-r.Context().Done()
				ended.Add(1)
			}
			_, _ = w.Write([]byte("page"))
		}), counts.add)
		ask := func(w http.ResponseWriter, client, path string) {
			r := httptest.NewRequest(http.MethodGet, path, http.NoBody).WithContext(t.Context())
			r.RemoteAddr = client
			handler.ServeHTTP(w, r)
		}
		var all sync.WaitGroup
		var readers []*reader
		stick := func() {
			r := newReader()
			readers = append(readers, r)
			all.Go(func() { ask(r, "192.0.2.1:1", "/stuck") })
			synctest.Wait()
		}
		for range maxRequests {
			stick()
		}
		refused := httptest.NewRecorder()
		ask(refused, "192.0.2.1:2", "/metrics")
		if refused.Code != http.StatusServiceUnavailable || refused.Header().Get("Retry-After") == "" ||
			!strings.HasPrefix(refused.Header().Get("Content-Type"), "text/plain") {
			t.Errorf("status %d, %v, want 503", refused.Code, refused.Header())
		}
		for _, test := range []struct{ client, path string }{
			{"192.0.2.1:1", "/healthz"}, {"192.0.2.1:1", "/readyz"}, {"192.0.2.2:1", "/metrics"},
		} {
			w := httptest.NewRecorder()
			if ask(w, test.client, test.path); w.Code != http.StatusOK {
				t.Errorf("%s of %s: status %d", test.path, test.client, w.Code)
			}
		}
		expect.That(t, readers[0].isCut() && !readers[1].isCut(), "the oldest request alone should be cut off")
		stick() // takes the place that is free now
		time.Sleep(settledRequest)
		stick()
		expect.That(t, readers[1].isCut() && !readers[2].isCut(), "the second request alone should be cut off")
		if got := counts.count["requests"]; got[driver.ReasonTooMany] != 1 || got[driver.ReasonTimeout] != 2 {
			t.Errorf("counted %v, want 1 refused and 2 cut off", got)
		}
		if got := ended.Load(); got != 2 {
			t.Errorf("%d requests have ended, want those that were cut off", got)
		}
		for _, r := range readers {
			r.once.Do(func() { close(r.cut) })
		}
	})
}

// pipes are connections with an address.
type pipe struct {
	net.Conn
	closed bool
}

func (*pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }
func (p *pipe) Close() error       { p.closed = true; return nil }

// A new connection makes place for the next one, unless it has sent a request. One that was idle
// for the longest time makes place for one with a request. Those of known clients stay.
func TestConnections(t *testing.T) {
	var counts rejections
	open := newConnections(8, counts.add) // two new ones, one of a known client, five others
	open.served.settled, open.known.settled = 0, time.Hour
	var conns []*pipe
	enter := func(sends, known bool) {
		c := &pipe{}
		ctx := open.context(t.Context(), c)
		open.changed(c, http.StateNew)
		if sends {
			open.changed(c, http.StateActive)
		}
		if known {
			recognize(ctx)
		}
		expect.That(t, isKnown(ctx) == known, "connection %d is known: %v", len(conns), !known)
		conns = append(conns, c)
		time.Sleep(time.Millisecond)
	}
	closed := func(want ...int) {
		for i, c := range conns {
			expect.That(t, c.closed == slices.Contains(want, i), "connection %d is closed: %v", i, c.closed)
		}
	}
	enter(true, true)
	for range 4 {
		enter(false, false)
	}
	closed(1, 2)
	for range 6 {
		enter(true, false)
	}
	closed(1, 2, 3, 5) // new ones, and the oldest with a request
	open.served.settled = time.Hour
	enter(true, false) // all with a request are young: it stays among the new ones
	enter(false, false)
	enter(false, false)
	closed(1, 2, 3, 4, 5, 11)
	open.changed(conns[0], http.StateActive)
	for _, c := range conns {
		open.changed(c, http.StateClosed)
	}
	expect.Is(t, counts.count["connections"][driver.ReasonTooMany], 6, "were counted")
	open.seats.Range(func(conn, _ any) bool { t.Errorf("%v is still known", conn); return true })
	expect.Is(t, len(open.arriving.members)+len(open.served.members)+len(open.known.members), 0, "members are left")
}

// Connections take half of the files that the process may open, and no more than maxConnections.
func TestConnectionLimit(t *testing.T) {
	var was syscall.Rlimit
	must.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	set := func(limit syscall.Rlimit) {
		must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	}
	defer set(was)
	for files, want := range map[uint64]int{200: 100, 512: 256, 1024: 256} {
		must.That(t, files <= was.Max, "the process may open %d files, the test needs %d", was.Max, files)
		set(syscall.Rlimit{Cur: files, Max: was.Max})
		expect.Is(t, connectionLimit(), want, "connections with %d files", files)
	}
}

// All answers forbid browsers to run their content or to guess its type. Configured headers have
// precedence.
func TestSecurityHeaders(t *testing.T) {
	config := ServerConfig{Handler: http.NotFoundHandler(), Log: slog.DiscardHandler}
	served := NewServer(config)
	served.BaseContext(nil)
	server := httptest.NewServer(served.Handler)
	defer server.Close()
	response, err := http.Get(server.URL + "/metrics")
	must.Do(t, err)
	response.Body.Close()
	policy := response.Header.Get("Content-Security-Policy")
	if response.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(policy, "default-src 'none'; ") ||
		!strings.Contains(policy, "script-src 'self'; ") || strings.Contains(policy, "unsafe") {
		t.Errorf("the headers are %v", response.Header)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Security-Policy", "configured")
	secured(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	expect.Is(t, w.Header().Get("Content-Security-Policy"), "configured", "Content-Security-Policy")
}

func TestCheckMetricsPath(t *testing.T) {
	for path, ok := range map[string]bool{
		"/metrics": true, "/dra/metrics": true, "/healthz2": true, "/apis": true, "/": false, "metrics": false,
		"": false, "/healthz": false, "/readyz": false, "/api": false, "/api/v1/snapshot": false, "/api/v2": false,
		"/page": false, "/page/rows": false, "/pages": true,
		"/debug/pprof": false, "/debug/pprof/heap": false, "/metrics/": false, "/a//b": false, "/a/../healthz": false,
		"/{name}": false, "/{name...}": false, "/{$}": false, "/a b": false, "/a?b": false,
	} {
		if err := CheckMetricsPath(path); (err == nil) != ok {
			t.Errorf("%q: error %v", path, err)
		}
	}
}

// checker returns a handler that checks passwords as exporter-toolkit does: one after the other,
// each for a second.
func checker(next http.Handler) http.Handler {
	one := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one <- struct{}{}
		time.Sleep(time.Second)
		<-one
		if _, password, _ := r.BasicAuth(); !strings.HasPrefix(password, "right") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// asked is a request for a page, with a password.
type asked struct{ client, path, password string }

// askAll sends the requests at once and counts the answers by status.
func askAll(to http.Handler, requests ...asked) map[int]int {
	var all sync.WaitGroup
	var mu sync.Mutex
	counts := map[int]int{}
	for _, a := range requests {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, a.path, http.NoBody)
			r.RemoteAddr = a.client + ":1"
			r.SetBasicAuth("user", a.password)
			w := httptest.NewRecorder()
			to.ServeHTTP(w, r)
			mu.Lock()
			defer mu.Unlock()
			counts[w.Code]++
		})
		synctest.Wait() // they come in order
	}
	all.Wait()
	return counts
}

// Few passwords are checked at a time, and fewer of one client. Passwords that have been right are
// not limited, and no check is pending after a right one.
func TestPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts rejections
		pages := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(time.Hour)
			}
		})
		server := NewServer(ServerConfig{Handler: pages, Rejected: counts.add})
		server.Handler = checker(server.Handler)
		for range 2 { // addresses
			server.BaseContext(nil)
		}
		var many, wrong, right, slow []asked
		for i := range maxChecks + 4 {
			many = append(many, asked{fmt.Sprintf("198.51.100.%d", i), "/", fmt.Sprint("wrong", i)})
		}
		for i := range 5 {
			wrong = append(wrong, asked{"192.0.2.1", "/", fmt.Sprint("wrong", i)})
			right = append(right, asked{"192.0.2.1", "/", "right"})
		}
		for i := range maxClientChecks {
			slow = append(slow, asked{"192.0.2.3", "/slow", fmt.Sprint("right", i)})
		}
		for _, step := range []struct {
			name     string
			requests []asked
			want     map[int]int
		}{
			{"a client", append(wrong, asked{"192.0.2.2", "/", "right"}), map[int]int{401: 2, 503: 3, 200: 1}},
			{"known", append(wrong, right...), map[int]int{401: 2, 503: 3, 200: 5}},
			{"many clients", append(many, right[0]), map[int]int{401: maxChecks, 503: 4, 200: 1}},
		} {
			got := askAll(server.Handler, step.requests...)
			for status, n := range step.want {
				expect.That(t, got[status] == n, "%s: answers %v by status, want %v", step.name, got, step.want)
			}
		}
		go askAll(server.Handler, slow...)
		time.Sleep(time.Minute)
		if got := askAll(server.Handler, asked{"192.0.2.3", "/", "right-new"}); got[200] != 1 {
			t.Errorf("while a client reads slowly: answers %v by status", got)
		}
		expect.Is(t, counts.count["requests"][driver.ReasonTooMany], 10, "were counted")
		time.Sleep(2 * time.Hour)
	})
}

// The remembered passwords are bounded.
func TestRightPasswordsAreBounded(t *testing.T) {
	c := checks{right: map[password]bool{}}
	for i := range maxRight + 10 {
		c.remember(password{byte(i), byte(i >> 8)})
	}
	expect.That(t, len(c.right) == maxRight, "%d are remembered, want %d", len(c.right), maxRight)
}
