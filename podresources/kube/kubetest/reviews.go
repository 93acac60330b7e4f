package kubetest

import (
	"encoding/json"
	"net/http"
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

// review answers a TokenReview or a SubjectAccessReview.
func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	may := func(user string) May {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.users[user]
	}
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review) // it is the client's
		if may(review.Spec.Token) != nil {
			review.Status.Authenticated, review.Status.User.Username = true, review.Spec.Token
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
