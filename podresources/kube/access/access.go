// Package access lets those read pages whom the API server allows to, as the kubelet's own endpoints do: a TokenReview tells whose a
// bearer token is, and a SubjectAccessReview whether that user may read the path, which is a non-resource URL of RBAC.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// How long a decision holds; the kubelet's defaults for tokens and for refusals. A token that is revoked works for that long.
const (
	allowedFor = 2 * time.Minute
	refusedFor = 30 * time.Second
)

// The bounds of what strangers can cause.
const (
	reviewTimeout = 3 * time.Second // for both questions together: well below a scrape's timeout
	reviewRate    = 5               // decisions a second about tokens that were never allowed
	reviewBurst   = 20
	maxToken      = 16 << 10 // bytes; a service account's has about 1 KiB
	maxDecisions  = 1024     // kept of each kind

	// rememberedFor is how long somebody who was allowed is not counted among the strangers.
	rememberedFor = time.Hour
)

// errLimited says that the API server was not asked, since strangers ask too much.
var errLimited = reasonError{errors.New("too many unknown tokens"), "rate_limited"}

type reasonError struct {
	error
	reason string
}

func (e reasonError) Unwrap() error { return e.error }

// Reason returns the reason, for a label.
func (e reasonError) Reason() string { return e.reason }

// Config are the parts of a [Gate].
type Config struct {
	API API
	// Open are the paths that everybody may read, such as those of probes.
	Open []string
	// Report takes how each decision that needed the API server went. It is called by several goroutines.
	Report func(took time.Duration, err error)
}

// Gate decides who may read pages. A decision holds for two minutes, a refusal for 30 seconds; while the API server can not be
// asked, everybody else is refused with status 503, in three seconds at most. Tokens that were never allowed cause five
// questions a second at most, and can not crowd out the others.
type Gate struct {
	config   Config
	limiter  *rate.Limiter
	asking   singleflight.Group
	allowed  *cache.LRUExpireCache // when, by key
	refusals *cache.LRUExpireCache // status, by key
}

// NewGate returns a gate that knows nobody yet.
func NewGate(c Config) *Gate {
	return &Gate{
		config: c, limiter: rate.NewLimiter(reviewRate, reviewBurst),
		allowed: cache.NewLRUExpireCache(maxDecisions), refusals: cache.NewLRUExpireCache(maxDecisions),
	}
}

// Handler returns next, behind the gate.
func (g *Gate) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if !slices.Contains(g.config.Open, r.URL.Path) {
			status = g.decide(r.Context(), question{token: bearer(r), verb: strings.ToLower(r.Method), path: r.URL.Path})
		}
		switch status {
		case http.StatusOK:
			next.ServeHTTP(w, r)
			return
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "5")
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// bearer returns the request's token; "" for none, or one that is too long to be one.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return ""
	}
	return token
}

// question is who wants to do what.
type question struct{ token, verb, path string }

// key stands for the question without holding the token.
func (q question) key() [sha256.Size]byte {
	return sha256.Sum256([]byte(q.verb + "\x00" + q.path + "\x00" + q.token))
}

// decide returns the status that answers the question: OK, or why not.
func (g *Gate) decide(ctx context.Context, q question) int {
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
	// The answer is for all who ask the same, whoever of them stays.
	answer := g.asking.DoChan(string(key[:]), func() (any, error) {
		if !known && !g.limiter.Allow() {
			g.config.Report(0, errLimited)
			return http.StatusServiceUnavailable, nil
		}
		return g.ask(context.WithoutCancel(ctx), q, key), nil
	})
	select {
	case got := <-answer:
		return got.Val.(int)
	case <-ctx.Done():
		return http.StatusServiceUnavailable
	}
}

// ask asks the API server and keeps what it decides.
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
