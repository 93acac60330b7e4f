package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// May reports what a user may do.
type May func(authorizationv1.SubjectAccessReviewSpec) bool

// Allow sets what a user may do; nil: there is no such user. The user's token is the user's name.
// May also applies to users that headers name.
func (s *Server) Allow(user string, may May) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == nil {
		s.users = map[string]May{}
	}
	if s.users[user] = may; may == nil {
		delete(s.users, user)
	}
}

// apiAudience is the audience of tokens for the API server.
const apiAudience = "https://kubernetes.default.svc"

// Token returns a token of a user for an audience, as the API server makes them for pods.
func Token(user, audience string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte("{}")) + "." + part(fmt.Appendf(nil, `{"sub":%q,"aud":[%q]}`, user, audience)) + "."
}

// parseToken returns the user and the audience of a token. One that [Token] has not made is the
// name of a user.
func parseToken(token string) (user, audience string) {
	var claims struct {
		Subject  string   `json:"sub"`
		Audience []string `json:"aud"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return token, apiAudience
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || len(claims.Audience) != 1 {
		return token, apiAudience
	}
	return claims.Subject, claims.Audience[0]
}

// review answers a TokenReview or a SubjectAccessReview. The client itself may do everything, and
// Events are taken, but not kept.
func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	switch {
	case strings.Contains(r.URL.Path, "/events"):
		_, _ = io.Copy(w, r.Body)
		return
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		_, _ = io.WriteString(w, `{"status": {"allowed": true}}`)
		return
	}
	may := func(user string) May {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.users[user]
	}
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review) // it is the client's
		user, audience := parseToken(review.Spec.Token)
		asked := review.Spec.Audiences
		if len(asked) == 0 {
			asked = []string{apiAudience}
		}
		if may(user) != nil && slices.Contains(asked, audience) {
			review.Status.Authenticated, review.Status.User.Username = true, user
			review.Status.Audiences = []string{audience}
		}
		writeJSON(w, review)
		return
	}
	var review authorizationv1.SubjectAccessReview
	_ = json.NewDecoder(r.Body).Decode(&review)
	if allowed := may(review.Spec.User); allowed != nil {
		review.Status.Allowed = allowed(review.Spec)
	}
	writeJSON(w, review)
}
