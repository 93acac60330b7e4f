package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

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

// The real gateway leads to the real exporter, which requires a token. Searches for a claim,
// and links of alerts, lead to the right page, for users with the right to see it.
func TestGateway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("other", "b", "claim-b", gpu(1)))
	api, kubeconfig := apiServer(t)
	isGet := func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.NonResourceAttributes != nil && s.NonResourceAttributes.Verb == "get"
	}
	api.Allow("lead", isGet)
	api.Allow("gateway", isGet)
	api.Allow("alice", func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.ResourceAttributes != nil && s.ResourceAttributes.Namespace == "team"
	})
	api.Put(kubetest.Pods, podObject("team", "a", "Running"))
	node := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig, "web.kube-authorization": ""}))
	host, port, err := net.SplitHostPort(node.Address)
	must.Do(t, err)
	exporters(api, port, []string{endpointOn(nodeName, host)})
	own := kubetest.Token("gateway", "dra-exporter")
	settings := n.write("http.yaml", "authorization: {credentials: "+own+"}\n")
	g := gateway(t, kubeconfig, "--exporter.http.config.file="+settings)
	get := func(user, path string) (int, string) {
		a := must.Get(g.get(path, "Authorization", "Bearer "+user))(t)
		return a.Status, string(a.Body)
	}
	g.eventually("the claims are there", func() bool {
		status, body := get("lead", "/")
		return status == http.StatusOK && strings.Contains(body, "team/claim-a") && strings.Contains(body, "other/claim-b")
	})
	// What the gateway sends to exporters is of use nowhere else.
	if status, body := get(own, "/"); status != http.StatusUnauthorized {
		t.Errorf("with the gateway's own token: status %d:\n%s", status, body)
	}
	const alert = "/claim/team/claim-a?node=" + nodeName
	for path, want := range map[string]string{
		alert:         "dra-exporter on " + nodeName,
		"/pod/team/a": "dra-exporter on " + nodeName,
		"/node/" + nodeName + "/page/detail?claim=team/claim-a": "Claim team/claim-a",
		"/node/" + nodeName + "/api/v1/snapshot":                `"name":"claim-a"`,
		"/node/" + nodeName + "/metrics":                        "dra_claim_allocated_seconds_total",
	} {
		status, body := get("lead", path)
		expect.That(t, status == http.StatusOK && strings.Contains(strings.ToLower(body), strings.ToLower(want)),
			"%s: status %d without %q:\n%.400s", path, status, want, body)
	}
	if status, body := get("alice", alert); status != http.StatusOK || !strings.Contains(body, "claim-a") ||
		strings.Contains(body, "claim-b") {
		t.Errorf("a claim of alice: status %d:\n%s", status, body)
	}
	for path, want := range map[string]int{
		"/claim/other/claim-b?node=" + nodeName: http.StatusForbidden, "/node/" + nodeName + "/": http.StatusForbidden,
	} {
		if status, body := get("alice", path); status != want {
			t.Errorf("%s of alice: status %d:\n%s", path, status, body)
		}
	}
}
