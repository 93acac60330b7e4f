package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// others are a claim and its pod in a namespace that alice may not see.
const others = `
apiVersion: v1
kind: Namespace
metadata: {name: team-b}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: secret, namespace: team-b}
spec:
  devices:
    requests:
    - {name: part, exactly: {deviceClassName: shared.gpu.example.com, capacity: {requests: {memory: 5Gi}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: secret, namespace: team-b}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: workload:1, resources: {claims: [{name: part}]}}]
  resourceClaims: [{name: part, resourceClaimName: secret}]
`

// testGateway installs the gateway of the chart beside exporters that ask for tokens. It finds them
// by the EndpointSlices of the chart's Service, and the nodes of claims, pods and devices by the
// API server, with the rights of the chart. The API server decides who sees what: alice, who may
// get the claims of one namespace, sees these and no others.
func (w *world) testGateway(t *testing.T) {
	w.apply(others)
	t.Cleanup(func() { _, _ = w.cluster.Kubectl(w.Context(), "", "delete", "namespace", "team-b", "--wait=true") })
	w.kubectl("wait", "--for=condition=Ready", "pod", "--all", "-n", "team-b", "--timeout="+startTimeout.String())
	address := w.installGateway(object{})

	for _, account := range []string{"alice", "lead"} {
		w.kubectl("create", "serviceaccount", account, "-n", namespace)
	}
	w.kubectl("create", "role", "claims", "-n", "default", "--verb=get", "--resource=resourceclaims.resource.k8s.io")
	w.kubectl("create", "rolebinding", "claims", "-n", "default", "--role=claims", "--serviceaccount="+namespace+":alice")
	w.kubectl("create", "clusterrole", "pages", "--verb=get", "--non-resource-url=/,/metrics,/page/*,/api/v1/*")
	w.kubectl("create", "clusterrolebinding", "pages", "--clusterrole=pages", "--serviceaccount="+namespace+":lead")
	tokens := map[string]string{"nobody": strings.Repeat("x", 100)}
	for _, account := range []string{"alice", "lead", "default"} {
		tokens[account] = strings.TrimSpace(w.kubectl("create", "token", "-n", namespace, account))
	}
	get := func(user, path string) (status int, body string, err error) {
		client := w.network.client()
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		a, err := live.Ask(t.Context(), client, address+path, "Authorization", "Bearer "+tokens[user])
		return a.Status, a.Header.Get("Location") + "\n" + string(a.Body), err
	}
	look := func() (body string, err error) {
		status, body, err := get("lead", "/")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, "default/single") ||
			!strings.Contains(body, "team-b/secret")) {
			err = fmt.Errorf("status %d:\n%s", status, body)
		}
		return body, err
	}
	live.Await(t, startTimeout, "the gateway shows the claims of the node", func() error {
		_, err := look()
		return err
	})
	live.Await(t, startTimeout, "alice sees her claims", func() error { // once the API server's authorizer knows the role
		status, body, err := get("alice", "/")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, "default/single")) {
			err = fmt.Errorf("status %d:\n%s", status, body)
		}
		return err
	})
	const page = "../../node/" + node.Name + "/#"
	for _, test := range []struct {
		user, path string
		want       int
		has        string
	}{
		{"alice", "/claim/default/both", 200, "both-b"},
		{"alice", "/claim/default/part-a", 200, "part-a"},
		{"alice", "/pod/default/single", 200, "single"},
		{"alice", "/claim/team-b/secret", 403, ""},
		{"alice", "/pod/team-b/secret", 403, ""},
		{"alice", "/node/" + node.Name + "/", 403, ""},
		{"alice", "/node/" + node.Name + "/metrics", 403, ""},
		{"lead", "/claim/team-b/secret", 302, page + "claim=team-b/secret"},
		{"lead", "/pod/default/single", 302, page + "pod=default/single"},
		{"lead", "/device/gpu.example.com/" + node.Name + "/shared-0", 302, page + "device=gpu.example.com/"},
		{"lead", "/claim/default/gone", 404, ""},
		{"lead", "/claim/default/gone?node=" + node.Name, 302, page + "claim=default/gone"},
		{"lead", "/node/" + node.Name + "/", 200, "dra-exporter"},
		{"lead", "/node/" + node.Name + "/metrics", 200, "dra_claim_allocated_seconds_total"},
		{"lead", "/node/kubernetes.default.svc/metrics", 404, ""},
		{"default", "/", 200, "There is no node to show"},
		{"default", "/claim/default/single", 403, ""},
		{"nobody", "/", 401, ""},
	} {
		status, body, err := get(test.user, test.path)
		expect.That(t, err == nil && status == test.want && strings.Contains(body, test.has),
			"%s of %s: status %d without %q, %v:\n%.600s", test.path, test.user, status, test.has, err, body)
		if test.user != "lead" && test.want == http.StatusOK && strings.Contains(body, "secret") {
			t.Errorf("%s of %s has what is of others:\n%s", test.path, test.user, body)
		}
	}
	if _, body, _ := get("alice", "/"); strings.Contains(body, "secret") || strings.Contains(body, "team-b") {
		t.Errorf("/ of alice has what is of others:\n%s", body)
	}
	// The API server passes no token on to pods, so the exporters refuse what comes through it.
	if _, err := w.ask(t, "top", "--once"); err == nil || !strings.Contains(err.Error(), "asks for credentials") {
		t.Errorf("top, of an exporter that asks for tokens: %v", err)
	}
	t.Run("StolenToken", func(t *testing.T) { w.testStolenToken(t, address, look) })
	address = w.installGateway(object{"certificate": object{"from": "generated"}})
	t.Run("Certificate", func(t *testing.T) { w.testCertificate(t, look) })
}

