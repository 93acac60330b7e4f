package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/live"
)

var (
	gatewayNodes = flag.Int("gateway.nodes", 100, "simulated nodes of TestGatewayOfManyNodes")
	gatewayFor   = flag.Duration("gateway.for", 0, "how long TestGatewayOfManyNodes looks at the nodes")
)

// gateway starts the gateway with an API server.
func gateway(t *testing.T, kubeconfig string, more ...string) *program {
	t.Helper()
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
	api, kubeconfig := apiServer(t, n)
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
	if err != nil {
		t.Fatal(err)
	}
	exporters(api, port, []string{endpointOn(nodeName, host)})
	own := kubetest.Token("gateway", "dra-exporter")
	settings := n.write("http.yaml", "authorization: {credentials: "+own+"}\n")
	g := gateway(t, kubeconfig, "--exporter.http.config.file="+settings)
	get := func(user, path string) (int, string) {
		a, err := g.get(path, "Authorization", "Bearer "+user)
		if err != nil {
			t.Fatal(err)
		}
		return a.status, string(a.body)
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
		if status != http.StatusOK || !strings.Contains(strings.ToLower(body), strings.ToLower(want)) {
			t.Errorf("%s: status %d without %q:\n%.400s", path, status, want, body)
		}
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

// The gateway reads many nodes. Each has its own address on the loopback interface, and one in a
// hundred changes every 10 s. Reading all of them is fast and takes little processor time.
func TestGatewayOfManyNodes(t *testing.T) {
	n := newNodeWithoutKubelet(t)
	api, kubeconfig := apiServer(t, n)
	api.Allow("lead", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	var moved, answered atomic.Int64
	begun := time.Now()
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var a, b, i int
		_, _ = fmt.Sscanf(r.Host, "127.1.%d.%d:", &a, &b)
		i = a*250 + b
		state := "active"
		if (i+int(time.Since(begun)/(10*time.Second)))%100 == 0 {
			state = "quiet"
		}
		var claims []string
		for c := range 8 {
			claims = append(claims, fmt.Sprintf(`{"namespace":"team-%d","name":"train-%d-%d","state":%q,"devices":1,
				"pods":["train-%d-%d-0"]}`, i%20, i, c, state, i, c))
		}
		body := fmt.Sprintf(`{"node":"n","devices":{%q:8},"claims":[%s],"incidents":[]}`, state, strings.Join(claims, ","))
		moved.Add(400) // what the headers of a request and an answer take
		w.Header().Set("Content-Type", "application/json")
		if !web.Tagged(w, r, web.TagOf([]byte(body))) {
			sent, _ := io.WriteString(w, body)
			moved.Add(int64(sent))
		}
		answered.Add(1)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	var endpoints []string
	for i := range *gatewayNodes {
		endpoints = append(endpoints, endpointOn(fmt.Sprintf("node-%d", i), fmt.Sprintf("127.1.%d.%d", i/250, i%250+1)))
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	exporters(api, port, endpoints)
	g := gateway(t, kubeconfig)
	look := func() answer {
		a, err := g.get("/", "Authorization", "Bearer lead", "Accept-Encoding", "gzip")
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("status %d, %v", a.status, err)
		}
		return a
	}
	first := look()
	t.Logf("%d nodes: the first page after %v, %d bytes, %d nodes answered", *gatewayNodes, first.took, len(first.body),
		answered.Load())
	used, since, before := cpuTime(t, g.PID()), time.Now(), moved.Load()
	for time.Since(since) < *gatewayFor {
		time.Sleep(5 * time.Second)
		look()
	}
	if took := time.Since(since); *gatewayFor > 0 {
		t.Logf("for %v: CPU %.2f %%, %.2f MB a minute, %.1f MiB resident, %.1f MiB at most", took.Round(time.Second),
			100*(cpuTime(t, g.PID())-used).Seconds()/took.Seconds(), float64(moved.Load()-before)/1e6/took.Minutes(),
			mib(g.memory("VmRSS")), mib(g.memory("VmHWM")))
	}
	g.eventually("all nodes are shown", func() bool {
		a, err := g.get("/", "Authorization", "Bearer lead")
		return err == nil && strings.Count(string(a.body), "data-node=") == *gatewayNodes &&
			!strings.Contains(string(a.body), "has not answered yet")
	})
}

// cpuTime returns the processor time that a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var user, system int
	_, _ = fmt.Sscan(fields[11], &user)
	_, _ = fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}
