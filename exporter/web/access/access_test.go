package access

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// server is an API server that knows the tokens of two users. alice, of the group scrapers, may get
// /metrics; bob has no rights.
type server struct {
	mu      sync.Mutex
	reviews []string      // the paths that were posted to
	fail    int           // a status to fail with
	failing string        // the only path that fails; "": all
	answer  string        // in place of the right one
	delay   time.Duration // of every answer
	revoked bool          // alice is known no more
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.reviews = append(s.reviews, r.URL.Path)
	fail, answer, delay, revoked := s.fail, s.answer, s.delay, s.revoked
	if s.failing != "" && s.failing != r.URL.Path {
		fail = 0
	}
	s.mu.Unlock()
	// Timers of zero duration in several goroutines of a bubble crash the race detector (golang/go
	// issue 78156).
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case fail != 0:
		w.WriteHeader(fail)
		_, _ = fmt.Fprintf(
			w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d, "reason": "Forbidden"}`, fail,
		)
	case answer != "":
		_, _ = io.WriteString(w, answer)
	case r.URL.Path == tokenReviews:
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		if user := userOf(review.Spec.Token); (user == "alice" && !revoked) || user == "bob" {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{
				Username: user, UID: "uid-" + user, Groups: map[string][]string{"alice": {"scrapers"}}[user],
				Extra: map[string]authenticationv1.ExtraValue{"node": {"node1"}},
			}
		}
		_ = json.NewEncoder(w).Encode(review)
	case r.URL.Path == accessReviews:
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		want := authorizationv1.SubjectAccessReviewSpec{
			User: "alice", UID: "uid-alice", Groups: []string{"scrapers"}, Extra: map[string]authorizationv1.ExtraValue{
				"node": {"node1"},
			},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}
		review.Status.Allowed = cmp.Equal(want, review.Spec)
		_ = json.NewEncoder(w).Encode(review)
	default:
		http.NotFound(w, r)
	}
}

// jwt returns a token whose claims have a subject. Only a token with a valid signature is genuine.
func jwt(subject, signature string) string {
	claims := fmt.Sprintf(`{"iss":"https://kubernetes.default.svc","sub":%q}`, subject)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + signature
}

// userOf returns the user of a genuine token. For other tokens it returns the token.
func userOf(token string) string {
	for _, user := range []string{"alice", "bob"} {
		if strings.HasPrefix(token, jwt(user, "good")) {
			return user
		}
	}
	return token
}

// asked returns the number of reviews so far.
func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reviews)
}

func (s *server) set(change func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// Post implements API without a network, so that it works in a bubble of testing/synctest.
func (s *server) Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(string(object))))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.Code != http.StatusOK {
		return nil, errors.New(w.Body.String())
	}
	return io.NopCloser(w.Body), nil
}

// gated is a page behind a gate.
type gated struct {
	http.Handler
	mu       sync.Mutex
	outcomes []string // of the decisions that needed the API server, by reason
	limited  int
}

func newGated(api API) *gated {
	g := &gated{}
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page") })
	g.Handler = Guard(Config{API: api, Open: []string{"/healthz"}, Report: func(_ time.Duration, err error) {
		why := "up"
		if err != nil {
			why = string(driver.ReasonOf(err))
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.outcomes = append(g.outcomes, why)
	}, Limited: func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.limited++
	}}, page)
	return g
}

// gateClient is the client's address in tests for which the address does not matter.
const gateClient = "192.0.2.1:1234"

// get sends a request for a page with a value of the header Authorization.
func (g *gated) get(path, authorization string) *http.Response {
	return g.getFrom(gateClient, path, authorization)
}

func (g *gated) getFrom(remote, path, authorization string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.RemoteAddr = remote
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Result()
}

func (g *gated) status(path, authorization string) int {
	return g.statusFrom(gateClient, path, authorization)
}

func (g *gated) statusFrom(remote, path, authorization string) int {
	response := g.getFrom(remote, path, authorization)
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if page := string(body) == "page"; page != (response.StatusCode == http.StatusOK) {
		return -1
	}
	return response.StatusCode
}

func TestDecisions(t *testing.T) {
	for _, test := range []struct {
		name, path, authorization string
		want, asked               int
	}{
		{"allowed", "/metrics", "Bearer alice", 200, 2},
		{"scheme in other case", "/metrics", "bearer alice", 200, 2},
		{"not allowed there", "/api/v1/snapshot", "Bearer alice", 403, 2},
		{"not allowed", "/metrics", "Bearer bob", 403, 2},
		{"unknown token", "/metrics", "Bearer mallory", 401, 1},
		{"no token", "/metrics", "", 401, 0},
		{"empty token", "/metrics", "Bearer ", 401, 0},
		{"password", "/metrics", "Basic YWxpY2U6YWxpY2U=", 401, 0},
		{"huge token", "/metrics", "Bearer " + strings.Repeat("a", maxToken+1), 401, 0},
		{"probe", "/healthz", "", 200, 0},
		{"not quite a probe", "/healthz/", "", 401, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &server{}
			g := newGated(s)
			response := g.get(test.path, test.authorization)
			response.Body.Close()
			expect.That(t, response.StatusCode == test.want && s.asked() == test.asked,
				"status %d after %d reviews, want %d after %d", response.StatusCode, s.asked(), test.want, test.asked)
			if challenge := response.Header.Get("WWW-Authenticate"); (challenge == "Bearer") != (test.want == 401) {
				t.Errorf("WWW-Authenticate: %q", challenge)
			}
		})
	}
}

// Decisions are cached: permissions for longer than refusals.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		g := newGated(s)
		check := func(authorization string, status, asked int) {
			t.Helper()
			if got := g.status("/metrics", authorization); got != status || s.asked() != asked {
				t.Errorf("status %d after %d reviews, want %d after %d", got, s.asked(), status, asked)
			}
		}
		check("Bearer alice", 200, 2)
		check("Bearer alice", 200, 2)
		check("Bearer mallory", 401, 3)
		check("Bearer mallory", 401, 3)
		time.Sleep(refusedFor + time.Second)
		check("Bearer mallory", 401, 4)
		check("Bearer alice", 200, 4)
		time.Sleep(allowedFor)
		check("Bearer alice", 200, 6)
		s.set(func(s *server) { s.revoked = true })
		check("Bearer alice", 200, 6)
		time.Sleep(allowedFor + time.Second)
		check("Bearer alice", 401, 7)
		check("Bearer alice", 401, 7)
	})
}

// A decision is for one page and one method only.
func TestDecisionsAreOfOnePage(t *testing.T) {
	s := &server{}
	g := newGated(s)
	for _, path := range []string{"/metrics", "/api/v1/snapshot"} {
		want := map[string]int{"/metrics": 200, "/api/v1/snapshot": 403}[path]
		expect.Is(t, g.status(path, "Bearer alice"), want, "%s: status", path)
	}
	r := httptest.NewRequest(http.MethodPost, "/metrics", http.NoBody)
	r.Header.Set("Authorization", "Bearer alice")
	w := httptest.NewRecorder()
	if g.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("POST: status %d, want %d", w.Code, http.StatusForbidden)
	}
}

// Concurrent requests with the same question cause one decision.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: time.Second}
		g := newGated(s)
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				expect.Is(t, g.status("/metrics", "Bearer alice"), 200, "status")
			})
		}
		asking.Wait()
		expect.That(t, s.asked() == 2, "%d reviews, want 2", s.asked())
	})
}

// If the API server fails or hangs, unknown tokens are refused at once; it is asked again the next
// time.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			fault  func(*server)
			reason string
		}{
			"fails": {func(s *server) { s.fail = 500 }, "unavailable"},
			"fails to say what a user may": {
				func(s *server) { s.fail, s.failing = 500, accessReviews }, "unavailable",
			},
			"hangs":     {func(s *server) { s.delay = time.Hour }, "timeout"},
			"malformed": {func(s *server) { s.answer = `{"status":` }, "malformed"},
			"too large": {
				func(s *server) { s.answer = `{"status":{"authenticated":true}}` + strings.Repeat(" ", maxReview) }, "too_large",
			},
		} {
			s := &server{}
			g := newGated(s)
			g.status("/metrics", "Bearer alice")
			s.set(test.fault)
			begun := time.Now()
			expect.Is(t, g.status("/metrics", "Bearer bob"), 503, "%s: status", name)
			took := time.Since(begun)
			expect.That(t, took <= reviewTimeout, "%s: it took %v", name, took)
			if status := g.status("/metrics", "Bearer alice"); status != 200 {
				t.Errorf("%s: status %d for who was allowed a moment ago", name, status)
			}
			time.Sleep(allowedFor + time.Second)
			if status := g.status("/metrics", "Bearer alice"); status != 503 {
				t.Errorf("%s: status %d for who was allowed long ago, want 503", name, status)
			}
			s.set(func(s *server) { s.fail, s.delay, s.answer = 0, 0, "" })
			if status := g.status("/metrics", "Bearer alice"); status != 200 {
				t.Errorf("%s: status %d when all is well again", name, status)
			}
			want := []string{"up", "up", test.reason, test.reason, "up", "up"}
			if s.failing != "" { // the reviews of tokens succeed
				want = []string{"up", "up", "up", test.reason, "up", test.reason, "up"}
			}
			expect.Equal(t, name, want, g.outcomes)
		}
	})
}

// A client that cancels does not wait, and the decision is still valid for the next one.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: time.Second}
		g := newGated(s)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", "Bearer alice")
		begun := time.Now()
		g.ServeHTTP(httptest.NewRecorder(), r)
		took := time.Since(begun)
		expect.That(t, took <= 20*time.Millisecond, "it took %v", took)
		status := g.status("/metrics", "Bearer alice")
		expect.That(t, status == 200 && s.asked() == 2, "status %d after %d reviews, want 200 after 2", status, s.asked())
	})
}

// With the program's client over a network, reviews arrive, and an exporter without the right to
// create them reports the reason.
func TestClient(t *testing.T) {
	s := &server{}
	api := httptest.NewServer(s)
	defer api.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: c}}],
clusters: [{name: c, cluster: {server: %q}}], users: [{name: c, user: {token: t}}]}`, api.URL)
	must.Do(t, os.WriteFile(path, []byte(config), 0o600))
	client := must.Get(kube.NewClient(path, "test"))(t)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	g := newGated(client)
	expect.Is(t, g.status("/metrics", "Bearer alice"), 200, "status")
	expect.Equal(t, "", []string{tokenReviews, accessReviews}, s.reviews)
	s.set(func(s *server) { s.fail = http.StatusForbidden })
	expect.Is(t, g.status("/metrics", "Bearer bob"), 503, "status")
	expect.Equal(t, "", []string{"up", "up", "forbidden"}, g.outcomes)
}

