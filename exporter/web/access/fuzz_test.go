package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// answers are fixed answers to the two questions of a review.
type answers struct{ token, access []byte }

func (a answers) Post(_ context.Context, path string, _ []byte) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(map[string][]byte{tokenReviews: a.token, accessReviews: a.access}[path])), nil
}

// A request is allowed only if both answers allow it. A malformed answer is an error with a reason.
func FuzzReview(f *testing.F) {
	good := []byte(`{"status":{"authenticated":true,"user":{"username":"u","groups":["g"],"extra":{"k":["v"]}}}}`)
	f.Add(good, []byte(`{"status":{"allowed":true}}`))
	f.Add(good, []byte(`{"status":{"allowed":false,"denied":true,"reason":"no"}}`))
	f.Add([]byte(`{"status":{"authenticated":false,"error":"expired"}}`), []byte(`{}`))
	f.Add([]byte(`{"status":{"authenticated":"true"}}`), []byte(`{"status":{"allowed":1}}`))
	f.Add([]byte(`{"kind":"Status","status":"Failure"}`), []byte(`{"status":`))
	f.Fuzz(func(t *testing.T, token, access []byte) {
		var err error
		gate := NewGate(Config{API: answers{token, access}, Report: func(_ time.Duration, failed error) {
			err = cmp.Or(err, failed)
		}, Limited: func() {}})
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer token")
		gate.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		status, known := w.Code, says(token, "authenticated")
		switch {
		case err != nil && (status != http.StatusServiceUnavailable || driver.ReasonOf(err) == driver.ReasonOther):
			t.Fatalf("status %d with error %v", status, err)
		case status == http.StatusOK && (!known || !says(access, "allowed")),
			status == http.StatusForbidden && !known:
			t.Fatalf("status %d for %q and %q", status, token, access)
		}
	})
}

// says reports whether a field of a review's status is true. It ignores the case of the field's
// name, as the standard library does.
func says(answer []byte, field string) bool {
	lower := bytes.ToLower(answer)
	var review struct {
		Status map[string]any `json:"status"`
	}
	_ = json.Unmarshal(lower, &review) // after an error, no field is true
	said, _ := review.Status[field].(bool)
	return said || bytes.Count(lower, []byte("status")) > 1 && bytes.Contains(lower, []byte("true"))
}

// The client of a sender does not depend on the claims of the token.
func FuzzSenderOf(f *testing.F) {
	f.Add("a.eyJpc3MiOiJhIiwic3ViIjoiYiJ9.c")
	f.Add("opaque")
	f.Fuzz(func(t *testing.T, token string) {
		here, there := senderOf("192.0.2.1:1", token), senderOf("192.0.2.2:1", token)
		must.That(t, here.client == client.Of("192.0.2.1:2") && here != there && here.subject == there.subject,
			"senders %+v and %+v", here, there)
	})
}
