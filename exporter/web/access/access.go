// Package access restricts pages to users whom the API server allows to read them, like the
// kubelet's own endpoints. A TokenReview identifies the user of a bearer token. A
// SubjectAccessReview decides whether that user may get the path, as a non-resource URL of RBAC.
//
// Bounds (max…) are for what clients of the HTTP port and the API server send.
package access

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
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

// Config configures [Guard] and [NewUsers].
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

// Users identifies users and decides what they may see. It caches decisions and limits questions
// like [Guard]. It is safe for concurrent use.
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

// Guard returns a handler for those who may read its pages. A permission is cached for two minutes,
// a refusal for 30 seconds. While the API server does not answer, requests without a cached
// decision are refused with status 503 within six seconds. Tokens that were never valid cause at
// most five reviews a second. They delay neither tokens that were valid before nor the successors
// of those tokens. While fewer than 25 clients send bad tokens, they do not delay the token of a
// new client either.
func Guard(c Config, next http.Handler) http.Handler {
	users := NewUsers(c, Proxy{})
	users.audience = Audience
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if !slices.Contains(c.Open, r.URL.Path) {
			status = users.decide(r)
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
func (u *Users) decide(r *http.Request) int {
	user, status := u.Of(r)
	if status != http.StatusOK {
		return status
	}
	switch may, err := u.may(r.Context(), user, strings.ToLower(r.Method), r.URL.Path); {
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

// MayGet reports whether a user may get a path, by the rules of [Guard]. An error means that there
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

// API is the part of an API server's client that this package needs. With this interface, the
// package needs no client library.
type API interface {
	// Post sends a JSON object to path, and returns the body of the answer. An error may have a
	// driver.Reason.
	Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error)
}

// The paths of reviews.
const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// maxReview is the largest size of an answer, in bytes: a user can be in many groups.
const maxReview = 1 << 20

// Audience is the audience of tokens that are only for exporters. An exporter accepts them beside
// tokens for the API server. Nobody else accepts them.
const Audience = "dra-exporter"

// identify returns the user of a token, in the form that a review needs, or nil if the token is not
// valid. A token that claims the audience must be valid for it, any other for the API server. An
// empty audience is that of the API server.
func identify(
	ctx context.Context, api API, token, audience string,
) (*authorizationv1.SubjectAccessReviewSpec, error) {
	who := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	own := audience != "" && slices.Contains(claimsOf(token).Audience, audience)
	if own {
		who.Spec.Audiences = []string{audience}
	}
	if err := create(ctx, api, tokenReviews, &who, &who.Status); err != nil || !who.Status.Authenticated {
		return nil, err
	}
	// An API server that knows no audiences answers for its own.
	if own && !slices.Contains(who.Status.Audiences, audience) {
		return nil, nil //nolint:nilnil // the token is not valid
	}
	user := &who.Status.User
	return &authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra(user.Extra),
	}, nil
}

// authorize reports whether a user may do what a review asks.
func authorize(ctx context.Context, api API, what authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	may := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec:     what,
	}
	err := create(ctx, api, accessReviews, &may, &may.Status)
	return may.Status.Allowed && !may.Status.Denied, err
}

func extra(from map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	to := make(map[string]authorizationv1.ExtraValue, len(from))
	for name, values := range from {
		to[name] = authorizationv1.ExtraValue(values)
	}
	return to
}

// create posts a review and decodes the status of the answer into what status points to. The rest
// of the answer is not used: the specification is shared by all requests of a user.
func create(ctx context.Context, api API, path string, object, status any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode review: %w", err)
	}
	answer, err := api.Post(ctx, path, data)
	if err != nil {
		return withReason(err)
	}
	defer answer.Close()
	data, err = io.ReadAll(io.LimitReader(answer, maxReview+1))
	switch {
	case err != nil:
		return withReason(fmt.Errorf("read answer of %s: %w", path, err))
	case len(data) > maxReview:
		return driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("answer of %s is too large", path))
	}
	answered := struct {
		Status any `json:"status"`
	}{status}
	if err := json.Unmarshal(data, &answered); err != nil {
		return driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode answer of %s: %w", path, err))
	}
	return nil
}

// withReason adds a reason to an error of a request if the client has not added one.
func withReason(err error) error {
	if driver.ReasonOf(err) == driver.ReasonOther {
		return driver.WithReason(driver.ReasonUnavailable, err)
	}
	return err
}

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
