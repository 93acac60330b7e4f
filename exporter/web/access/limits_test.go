package access

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Headers that name a user are used only from a trusted client, and never for users of the cluster
// itself.
func TestUserOfHeaders(t *testing.T) {
	verified := func(name string) *tls.ConnectionState {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	unverified := verified("proxy")
	unverified.VerifiedChains = nil
	const known = "system:authenticated"
	const pod, far = "127.0.0.1:1", "192.0.2.1:1"
	sidecar, certified := Proxy{Loopback: true}, Proxy{Names: []string{"proxy"}}
	for name, of := range map[string]struct {
		proxy         Proxy
		remote        string
		tls           *tls.ConnectionState
		users, groups []string
		want          string
		wantGroups    []string
	}{
		"none":           {proxy: Proxy{}, remote: pod, users: []string{"alice"}},
		"sidecar":        {sidecar, pod, nil, []string{"alice"}, []string{"a, b"}, "alice", []string{"a", "b", known}},
		"IPv6":           {sidecar, "[::1]:1", nil, []string{"alice"}, nil, "alice", []string{known}},
		"mapped":         {sidecar, "[::ffff:127.0.0.1]:1", nil, []string{"alice"}, nil, "alice", []string{known}},
		"far":            {proxy: sidecar, remote: far, users: []string{"alice"}},
		"no address":     {proxy: sidecar, remote: "@", users: []string{"alice"}},
		"certificate":    {certified, far, verified("proxy"), []string{"alice"}, nil, "alice", []string{known}},
		"another's":      {proxy: certified, remote: far, tls: verified("other"), users: []string{"alice"}},
		"not verified":   {proxy: certified, remote: far, tls: unverified, users: []string{"alice"}},
		"no certificate": {proxy: certified, remote: pod, users: []string{"alice"}},
		"two users":      {proxy: sidecar, remote: pod, users: []string{"alice", "root"}},
		"two groups":     {proxy: sidecar, remote: pod, users: []string{"alice"}, groups: []string{"a", "b"}},
		"nobody":         {proxy: sidecar, remote: pod, users: []string{" "}},
		"system user":    {proxy: sidecar, remote: pod, users: []string{"system:admin"}},
		"system group": {
			sidecar, pod, nil, []string{"alice"}, []string{"system:masters, system:nodes,a"}, "alice", []string{"a", known},
		},
		"prefix": {
			Proxy{Loopback: true, Prefix: "oidc:"},
			pod, nil,
			[]string{"system:admin"},
			[]string{"system:masters"},
			"oidc:system:admin",
			[]string{"oidc:system:masters", known},
		},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr, r.TLS = of.remote, of.tls
		r.Header[userHeader], r.Header[groupsHeader] = of.users, of.groups
		got := of.proxy.userOf(r)
		switch {
		case of.want == "" && got != nil:
			t.Errorf("%s: %+v is believed", name, got.spec)
		case of.want != "" && (got == nil || got.spec.User != of.want || !slices.Equal(got.spec.Groups, of.wantGroups)):
			t.Errorf("%s: %+v, want %s of %q", name, got, of.want, of.wantGroups)
		}
	}
}

// Concurrent requests share one decision. Questions of unknown clients and of users are limited.
func TestUsersAskOnce(t *testing.T) {
	synctest.Test(t, askOnce) // no time passes in the bubble, so that the limits stay used up
}

func askOnce(t *testing.T) {
	t.Helper()
	s := &server{}
	limited := 0
	u := NewUsers(Config{API: s, Report: func(time.Duration, error) {}, Limited: func() { limited++ }}, Proxy{})
	request := func(token string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		return r
	}
	for range 3 {
		user, status := u.Of(request("alice"))
		must.That(t, status == http.StatusOK, "alice: status %d", status)
		for path, want := range map[string]bool{"/metrics": true, "/": false} {
			if may, err := u.MayGet(t.Context(), user, path); err != nil || may != want {
				t.Errorf("%s: %v, %v", path, may, err)
			}
		}
		if may, err := u.MayGetClaims(t.Context(), user, "team"); err != nil || may {
			t.Errorf("claims: %v, %v", may, err)
		}
	}
	expect.That(t, s.asked() == 4, "%d questions, want 4", s.asked())
	last := 0
	for i := range 30 {
		_, last = u.Of(request(fmt.Sprint("bad", i)))
	}
	expect.That(t, last == http.StatusServiceUnavailable && limited != 0 && s.asked() <= 4+knownBurst,
		"strangers: status %d, %d limited, %d questions", last, limited, s.asked())
	alice, _ := u.Of(request("alice"))
	before := s.asked()
	var err error
	for i := range 2 * userBurst {
		if _, err = u.MayGetClaims(t.Context(), alice, string(rune('a'+i))); err != nil {
			break
		}
	}
	expect.That(t, err != nil && s.asked()-before <= userBurst,
		"a user who asks about many namespaces: %v after %d questions", err, s.asked()-before)
}

// flood sends bad tokens for some seconds, at a rate per second, from a number of clients in turn.
func flood(g *gated, clients, seconds, each int, token func(i int) string) map[int]int {
	counts := map[int]int{}
	for i := range seconds * each {
		remote := fmt.Sprintf("198.51.%d.%d:1234", i%clients/256, i%clients%256)
		counts[g.statusFrom(remote, "/metrics", "Bearer "+token(i))]++
		if (i+1)%each == 0 {
			time.Sleep(time.Second)
		}
	}
	return counts
}

func stranger(i int) string { return fmt.Sprint("stranger-", i) }

// Unknown tokens are limited per client and in total. A limited request is not reported as an
// outcome of the API server.
func TestFlood(t *testing.T) {
	for _, test := range []struct{ clients, want int }{
		{1, strangerBurst + 50/5},
		{1000, strangersBurst + 50*strangersRate},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			g := newGated(s)
			counts := flood(g, test.clients, 51, 100, stranger)
			expect.That(t, counts[401] == test.want && counts[503] == 51*100-test.want && s.asked() == test.want,
				"%d clients got %v, want %d times 401 and else 503", test.clients, counts, test.want)
			expect.That(t, len(g.outcomes) == test.want && g.limited == counts[503],
				"%d outcomes, %d limited", len(g.outcomes), g.limited)
		})
	}
}