// installGateway installs the chart with its gateway, whose exporters ask for tokens, and with more
// values of web. It returns the gateway's address.
func (w *world) installGateway(web object) (address string) {
	web["kubeAuthorization"] = object{"enabled": true}
	w.install(object{"gateway": object{"enabled": true}, "web": web})
	w.kubectl("rollout", "status", "deployment/"+release+"-gateway", "-n", namespace, "--timeout="+startTimeout.String())
	live.Await(w, startTimeout, "there is one pod of the gateway", func() error {
		var pods corev1.PodList
		raw := w.kubectl("get", "pods", "-n", namespace, "-l", "app.kubernetes.io/name="+release+"-gateway", "-o", "json")
		if err := json.Unmarshal([]byte(raw), &pods); err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("%d pods of the gateway, %w", len(pods.Items), err)
		}
		address = "http://" + pods.Items[0].Status.PodIP + ":10985"
		return nil
	})
	return address
}

// testTop runs top and why for all nodes, through the API server.
func (w *world) testTop(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"top --once", []string{"5 held", "gpu-0", "default/single", node.Name}},
		{"top --once --view=pods", []string{"default/both-a", "default/both-b"}},
		{"why default/both", []string{"Claim default/both on " + node.Name, "both-a, default/both-b"}},
		{"why -n default single", []string{"Claim default/single on " + node.Name}},
		{"why default/part-a", []string{"Claim default/part-a on " + node.Name, "shared-0"}},
		{"why shared-0", []string{"Device shared-0 on " + node.Name, "part-b"}},
		{"top --view=incidents --once", []string{"incident"}},
	} {
		said, err := w.ask(t, strings.Fields(test.args)...)
		expect.That(t, err == nil, "%s: %v", test.args, err)
		for _, want := range test.want {
			expect.That(t, strings.Contains(strings.ToLower(said), strings.ToLower(want)),
				"%s: no %q in\n%s", test.args, want, said)
		}
	}
	var all []struct {
		Snapshot struct{ Devices, Claims, Pods []json.RawMessage }
	}
	said, err := w.ask(t, "top", "-o", "json")
	if err := errors.Join(err, json.Unmarshal([]byte(said), &all)); err != nil || len(all) != 1 ||
		len(all[0].Snapshot.Devices) == 0 || len(all[0].Snapshot.Claims) < 5 || len(all[0].Snapshot.Pods) < 5 {
		t.Errorf("top -o json: %v: %.600s", err, said)
	}
}

// ask runs a command for all nodes of the cluster, and returns what it prints.
func (w *world) ask(t *testing.T, args ...string) (string, error) {
	cmd := w.cluster.Command(t.Context(), os.Getenv("DRA_EXPORTER"), append(args, "--all-nodes")...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	said, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s%s", err, stderr.String(), said)
	}
	return string(said), err
}

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
	config := must.Get(w.cluster.Client())(t)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client := must.Get(rest.HTTPClientFor(config))(t)
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
