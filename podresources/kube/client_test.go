package kube

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// When the API server rejects a token, the client reads its file again and uses a renewed token for
// the next request.
func TestTokenIsReadAgain(t *testing.T) {
	var valid atomic.Value
	valid.Store("Bearer first")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != valid.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	token, kubeconfig := filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig")
	renew := func(content string) {
		t.Helper()
		must.Do(t, os.WriteFile(token, []byte(content), 0o600))
	}
	renew("first\n")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server:                server.URL,
		InsecureSkipTLSVerify: true,
	} // tokens are sent only over TLS
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{TokenFile: token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	config.CurrentContext = "c"
	must.Do(t, clientcmd.WriteToFile(*config, kubeconfig))
	client := must.Get(NewClient(kubeconfig, "test"))(t)
	defer client.rest.Client.CloseIdleConnections()
	get := func(when string, want driver.Reason) {
		t.Helper()
		body, err := client.Get(t.Context(), "/", nil)
		if err == nil {
			err = body.Close()
		}
		if got := reasonOf(err); got != want {
			t.Errorf("%s: %q, want %q: %v", when, got, want, err)
		}
	}
	get("at first", "")
	valid.Store("Bearer second")
	get("the token has ended", "unauthorized")
	renew("second\n")
	get("there is another", "")
}

// The client follows no redirect to another server, which would get its token, and follows one to a
// path of the same server.
func TestRedirects(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			stolen.Add(1)
		}
	}))
	defer thief.Close()
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/same":
			http.Redirect(w, r, server.URL+"/answer", http.StatusFound)
		case "/other":
			http.Redirect(w, r, thief.URL, http.StatusFound)
		case "/plain":
			http.Redirect(w, r, strings.Replace(server.URL, "https:", "http:", 1)+"/answer", http.StatusTemporaryRedirect)
		case "/loop":
			http.Redirect(w, r, server.URL+"/loop", http.StatusFound)
		}
	}))
	defer server.Close()
	client := must.Get(newClient(&rest.Config{
		Host: server.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}))(t)
	defer client.rest.Client.CloseIdleConnections()
	for path, want := range map[string]driver.Reason{
		"/answer": "", "/same": "", "/other": driver.ReasonRedirected, "/plain": driver.ReasonRedirected,
		"/loop": driver.ReasonRedirected,
	} {
		body, err := client.Get(t.Context(), path, nil)
		if err == nil {
			err = body.Close()
		}
		if got := reasonOf(err); got != want {
			t.Errorf("%s: %q, want %q: %v", path, got, want, err)
		}
	}
	n := stolen.Load()
	expect.That(t, n <= 0, "another server got the token %d times", n)
	expect.That(t, http.DefaultClient.CheckRedirect == nil, "the client of the whole process has changed")
}
