package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// impostor is a server that the EndpointSlices of the exporters' Service name, as that of a node of
// the same name. It keeps the tokens that it receives.
type impostor struct {
	*httptest.Server

	mu     sync.Mutex
	tokens []string
}

// startImpostor starts an impostor in the pods' network, with TLS if a certificate is given.
func (w *world) startImpostor(t *testing.T, certificates ...tls.Certificate) *impostor {
	listener := must.Get(w.network.listen(t.Context(), node.Address+":0"))(t)
	i := &impostor{}
	i.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.tokens = append(i.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}))
	i.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of handshakes
	_ = i.Listener.Close()
	i.Listener = listener
	if certificates == nil {
		i.Start()
	} else {
		i.TLS = &tls.Config{Certificates: certificates}
		i.StartTLS()
	}
	host, port, _ := strings.Cut(listener.Addr().String(), ":")
	w.apply(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: impostor, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: metrics, port: %s, protocol: TCP}]
endpoints: [{addresses: [%s], nodeName: impostor, targetRef: {kind: Pod, name: impostor, namespace: %[1]s}}]
`, namespace, release, port, host))
	t.Cleanup(func() {
		w.kubectl("delete", "endpointslice", "impostor", "-n", namespace)
		i.Close()
	})
	return i
}

// received returns the tokens so far.
func (i *impostor) received() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.tokens)
}

// testStolenToken takes the gateway's token, as a hostile node can. The exporters accept it, and
// nobody else: neither the API server nor the gateway.
func (w *world) testStolenToken(t *testing.T, gateway string, look func() (string, error)) {
	thief := w.startImpostor(t)
	live.Await(t, startTimeout, "the gateway asks the impostor", func() error {
		if _, err := look(); err != nil || len(thief.received()) > 0 {
			return err
		}
		return fmt.Errorf("%s was not asked", thief.URL)
	})
	token := thief.received()[0]
	var claims struct {
		Audiences []string `json:"aud"`
		Expires   int64    `json:"exp"`
		Issued    int64    `json:"iat"`
	}
	_, payload, _ := strings.Cut(token, ".")
	payload, _, _ = strings.Cut(payload, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(payload)
	must.That(t, err == nil, "%v: %.20s", err, token)
	if err := json.Unmarshal(decoded, &claims); err != nil || !slices.Equal(claims.Audiences, []string{"dra-exporter"}) ||
		claims.Expires-claims.Issued > 610 {
		t.Errorf("the token is %s, %v", decoded, err)
	}
	for address, want := range map[string]int{
		"http://" + w.pods()[0].Status.PodIP + ":10985/metrics": http.StatusOK, gateway + "/": http.StatusUnauthorized,
	} {
		status, body := w.get(t, address, "Authorization", "Bearer "+token)
		expect.That(t, status == want, "%s with the token: status %d, want %d: %.200s", address, status, want, body)
	}
	config, err := w.cluster.Client()
	must.Do(t, err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	must.Do(t, err)
	defer client.CloseIdleConnections()
	answer := must.Get(live.Ask(t.Context(), client, config.Host+"/api/v1/namespaces"))(t)
	expect.Is(t, answer.Status, http.StatusUnauthorized, "the API server answers with status")
}

// testCertificate installs exporters with a certificate that the chart generates. The gateway
// verifies it, and sends its token to no server that has another one.
func (w *world) testCertificate(t *testing.T, look func() (string, error)) {
	live.Await(t, startTimeout, "the gateway shows the claims of the node", func() error {
		_, err := look()
		return err
	})
	secret := must.Get(w.client.CoreV1().Secrets(namespace).Get(t.Context(), release+"-tls", metav1.GetOptions{}))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	for name, valid := range map[string]bool{release + "." + namespace + ".svc": true, "other": false} {
		client := w.network.client()
		client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: name}
		err := live.Get(client, "https://"+w.pods()[0].Status.PodIP+":10985/healthz")
		expect.That(t, (err == nil) == valid, "as %s: %v", name, err)
	}
	if status, body := w.get(t, "http://"+w.pods()[0].Status.PodIP+":10985/healthz"); status != http.StatusBadRequest {
		t.Errorf("without TLS: status %d: %.200s", status, body)
	}
	other := httptest.NewUnstartedServer(nil) // for its certificate
	other.StartTLS()
	other.Close()
	thief := w.startImpostor(t, other.TLS.Certificates[0])
	live.Await(t, startTimeout, "the gateway refuses the impostor", func() error {
		body, err := look()
		if err == nil && !strings.Contains(body, "the connection failed") {
			err = fmt.Errorf("the page is\n%s", body)
		}
		return err
	})
	tokens := thief.received()
	expect.That(t, len(tokens) == 0, "the impostor received %d tokens", len(tokens))
}
