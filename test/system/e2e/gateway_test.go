package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// gateway starts the gateway with an API server.
func gateway(t *testing.T, kubeconfig string, more ...string) *program {
	args := append([]string{
		"gateway", "--kubeconfig=" + kubeconfig, "--exporter.namespace=dra", "--web.listen-address=127.0.0.1:0",
	}, more...)
	return &program{
		Program: live.Launch(t, command(context.Background(), args)), t: t,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout},
	}
}

// exporters adds an EndpointSlice of the exporters' Service.
func exporters(api *kubetest.Server, port string, endpoints []string) {
	api.Put(kubetest.Endpoints, fmt.Appendf(nil, `{"metadata":{"namespace":"dra","name":"a","labels":
		{"kubernetes.io/service-name":"dra-exporter"}},"addressType":"IPv4","ports":[{"name":"metrics","port":%s}],
		"endpoints":[%s]}`, port, strings.Join(endpoints, ",")))
}

func endpointOn(node, address string) string {
	return fmt.Sprintf(`{"nodeName":%q,"addresses":[%q],"targetRef":{"kind":"Pod","name":"p"}}`, node, address)
}

// apiServer starts an API server with the objects of a file in kubectl's format, and returns it
// with a kubeconfig.
func apiServer(t *testing.T) (server *kubetest.Server, kubeconfig string) {
	server, kubeconfig = kubetest.New(t)
	put(t, server, kubetest.Slices, "resourceslices.yaml")
	put(t, server, kubetest.Claims, "resourceclaims-all.yaml")
	return server, kubeconfig
}

func put(t *testing.T, server *kubetest.Server, resource, file string) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	err := yaml.Unmarshal([]byte(recorded(t, file)), &list)
	must.That(t, err == nil && len(list.Items) != 0, "%s: %d items, %v", file, len(list.Items), err)
	for _, item := range list.Items {
		server.Put(resource, item)
	}
}

