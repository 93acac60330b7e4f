package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// sentEvents are the requests about Events that an API server was sent.
type sentEvents struct {
	mu       sync.Mutex
	requests []corev1.Event
}

func (s *sentEvents) all() []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// eventsFront returns the address of an API server that also takes Events, which it returns.
func eventsFront(t *testing.T, server *kubetest.Server) (address string, sent *sentEvents) {
	to, err := url.Parse(server.URL())
	must.Do(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1}
	sent = &sentEvents{}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer []byte
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			answer = []byte(`{"status": {"allowed": true}}`)
		case strings.Contains(r.URL.Path, "/events"):
			answer, _ = io.ReadAll(r.Body) // the program cuts it at its end
			var e corev1.Event
			_ = json.Unmarshal(answer, &e) // as far as it was read
			sent.mu.Lock()
			sent.requests = append(sent.requests, e)
			sent.mu.Unlock()
		default:
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer) // the program may have ended
	}))
	t.Cleanup(front.Close)
	return front.URL, sent
}
