// Package access restricts pages to users whom the API server allows to read them, like the
// kubelet's own endpoints. A TokenReview identifies the user of a bearer token. A
// SubjectAccessReview decides whether that user may get the path, as a non-resource URL of RBAC.
//
// Bounds (max…) are for what clients of the HTTP port and the API server send.
package access

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How long a decision is cached: the kubelet's defaults. A revoked token is accepted for that time.
const (
	allowedFor = 2 * time.Minute
	refusedFor = 30 * time.Second
)

// Limits for clients without an allowed token.
const (
	reviewTimeout = 3 * time.Second // of each of two reviews: below a scrape's timeout
	maxToken      = 16 << 10        // bytes; a service account's has about 1 KiB
	maxDecisions  = 1024            // in the cache, of each kind

	// rememberedFor is how long a valid token stays exempt from the limits of unknown tokens, and
	// how long its sender keeps a limit of its own.
	rememberedFor = time.Hour
)

// Config configures a [Gate] and [Users].
type Config struct {
	API API
	// Open are the paths that need no token, such as those of probes.
	Open []string
	// Report is called with the outcome of each review by the API server. Calls are concurrent.
	Report func(took time.Duration, err error)
	// Limited is called for each review that was refused because its sender, or all unknown senders
	// together, exceeded a limit. Report is not called for it.
	Limited func()
}

// Gate decides who may read pages. A permission is cached for two minutes, a refusal for 30
// seconds. While the API server does not answer, requests without a cached decision are refused
// with status 503 within six seconds. Tokens that were never valid cause at most five reviews a
// second. They delay neither tokens that were valid before nor the successors of those tokens.
// While fewer than 25 clients send bad tokens, they do not delay the token of a new client either.
type Gate struct {
	open  []string
	users *Users
}

// NewGate returns a gate with an empty cache.
func NewGate(c Config) *Gate {
	users := NewUsers(c, Proxy{})
	users.audience = Audience
	return &Gate{c.Open, users}
}

// Handler returns next behind the gate.
func (g *Gate) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if !slices.Contains(g.open, r.URL.Path) {
			status = g.decide(r)
		}
		switch status {
		case http.StatusOK:
			next.ServeHTTP(w, r)
			return
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// decide returns the status of the decision: OK, or the status of the refusal.
func (g *Gate) decide(r *http.Request) int {
	user, status := g.users.Of(r)
	if status != http.StatusOK {
		return status
	}
	switch may, err := g.users.may(r.Context(), user, strings.ToLower(r.Method), r.URL.Path); {
	case err != nil:
		return http.StatusServiceUnavailable
	case !may:
		return http.StatusForbidden
	}
	return http.StatusOK
}

// bearer returns the request's token, "" if there is none or it is too long.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return ""
	}
	return token
}
