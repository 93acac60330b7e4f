package program

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// apiServer starts an API server with two nodes, which passes requests to their exporters. It
// returns a kubeconfig, and a function that returns the requested paths. The named pods refuse all
// requests, as pods do that require credentials.
func apiServer(t *testing.T, refuse ...string) (kubeconfig string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	exporter := func(n int) string {
		return fmt.Sprintf(`{"metadata": {"namespace": "dra", "name": "x-%d"}, "spec": {"nodeName": "node-%d", "containers": [
			{"ports": [{"name": "metrics", "containerPort": 10985}]}]}, "status": {"phase": "Running"}}`, n, n)
	}
	rows := func(n int) string {
		return fmt.Sprintf(`{"time": "2026-11-23 12:00:00 UTC", "node": "node-%d", "ids": ["gpu.example.com/p/gpu-0"],
			"devices": [{"driver": "gpu.example.com", "pool": "p", "device": "gpu-0", "id": "gpu.example.com/p/gpu-0",
			"state": "stalled", "holders": [{"claim": "team/train-%d", "pods": "team/rank-%d"}]}],
			"claims": [["team", "train-%d", 0]], "pods": [["team", "rank-%d", 0]],
			"incidents": [{"id": "i%d", "state": "open", "text": "gpu-0: XID 31", "count": 3, "hit": "team/rank-%d"}]}`,
			n, n, n, n, n, n, n)
	}
	answers := map[string]string{
		"/api/v1/pods":                        `{"items": [` + exporter(1) + "," + exporter(2) + `]}`,
		"/apis/resource.k8s.io":               `{"preferredVersion": {"groupVersion": "resource.k8s.io/v1beta1"}}`,
		"/api/v1/namespaces/team/pods/rank-2": `{"spec": {"nodeName": "node-2"}}`,
		"/apis/resource.k8s.io/v1beta1/namespaces/team/resourceclaims/train-2": `{"status": {"reservedFor": [
			{"resource": "pods", "name": "rank-2", "uid": "2"}]}}`,
	}
	for n := 1; n <= 2; n++ {
		answers[fmt.Sprintf("/api/v1/namespaces/dra/pods/x-%d:10985/proxy/page/rows", n)] = rows(n)
		for of, title := range map[string]string{
			fmt.Sprintf("claim=team/train-%d", n): "Claim team/train-", fmt.Sprintf("pod=team/rank-%d", n): "Pod team/rank-",
			"device=gpu-0": "Device gpu-", fmt.Sprintf("incident=i%d", n): "Incident i",
		} {
			at := fmt.Sprintf("/api/v1/namespaces/dra/pods/x-%d:10985/proxy/page/detail?%s", n, of)
			answers[at] = fmt.Sprintf(
				`{"Title": "%s%d", "Node": "node-%d", "Sections": [{"Title": "a", "Rows": [[{"Text": "b"}]]}]}`, title, n, n)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		if slices.ContainsFunc(refuse, func(pod string) bool { return strings.Contains(r.URL.Path, "/pods/"+pod+":") }) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		at := r.URL.Path
		if strings.HasSuffix(at, "/page/detail") {
			query, _ := url.QueryUnescape(r.URL.RawQuery)
			at += "?" + strings.Trim(strings.ReplaceAll(query, "json=", ""), "&")
			if answers[at] == "" {
				answers[at] = "{}"
			}
		}
		if answers[at] == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answers[at]))
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	content := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}],
		clusters: [{name: a, cluster: {server: ` + server.URL + `}}]}`
	must.Do(t, os.WriteFile(kubeconfig, []byte(content), 0o600))
	return kubeconfig, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return paths
	}
}

// With --all-nodes the commands ask the exporters through the API server. For a claim or a pod they
// ask only the exporters of its nodes. For an object that the API server does not know they ask
// all.
func TestAllNodes(t *testing.T) {
	for _, tt := range []struct {
		args         string
		want, absent []string
		others       bool // the exporter of another node is asked
	}{
		{"top --once", []string{"2 nodes", "team/train-1", "team/train-2", "2 incidents open"}, nil, true},
		{"top --once --node=node-1 --view=pods", []string{"team/rank-1"}, []string{"rank-2"}, true},
		{"incidents --once", []string{"gpu-0: XID 31", "team/rank-1", "team/rank-2"}, nil, true},
		{"why team/train-2", []string{"Claim team/train-2 on node-2", "\n\na\n  b\n"}, []string{"node-1"}, false},
		{"claim -n team train-1", []string{"Claim team/train-1 on node-1"}, nil, true}, // the API server has no such claim
		{"why team/rank-2", []string{"Pod team/rank-2 on node-2"}, []string{"node-1"}, false},
		{"why gpu-0", []string{"Device gpu-1 on node-1", "Device gpu-2 on node-2"}, nil, true},
		{"why i1", []string{"Incident i1 on node-1"}, []string{"node-2"}, true},
	} {
		kubeconfig, asked := apiServer(t)
		var stdout, stderr bytes.Buffer
		args := strings.Fields(tt.args + " --all-nodes --kubeconfig=" + kubeconfig)
		if status := Run(t.Context(), args, nil, &stdout, &stderr); status != exitOK {
			t.Errorf("%s: status %d: %s", tt.args, status, &stderr)
		}
		for _, want := range tt.want {
			expect.That(t, strings.Contains(stdout.String(), want), "%s: no %q in\n%s", tt.args, want, &stdout)
		}
		for _, absent := range tt.absent {
			expect.That(t, !strings.Contains(stdout.String(), absent), "%s: %q in\n%s", tt.args, absent, &stdout)
		}
		if paths := strings.Join(asked(), "\n"); strings.Contains(paths, "/x-1:") != tt.others {
			t.Errorf("%s: asked for\n%s", tt.args, paths)
		}
	}
	kubeconfig, _ := apiServer(t)
	var stdout, stderr bytes.Buffer
	args := []string{"why", "team/none", "--all-nodes", "--kubeconfig=" + kubeconfig}
	if status := Run(t.Context(), args, nil, &stdout, &stderr); status != exitFailure ||
		!strings.Contains(stderr.String(), "team/none: not found on any node that answered") {
		t.Errorf("status %d, %s%s", status, &stdout, &stderr)
	}
	// The API server passes no credentials on to pods.
	kubeconfig, _ = apiServer(t, "x-2")
	stdout.Reset()
	stderr.Reset()
	args = []string{"top", "--once", "--all-nodes", "--kubeconfig=" + kubeconfig}
	if status := Run(t.Context(), args, nil, &stdout, &stderr); status != exitFailure ||
		!strings.Contains(stdout.String(), "team/train-1") ||
		!strings.Contains(stderr.String(), "dra/x-2: it asks for credentials") {
		t.Errorf("status %d, %s%s", status, &stdout, &stderr)
	}
}

// What has been removed is accepted, and says what to use instead.
func TestRemoved(t *testing.T) {
	for args, want := range map[string]string{
		"incidents --all-nodes --once":            "use top --view=incidents",
		"claim team/train-2 --all-nodes":          "use why NAMESPACE/NAME",
		"check --bundle=a --kube=off":             "--bundle has no effect",
		"check --device=a --kube=off":             "use why DEVICE",
		"check --source.intelgpu.pmu --kube=off":  "--source.intelgpu.pmu has no effect",
		"why team/train-2 --all-nodes":            "",
		"top --view=incidents --all-nodes --once": "",
	} {
		kubeconfig, _ := apiServer(t)
		var stdout, stderr bytes.Buffer
		Run(t.Context(), strings.Fields(args+" --kubeconfig="+kubeconfig), nil, &stdout, &stderr)
		if got := stderr.String(); !strings.Contains(got, want) || want == "" && got != "" || stdout.Len() == 0 {
			t.Errorf("%s: it says %q, want %q", args, got, want)
		}
	}
}
