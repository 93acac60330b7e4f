// Package access restricts pages to users whom the API server allows to read them, like the
// kubelet's own endpoints. A TokenReview identifies the user of a bearer token. A
// SubjectAccessReview decides whether that user may get the path, as a non-resource URL of RBAC.
//
// Bounds (max…) are for what clients of the HTTP port and the API server send.
package access

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
)

// How long a decision is cached: the kubelet's defaults. A revoked token is accepted for that time.
const (
	allowedFor = 2 * time.Minute
	refusedFor = 30 * time.Second
)

// Limits for clients without an allowed token.
const (
	reviewTimeout = 3 * time.Second // for both reviews together: well below a scrape's timeout
	maxToken      = 16 << 10        // bytes; a service account's has about 1 KiB
	maxDecisions  = 1024            // in the cache, of each kind

	// rememberedFor is how long an allowed token stays exempt from the limits of unknown tokens, and
	// how long its sender keeps a limit of its own.
	rememberedFor = time.Hour
)

// Config configures a [Gate].
type Config struct {
	API API
	// Open are the paths that need no token, such as those of probes.
	Open []string
	// Report is called with the outcome of each decision that needed the API server. Calls are
	// concurrent.
	Report func(took time.Duration, err error)
	// Limited is called for each request that was refused because its sender, or all unknown senders
	// together, exceeded a limit. Report is not called for it.
	Limited func()
}

// Gate decides who may read pages. A permission is cached for two minutes, a refusal for 30
// seconds. While the API server does not answer, requests without a cached decision are refused
// with status 503 within three seconds. Tokens that were never allowed cause at most five reviews a
// second. They delay neither tokens that were allowed before nor the successors of those tokens.
// While fewer than 25 clients send bad tokens, they do not delay the token of a new client either.
type Gate struct {
	config   Config
	limits   *limits
	asking   singleflight.Group
	allowed  *cache.LRUExpireCache // time by key
	refusals *cache.LRUExpireCache // status by key
}

// NewGate returns a gate with an empty cache.
func NewGate(c Config) *Gate {
	return &Gate{
		config: c, limits: newLimits(),
		allowed: cache.NewLRUExpireCache(maxDecisions), refusals: cache.NewLRUExpireCache(maxDecisions),
	}
}

// Handler returns next behind the gate.
func (g *Gate) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if !slices.Contains(g.config.Open, r.URL.Path) {
			status = g.decide(r.Context(), r.RemoteAddr, question{
				token: bearer(r), verb: strings.ToLower(r.Method), path: r.URL.Path,
			})
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

// bearer returns the request's token, "" if there is none or it is too long.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return ""
	}
	return token
}

// question is a user and a request to decide about.
type question struct{ token, verb, path string }

// key identifies the question. It does not contain the token.
func (q question) key() [sha256.Size]byte {
	return sha256.Sum256([]byte(q.verb + "\x00" + q.path + "\x00" + q.token))
}

// decide returns the status of the decision: OK, or the status of the refusal.
func (g *Gate) decide(ctx context.Context, remote string, q question) int {
	if q.token == "" {
		return http.StatusUnauthorized
	}
	key := q.key()
	since, known := g.allowed.Get(key)
	if known && time.Since(since.(time.Time)) < allowedFor {
		return http.StatusOK
	}
	if status, ok := g.refusals.Get(key); ok {
		return status.(int)
	}
	// All concurrent requests with the same question share the answer, even if the first one is
	// canceled.
	answer := g.asking.DoChan(string(key[:]), func() (any, error) {
		by := senderOf(remote, q.token)
		if !known && !g.limits.admit(by) {
			g.config.Limited()
			return http.StatusServiceUnavailable, nil
		}
		status := g.ask(context.WithoutCancel(ctx), q, key)
		if status == http.StatusOK {
			g.limits.allowed(by)
		}
		return status, nil
	})
	select {
	case got := <-answer:
		return got.Val.(int)
	case <-ctx.Done():
		return http.StatusServiceUnavailable
	}
}

// ask asks the API server and caches the decision.
func (g *Gate) ask(ctx context.Context, q question, key [sha256.Size]byte) int {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	begun := time.Now()
	status, err := review(ctx, g.config.API, q)
	g.config.Report(time.Since(begun), err)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable
	case status == http.StatusOK:
		g.allowed.Add(key, time.Now(), rememberedFor)
	default:
		g.allowed.Remove(key)
		g.refusals.Add(key, status, refusedFor)
	}
	return status
}
