package kube

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dra-exporter/dra-exporter/driver"
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
		if err := os.WriteFile(token, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(kubeconfig, "test")
	if err != nil {
		t.Fatal(err)
	}
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
