package access

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

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
