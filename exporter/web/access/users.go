package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Limits of the reviews of known users.
const (
	maxAnswers = 16384 // in the cache
	userRate   = 20    // reviews a second for one user
	userBurst  = 300
	maxHeaders = 8 << 10 // bytes of the headers that name a user
)

// Proxy configures which clients are trusted to name the user in headers, as an authenticating
// proxy does.
type Proxy struct {
	Loopback bool     // clients of the same pod or host
	Names    []string // common names of verified client certificates
	Prefix   string   // put before names of users and groups, like the API server's OIDC prefix
}

// The headers in which a trusted proxy names the user.
const (
	userHeader   = "X-Forwarded-User"
	groupsHeader = "X-Forwarded-Groups"
)

// User is the user who sends a request.
type User struct {
	spec authorizationv1.SubjectAccessReviewSpec
}

// Name returns the name of the user.
func (u *User) Name() string { return u.spec.User }

// Users identifies users and decides what they may see. It caches decisions and limits questions
// like a [Gate]. It is safe for concurrent use.
type Users struct {
	config   Config
	proxy    Proxy
	audience string // of tokens that are valid beside those for the API server; "": none
	limits   *limits
	asking   singleflight.Group
	users    *cache.LRUExpireCache // *User by hash of a token; nil: it is not valid
	known    *cache.LRUExpireCache // hashes of tokens that were valid within the last hour
	rights   *cache.LRUExpireCache // bool by hash of a question
	rates    *cache.LRUExpireCache // *rate.Limiter by hash of a user
}

// NewUsers returns users with empty caches. Config.Open is not used.
func NewUsers(c Config, p Proxy) *Users {
	return &Users{
		config: c, proxy: p, limits: newLimits(),
		users: cache.NewLRUExpireCache(maxDecisions), known: cache.NewLRUExpireCache(maxDecisions),
		rights: cache.NewLRUExpireCache(maxAnswers), rates: cache.NewLRUExpireCache(maxDecisions),
	}
}

// Of returns the user who sends a request, or the status of a refusal: Unauthorized, or
// ServiceUnavailable if the API server does not answer.
func (u *Users) Of(r *http.Request) (*User, int) {
	if token := bearer(r); token != "" {
		return u.ofToken(r.Context(), r.RemoteAddr, token)
	}
	if user := u.proxy.userOf(r); user != nil {
		return user, http.StatusOK
	}
	return nil, http.StatusUnauthorized
}

// trusts reports whether the client of a request may name the user.
func (p Proxy) trusts(r *http.Request) bool {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.PeerCertificates) > 0 {
		return slices.Contains(p.Names, r.TLS.PeerCertificates[0].Subject.CommonName)
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return err == nil && p.Loopback && address.Unmap().IsLoopback()
}

// userOf returns the user that a trusted proxy names, or nil. It ignores users and groups that
// begin with system:, which only the cluster itself may name.
func (p Proxy) userOf(r *http.Request) *User {
	names, groups := r.Header.Values(userHeader), r.Header.Values(groupsHeader)
	if !p.trusts(r) || len(names) != 1 || len(groups) > 1 ||
		len(names[0])+len(strings.Join(groups, "")) > maxHeaders {
		return nil
	}
	reserved := func(name string) bool { return strings.HasPrefix(name, "system:") }
	name := p.Prefix + strings.TrimSpace(names[0])
	if name == p.Prefix || reserved(name) {
		return nil
	}
	of := authorizationv1.SubjectAccessReviewSpec{User: name}
	for group := range strings.SplitSeq(strings.Join(groups, ""), ",") {
		if group = strings.TrimSpace(group); group != "" && !reserved(p.Prefix+group) {
			of.Groups = append(of.Groups, p.Prefix+group)
		}
	}
	of.Groups = append(of.Groups, "system:authenticated")
	return &User{spec: of}
}