// A token that was allowed before, and the token that replaces it, are not delayed by others: many
// clients, clients with the same address, or clients elsewhere that claim the same subject.
func TestRenewalInAFlood(t *testing.T) {
	for name, flooding := range map[string]func(g *gated){
		"many clients": func(g *gated) { flood(g, 500, 1, 500, stranger) },
		"same address": func(g *gated) {
			for i := range 500 {
				g.status("/metrics", "Bearer "+stranger(i))
			}
		},
		"forged subject": func(g *gated) {
			flood(g, 500, 1, 500, func(i int) string { return jwt("alice", fmt.Sprint("bad", i)) })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGated(&server{})
			first := "Bearer " + jwt("alice", "good")
			if status := g.status("/metrics", first); status != 200 {
				t.Fatalf("%s: status %d before", name, status)
			}
			for renewal := range 10 {
				time.Sleep(allowedFor)
				flooding(g)
				for _, token := range []string{first, fmt.Sprint("Bearer ", jwt("alice", "good"), renewal)} {
					expect.Is(t, g.status("/metrics", token), 200, "%s: renewal %d: status", name, renewal)
				}
			}
		})
	}
}

// A good token of a new client is allowed while few other clients send bad ones. A sender that was
// allowed has a limit, too.
func TestNewClientInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(&server{})
		flood(g, 20, 60, 90, stranger)
		expect.Is(t, g.status("/metrics", "Bearer "+jwt("alice", "good")), 200, "status")
		counts := map[int]int{}
		for i := range 100 {
			counts[g.status("/metrics", "Bearer "+jwt("alice", fmt.Sprint("bad", i)))]++
		}
		expect.That(t, counts[401] == knownBurst, "the sender got %v, want %d times 401", counts, knownBurst)
	})
}
