package access

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// cluster is the audience of tokens for the API server.
const cluster = "https://kubernetes.default.svc"

// issuer is an API server that knows every token, and allows everything. old: it knows no
// audiences.
type issuer struct{ old bool }

// Post implements [API].
func (i issuer) Post(_ context.Context, path string, object []byte) (io.ReadCloser, error) {
	answer := []byte(`{"status":{"allowed":true}}`)
	if path == tokenReviews {
		var review authenticationv1.TokenReview
		if err := json.Unmarshal(object, &review); err != nil {
			return nil, err
		}
		review.Status.User.Username = "gateway"
		asked := review.Spec.Audiences
		if len(asked) == 0 {
			asked = []string{cluster}
		}
		for _, audience := range claimsOf(review.Spec.Token).Audience {
			if slices.Contains(asked, audience) {
				review.Status.Authenticated, review.Status.Audiences = true, []string{audience}
			}
		}
		if i.old {
			review.Status.Authenticated, review.Status.Audiences = true, nil
		}
		answer, _ = json.Marshal(review)
	}
	return io.NopCloser(bytes.NewReader(answer)), nil
}

// A token for exporters is accepted by exporters, and by nobody else. Exporters also accept tokens
// for the API server.
func TestAudience(t *testing.T) {
	for audience, want := range map[string]struct{ exporter, gateway, old int }{
		`"dra-exporter"`:                     {http.StatusOK, http.StatusUnauthorized, http.StatusUnauthorized},
		`["dra-exporter"]`:                   {http.StatusOK, http.StatusUnauthorized, http.StatusUnauthorized},
		`["other","` + cluster + `"]`:        {http.StatusOK, http.StatusOK, http.StatusOK},
		`["dra-exporter","` + cluster + `"]`: {http.StatusOK, http.StatusOK, http.StatusUnauthorized},
		`"other"`:                            {http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK},
	} {
		token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"gateway","aud":`+audience+`}`)) + ".x"
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		config := Config{API: issuer{}, Report: func(time.Duration, error) {}, Limited: func() {}}
		_, gateway := NewUsers(config, Proxy{}).Of(r)
		exporter := func(c Config) int {
			w := httptest.NewRecorder()
			NewGate(c).Handler(http.NotFoundHandler()).ServeHTTP(w, r)
			if w.Code == http.StatusNotFound { // it has passed the gate
				return http.StatusOK
			}
			return w.Code
		}
		status := exporter(config)
		config.API = issuer{old: true}
		if old := exporter(config); status != want.exporter || gateway != want.gateway || old != want.old {
			t.Errorf("audience %s: status %d of an exporter, %d of the gateway, %d with an old API server; want %+v",
				audience, status, gateway, old, want)
		}
	}
}