func podObject(namespace, name, phase string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":"uid-of-%s",
		"labels":{"app":"trainer"},
		"ownerReferences":[{"kind":"Job","name":"train","controller":true,"apiVersion":"batch/v1","uid":"j"}]},
		"spec":{"nodeName":%q,"containers":[{"name":"main"}]},"status":{"phase":%q}}`, namespace, name, name, nodeName, phase)
}

// Data of the API server complete those of the kubelet. Scrapes cause no requests.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	server, kubeconfig := apiServer(t)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Running"))
	p := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig, "pod-label": "app"}))
	p.eventually("complete", func() bool {
		m := p.scrape()
		return m.is(1, "dra_claim_device_info", "namespace", "monitoring", "admin_access", "true", "device", "gpu-0") &&
			m.is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1", "created_by_kind", "Job", "created_by_name", "train",
				"workload_kind", "Job", "workload_name", "train", "label_app", "trainer") &&
			m.is(1, "dra_claim_device_info", "resourceclaim_name", "cc-3-gpu-p969z", "request", "b", "device_class",
				"shared.example.com") &&
			m.is(1, "dra_device_info", "device", "shared-1", "model", "LATEST-GPU-MODEL")
	})
	m := p.scrape()
	for _, source := range []string{"pods", "claims", "slices"} {
		m.want(1, "dra_exporter_source_up", "source", source)
	}
	multiple := map[string]bool{}
	r := p.report()
	for i := range r.Devices {
		multiple[r.Devices[i].Device] = r.Devices[i].Multiple
	}
	expect.That(t, multiple["shared-0"] && !multiple["gpu-0"], "devices that allow multiple allocations: %v", multiple)
	// The program sends requests from time to time, but not for each scrape.
	p.eventually("without requests during scrapes", func() bool {
		before := server.Usage().Requests
		for range 20 {
			p.scrape()
		}
		return server.Usage().Requests == before
	})
}

// check prints what works, what fails, and why.
func TestCheckAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	server, kubeconfig := apiServer(t)
	check := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Getenv(programPath),
			append([]string{"check"}, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig}).Args()...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		err := cmd.Run()
		return out.String(), err
	}
	said, err := check()
	if !strings.Contains(said, "resource.k8s.io/v1: 10 devices of this node") ||
		!strings.Contains(said, "6 of the 6 that are held are known") || strings.Contains(said, "forbidden") {
		t.Errorf("error %v, output %s", err, said)
	}
	server.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == kubetest.Pods {
			return kubetest.Forbidden
		}
		return kubetest.None
	})
	said, err = check()
	if err == nil || !strings.Contains(said, "FAIL  API: pods       forbidden by the API server\n") ||
		!strings.Contains(said, "give the service account the right for pods") {
		t.Errorf("error %v, output %s", err, said)
	}
	// The right to list pods is not needed if the kubelet serves them.
	pods := must.Get(n.ServePods())(t)
	t.Cleanup(pods.Stop)
	if said, err := check(); !strings.Contains(said, "need not be") || strings.Contains(said, "forbidden") {
		t.Errorf("error %v, output %s", err, said)
	}
}

// TestLogin logs users in at a real oauth2-proxy in front of the gateway, with the arguments from
// the gateway's README. A user sees what the API server allows for the user and the groups of the
// login, no matter which headers the browser sends.
func TestLogin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("other", "b", "claim-b", gpu(1)))
	api, kubeconfig := apiServer(t)
	var mu sync.Mutex
	var groups []string // of the last question about the person
	api.Allow("alice@example.com", func(s authorizationv1.SubjectAccessReviewSpec) bool {
		mu.Lock()
		defer mu.Unlock()
		groups = s.Groups
		return s.ResourceAttributes != nil && s.ResourceAttributes.Namespace == "team"
	})
	api.Allow("lead", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	node := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig}))
	host, port, err := net.SplitHostPort(node.Address)
	must.Do(t, err)
	exporters(api, port, []string{endpointOn(nodeName, host)})
	api.Put(kubetest.Pods, podObject("team", "a", "Running"))
	g := gateway(t, kubeconfig, "--proxy.loopback")
	proxy := startLogin(t, g.Address, provider(t, `"sub":"17","email":"alice@example.com","email_verified":true,
		"groups":["research","system:masters","ml"]`))

	get := func(client *http.Client, path string, headers ...string) (int, string) {
		a := must.Get(live.Ask(t.Context(), client, proxy+path, headers...))(t)
		return a.Status, string(a.Body)
	}
	headers := []string{"X-Forwarded-User", "lead", "X-Forwarded-Groups", "system:masters", "X-Forwarded-Email", "lead"}
	stranger := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout}
	for _, path := range []string{"/", "/claim/team/claim-a?node=" + nodeName} {
		status, body := get(stranger, path, headers...)
		if status != http.StatusForbidden || strings.Contains(body, "gpu-") || strings.Contains(body, "data-node") {
			t.Errorf("%s without a login: status %d:\n%.400s", path, status, body)
		}
	}
	jar := must.Get(cookiejar.New(nil))(t)
	person := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout, Jar: jar}
	// The link of an alert leads through the login to the claim.
	link := "/claim/team/claim-a?node=" + nodeName
	g.eventually("the claim is known", func() bool {
		status, body := get(person, "/oauth2/start?rd="+url.QueryEscape(link))
		return status == http.StatusOK && strings.Contains(body, "gpu-0") && strings.Contains(body, "Claim team/claim-a")
	})
	for _, forged := range [][]string{nil, headers} {
		if status, body := get(person, "/", forged...); status != http.StatusOK || !strings.Contains(body, "team/claim-a") ||
			strings.Contains(body, "claim-b") {
			t.Errorf("the cluster, of alice with the headers %q: status %d:\n%s", forged, status, body)
		}
		if status, body := get(person, "/node/"+nodeName+"/", forged...); status != http.StatusForbidden {
			t.Errorf("a node, of alice with the headers %q: status %d:\n%.400s", forged, status, body)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"research", "ml", "system:authenticated"}; !slices.Equal(groups, want) {
		t.Errorf("the API server was asked about the groups %v, want %v", groups, want)
	}
}

// startLogin starts oauth2-proxy in front of a gateway, and returns its address.
func startLogin(t *testing.T, gateway, issuer string) string {
	path := os.Getenv("OAUTH2_PROXY")
	must.That(t, path != "", "OAUTH2_PROXY is not set: run this with make test-one SUITE=e2e RUN=TestLogin")
	listen := live.FreeAddress(t)
	args := documentedArguments(t)
	for i, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--http-address":
			args[i] = name + "=" + listen
		case "--upstream":
			args[i] = name + "=http://" + gateway
		case "--oidc-issuer-url":
			args[i] = name + "=" + issuer
		}
	}
	cmd := exec.Command(path, append(args, "--client-id=gateway", "--client-secret=secret", "--cookie-secure=false",
		"--cookie-secret="+strings.Repeat("k", 32), "--redirect-url=http://"+listen+"/oauth2/callback")...)
	live.Start(t, cmd, http.DefaultClient, "http://"+listen+"/ping")
	return "http://" + listen
}

// documentedArguments returns the arguments of oauth2-proxy in the gateway's README.
func documentedArguments(t *testing.T) []string {
	content := must.Get(os.ReadFile("../../../exporter/gateway/README.md"))(t)
	_, rest, _ := strings.Cut(string(content), "```yaml\nargs:")
	block, _, _ := strings.Cut(rest, "```")
	var out struct{ Args []string }
	err := yaml.Unmarshal([]byte("args:"+block), &out)
	must.That(t, err == nil && len(out.Args) >= 8, "the README has the arguments %q, %v", out.Args, err)
	return out.Args
}

// provider starts an OpenID provider at which every login is that of a user with these claims, and
// returns its address.
func provider(t *testing.T, user string) string {
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	encode := base64.RawURLEncoding.EncodeToString
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	answer := func(path, format string, args ...any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, format, args...)
		})
	}
	answer("/.well-known/openid-configuration", `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,
		"jwks_uri":%q,"response_types_supported":["code"],"subject_types_supported":["public"],
		"id_token_signing_alg_values_supported":["RS256"]}`,
		server.URL, server.URL+"/authorize", server.URL+"/token", server.URL+"/keys")
	answer("/keys", `{"keys":[{"kty":"RSA","alg":"RS256","use":"sig","kid":"1","n":%q,"e":%q}]}`,
		encode(key.N.Bytes()), encode(big.NewInt(int64(key.E)).Bytes()))
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		// The nonce comes back in the token.
		back := url.Values{"code": {cmp.Or(q.Get("nonce"), "none")}, "state": {q.Get("state")}}
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		signed := encode([]byte(`{"alg":"RS256","kid":"1","typ":"JWT"}`)) + "." + encode(fmt.Appendf(nil,
			`{"iss":%q,"aud":"gateway","nonce":%q,"iat":%d,"exp":%d,%s}`, server.URL, r.FormValue("code"), now.Unix(),
			now.Add(time.Hour).Unix(), user))
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"access_token": "opaque", "token_type": "Bearer", "expires_in": 3600,
			"id_token": signed + "." + encode(signature),
		})
	})
	return server.URL
}
