package access

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

// Limits of the reviews of tokens at the API server.
const (
	knownRate  = 2 // reviews a second, of a sender that was allowed before
	knownBurst = 10

	retryAfter    = 5 * time.Second // between two reviews for another client, after its burst
	strangerBurst = 5

	strangersRate  = 5 // reviews a second, of all other clients together
	strangersBurst = 20

	maxClients = 4096 // in memory, each with its limit
)

// sender is a client and the subject that its token claims. The claim is not verified: it only
// separates senders that use the same client.
type sender struct {
	client  client.ID
	subject [sha256.Size]byte
}

// senderOf returns the sender of a token. The subject is that of a JSON web token, such as the
// token of a service account. All other tokens of a client have the same, empty subject.
func senderOf(remote, token string) sender {
	s := sender{client: client.Of(remote)}
	if claims := claimsOf(token); claims.Subject != "" {
		s.subject = sha256.Sum256([]byte(claims.Issuer + "\x00" + claims.Subject))
	}
	return s
}

// claims are what a token says of itself, which is not verified.
type claims struct {
	Issuer   string    `json:"iss"`
	Subject  string    `json:"sub"`
	Audience audiences `json:"aud"`
}

// audiences are one or several (RFC 7519, section 4.1.3).
type audiences []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *audiences) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// claimsOf returns the claims of a JSON web token, such as that of a service account. All other
// tokens have none.
func claimsOf(token string) (out claims) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &out) != nil {
		return claims{}
	}
	return out
}

// limits decide who may cause a review by the API server. A sender that was allowed within the last
// hour has a limit of its own, so that others do not delay the renewal of its token. Every other
// client has a limit, and all of them together have one. limits is safe for concurrent use.
type limits struct {
	mu        sync.Mutex
	known     *cache.LRUExpireCache // *rate.Limiter by sender
	strangers *cache.LRUExpireCache // *rate.Limiter by client
	together  *rate.Limiter
}

func newLimits() *limits {
	return &limits{
		known: cache.NewLRUExpireCache(maxClients), strangers: cache.NewLRUExpireCache(maxClients),
		together: rate.NewLimiter(strangersRate, strangersBurst),
	}
}

// admit reports whether a sender may cause a review now.
func (l *limits) admit(s sender) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own, ok := l.known.Get(s); ok {
		return own.(*rate.Limiter).Allow()
	}
	own, ok := l.strangers.Get(s.client)
	if !ok {
		own = rate.NewLimiter(rate.Every(retryAfter), strangerBurst)
	}
	l.strangers.Add(s.client, own, rememberedFor)
	return own.(*rate.Limiter).Allow() && l.together.Allow()
}

// allowed records that the token of a sender was allowed.
func (l *limits) allowed(s sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, ok := l.known.Get(s)
	if !ok {
		own = rate.NewLimiter(knownRate, knownBurst)
	}
	l.known.Add(s, own, rememberedFor)
}