// cluster is the audience of tokens for the API server.
const cluster = "https://kubernetes.default.svc"

// issuer is an API server that knows every token, and allows everything. old: it knows no
// audiences.
type issuer struct{ old bool }

// Post implements [API].
func (i issuer) Post(_ context.Context, path string, object []byte) (io.ReadCloser, error) {
	answer := []byte(`{"status":{"allowed":true}}`)
	if path == tokenReviews {
		var review authenticationv1.TokenReview
		if err := json.Unmarshal(object, &review); err != nil {
			return nil, err
		}
		review.Status.User.Username = "gateway"
		asked := review.Spec.Audiences
		if len(asked) == 0 {
			asked = []string{cluster}
		}
		for _, audience := range claimsOf(review.Spec.Token).Audience {
			if slices.Contains(asked, audience) {
				review.Status.Authenticated, review.Status.Audiences = true, []string{audience}
			}
		}
		if i.old {
			review.Status.Authenticated, review.Status.Audiences = true, nil
		}
		answer, _ = json.Marshal(review)
	}
	return io.NopCloser(bytes.NewReader(answer)), nil
}

// A token for exporters is accepted by exporters, and by nobody else. Exporters also accept tokens
// for the API server.
func TestAudience(t *testing.T) {
	for audience, want := range map[string]struct{ exporter, gateway, old int }{
		`"dra-exporter"`:                     {http.StatusOK, http.StatusUnauthorized, http.StatusUnauthorized},
		`["dra-exporter"]`:                   {http.StatusOK, http.StatusUnauthorized, http.StatusUnauthorized},
		`["other","` + cluster + `"]`:        {http.StatusOK, http.StatusOK, http.StatusOK},
		`["dra-exporter","` + cluster + `"]`: {http.StatusOK, http.StatusOK, http.StatusUnauthorized},
		`"other"`:                            {http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK},
	} {
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"gateway","aud":`+audience+`}`)) + ".x"
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		config := Config{API: issuer{}, Report: func(time.Duration, error) {}, Limited: func() {}}
		_, gateway := NewUsers(config, Proxy{}).Of(r)
		exporter := func(c Config) int {
			w := httptest.NewRecorder()
			Guard(c, http.NotFoundHandler()).ServeHTTP(w, r)
			if w.Code == http.StatusNotFound { // it has passed the gate
				return http.StatusOK
			}
			return w.Code
		}
		status := exporter(config)
		config.API = issuer{old: true}
		if old := exporter(config); status != want.exporter || gateway != want.gateway || old != want.old {
			t.Errorf("audience %s: status %d of an exporter, %d of the gateway, %d with an old API server; want %+v",
				audience, status, gateway, old, want)
		}
	}
}
