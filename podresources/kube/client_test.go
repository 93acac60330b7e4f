package kube

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The client follows no redirect, not even to the same server: another one would get its token.
func TestRedirects(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	defer thief.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/answer" {
			http.Redirect(w, r, thief.URL, http.StatusFound)
		}
	}))
	defer server.Close()
	client := must.Get(newClient(&rest.Config{
		Host: server.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}))(t)
	defer client.rest.Client.CloseIdleConnections()
	for path, want := range map[string]driver.Reason{"/answer": "", "/other": driver.ReasonRedirected} {
		body, err := client.Get(t.Context(), path, nil)
		if err == nil {
			err = body.Close()
		}
		if got := reasonOf(err); got != want {
			t.Errorf("%s: %q, want %q: %v", path, got, want, err)
		}
	}
	expect.Is(t, stolen.Load(), 0, "requests to another server")
	expect.That(t, http.DefaultClient.CheckRedirect == nil, "the client of the whole process has changed")
}
