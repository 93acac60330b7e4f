package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// API is what is asked of the API server.
type API interface {
	// Post opens the answer to a POST of a JSON object to path.
	Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error)
}

var _ API = (*kube.Client)(nil)

// The paths of reviews, which are created and not kept.
const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// maxReview bounds an answer, in bytes: a user may be in many groups.
const maxReview = 1 << 20

// review returns the status that the API server's answer means: OK, Unauthorized or Forbidden. An error says that it did not answer.
func review(ctx context.Context, api API, q question) (int, error) {
	who := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: q.token},
	}
	if err := create(ctx, api, tokenReviews, &who); err != nil {
		return 0, err
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	may := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.Status.User.Username, UID: who.Status.User.UID, Groups: who.Status.User.Groups, Extra: extra(who.Status.User.Extra),
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: q.path, Verb: q.verb},
		},
	}
	if err := create(ctx, api, accessReviews, &may); err != nil {
		return 0, err
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

func extra(from map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	to := make(map[string]authorizationv1.ExtraValue, len(from))
	for name, values := range from {
		to[name] = authorizationv1.ExtraValue(values)
	}
	return to
}

// create posts a review and fills it in with the answer.
func create(ctx context.Context, api API, path string, object any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode review: %w", err)
	}
	answer, err := api.Post(ctx, path, data)
	if err != nil {
		return reasonError{err, kube.Reason(err)}
	}
	defer answer.Close()
	data, err = io.ReadAll(io.LimitReader(answer, maxReview+1))
	switch {
	case err != nil:
		return reasonError{fmt.Errorf("read answer of %s: %w", path, err), kube.Reason(err)}
	case len(data) > maxReview:
		return reasonError{fmt.Errorf("answer of %s: %w", path, errors.New("is too large")), "too_large"}
	}
	if err := json.Unmarshal(data, object); err != nil {
		return reasonError{fmt.Errorf("decode answer of %s: %w", path, err), "malformed"}
	}
	return nil
}