// ofToken returns the user of a token.
func (u *Users) ofToken(ctx context.Context, remote, token string) (*User, int) {
	key := sha256.Sum256([]byte(token))
	status := func(user *User) (*User, int) {
		if user == nil {
			return nil, http.StatusUnauthorized
		}
		return user, http.StatusOK
	}
	if cached, ok := u.users.Get(key); ok {
		return status(cached.(*User))
	}
	found, err := u.once(ctx, string(key[:]), func() (any, error) {
		by := senderOf(remote, token)
		if _, known := u.known.Get(key); !known && !u.limits.admit(by) {
			u.config.Limited()
			return nil, errLimited
		}
		var spec *authorizationv1.SubjectAccessReviewSpec
		err := u.ask(ctx, func(ctx context.Context) (err error) {
			spec, err = identify(ctx, u.config.API, token, u.audience)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case spec == nil:
			u.known.Remove(key)
			u.users.Add(key, (*User)(nil), refusedFor)
			return (*User)(nil), nil
		}
		user := &User{spec: *spec}
		u.limits.allowed(by)
		u.known.Add(key, true, rememberedFor)
		u.users.Add(key, user, allowedFor)
		return user, nil
	})
	if err != nil {
		return nil, http.StatusServiceUnavailable
	}
	return status(found.(*User))
}

// once answers a question. Concurrent callers with the same key share the answer.
func (u *Users) once(ctx context.Context, key string, question func() (any, error)) (any, error) {
	select {
	case got := <-u.asking.DoChan(key, question):
		return got.Val, got.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for an answer: %w", ctx.Err())
	}
}

var errLimited = fmt.Errorf("too many questions")

// ask asks the API server. All concurrent callers with the same token share the answer.
func (u *Users) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	begun := time.Now()
	err := question(ctx)
	u.config.Report(time.Since(begun), err)
	return err
}

// MayGet reports whether a user may get a path, by the rules of a [Gate]. An error means that there
// is no decision.
func (u *Users) MayGet(ctx context.Context, user *User, path string) (bool, error) {
	return u.may(ctx, user, "get", path)
}

func (u *Users) may(ctx context.Context, user *User, verb, path string) (bool, error) {
	what := user.spec
	what.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: path, Verb: verb}
	return u.allowed(ctx, user, what)
}

// MayGetClaims reports whether a user may get the claims of a namespace; "" means all namespaces.
func (u *Users) MayGetClaims(ctx context.Context, user *User, namespace string) (bool, error) {
	what := user.spec
	what.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: "get", Group: "resource.k8s.io", Resource: "resourceclaims",
	}
	return u.allowed(ctx, user, what)
}

func (u *Users) allowed(ctx context.Context, user *User, what authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	key := hash(what)
	if cached, ok := u.rights.Get(key); ok {
		return cached.(bool), nil
	}
	answer, err := u.once(ctx, "may"+string(key[:]), func() (any, error) {
		if u.limited(user) {
			return false, errLimited
		}
		var yes bool
		err := u.ask(ctx, func(ctx context.Context) (err error) {
			yes, err = authorize(ctx, u.config.API, what)
			return err
		})
		if err == nil {
			u.rights.Add(key, yes, map[bool]time.Duration{true: allowedFor, false: refusedFor}[yes])
		}
		return yes, err
	})
	yes, _ := answer.(bool)
	return yes && err == nil, err
}

// limited reports whether a user exceeds the limit of questions.
func (u *Users) limited(user *User) bool {
	key := hash(user.spec)
	own, ok := u.rates.Get(key)
	if !ok {
		own = rate.NewLimiter(userRate, userBurst)
		u.rates.Add(key, own, rememberedFor)
	}
	if own.(*rate.Limiter).Allow() {
		return false
	}
	u.config.Limited()
	return true
}

// hash identifies a user and a question.
func hash(spec authorizationv1.SubjectAccessReviewSpec) [sha256.Size]byte {
	data, err := json.Marshal(spec) // maps are sorted
	if err != nil {
		panic(err) // a type that JSON lacks: a bug
	}
	return sha256.Sum256(data)
}
