package program

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// badFiles returns files that no flag can use, by name.
func badFiles() map[string]string {
	return map[string]string{
		"binary":      "\x00\x01\xfe\xff\x7fELF",
		"broken.yaml": "a: [b\n c: }\nd: *e\n",
		"text":        "to be done\nsome day\n",
		"pod.yaml":    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n",
		"list.json":   `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}]}`,

		"no-certificate.yaml": "tls_server_config: {cert_file: none.pem, key_file: none.pem}\n",
		"no-key.yaml":         "tls_server_config: {cert_file: text, key_file: text}\n",
		"no-hash.yaml":        "basic_auth_users: {a: secret}\n",
		"no-ca.yaml":          "tls_config: {ca_file: none.pem}\n",
		"no-context.yaml":     "apiVersion: v1\nkind: Config\ncurrent-context: a\n",
		"no-authority.yaml": "apiVersion: v1\nkind: Config\ncurrent-context: a\n" +
			"contexts: [{name: a, context: {cluster: a}}]\n" +
			"clusters: [{name: a, cluster: {server: 'https://192.0.2.1', certificate-authority: /none.pem}}]\n",
		"no-authority-of-endpoint.yaml": "endpoints:\n- name: a\n  url: https://192.0.2.1/metrics\n" +
			"  preset: node-exporter\n  driver: x\n  tls_config: {ca_file: none.pem}\n",
		"no-endpoint.yaml": "endpoints:\n- name: a\n  url: ftp://192.0.2.1\n  preset: node-exporter\n  driver: x\n",
	}
}

// goodKubeconfig is a valid kubeconfig.
const goodKubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\n" +
	"contexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: 'https://192.0.2.1'}}]\n"

// inputsOf returns the bad inputs for each flag that names a file, an address or a folder. An input
// that neither begins nor ends with a slash is in the folder of the test. A slash at the end is not
// part of the value.
func inputsOf() map[string][]string {
	anyFile := []string{"none", "folder", "pipe", "binary", "broken.yaml", "text", "pod.yaml", "list.json"}
	with := func(more ...string) []string { return append(slices.Clone(anyFile), more...) }
	noFolder := []string{"pipe", "binary"}
	out := map[string][]string{
		"web.config.file":                   with("no-certificate.yaml", "no-key.yaml", "no-hash.yaml"),
		"kubeconfig":                        with("no-context.yaml", "no-authority.yaml"),
		"top kubeconfig":                    with("no-context.yaml", "no-authority.yaml"),
		"inventory.file":                    anyFile,
		"source.scrape.config":              with("no-authority-of-endpoint.yaml", "no-endpoint.yaml"),
		"top http.config.file":              with("no-ca.yaml"),
		"gateway exporter.http.config.file": with("no-ca.yaml"),
		"gateway exporter.metrics-path":     {"/debug/", "metrics/", "/api/v1/"},
		"gateway grafana.url":               {"/d/", "grafana.example.com/", "ftp://a/"},

		"kubelet.root":  noFolder,
		"path.podlogs":  noFolder,
		"path.procfs":   noFolder,
		"path.sysfs":    noFolder,
		"path.cdi":      noFolder,
		"path.kmsg":     {"folder", "pipe"},
		"incidents.dir": {"binary", "text", "text/below"},
		"state.dir":     {"binary", "text", "text/below"},

		"web.listen-address": {"/nonsense", "127.0.0.1/", "127.0.0.1:none/", "127.0.0.1:65536/", "vsock:///"},
		"top url":            {"/", "http:///", "ftp://a/", "://a/", "http://a b/"},
		"source.far":         {"/nonsense"},

		"kubelet.podresources-socket": {"/" + strings.Repeat("long/", 30)},
		"kubelet.pods-socket":         {"/" + strings.Repeat("long/", 30)},
	}
	for _, command := range []string{commandWhy} { // these ask the exporters as top does
		for _, flag := range []string{" kubeconfig", " http.config.file", " url"} {
			out[command+flag] = out[commandTop+flag]
		}
	}
	return out
}

// A flag with a bad file or address ends the program with status 2 and one line that names the flag
// and the file.
func TestBadFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	for name, content := range badFiles() {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	must.Do(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for flag, inputs := range inputsOf() {
		for _, input := range inputs {
			value := strings.TrimSuffix(input, "/")
			if input[0] != '/' && !strings.HasSuffix(input, "/") {
				value = filepath.Join(dir, input)
			}
			tryBad(t, dir, flag, value)
		}
	}
}

// tryBad runs the program with a bad value of a flag of the program or of a command.
func tryBad(t *testing.T, dir, flag, value string) {
	far := Source{Name: "far", Addressed: true, New: func(h driver.Host) (driver.Source, error) {
		_, err := os.Stat(h.Address)
		return nil, err
	}}
	args := []string{
		"--kubelet.podresources-socket=" + filepath.Join(dir, "kubelet.sock"), "--log.level=error",
		"--web.listen-address=127.0.0.1:0",
	}
	command, name, found := strings.Cut(flag, " ")
	switch {
	case !found:
		name = flag
	case command == commandTop:
		args = []string{command, "--once", "--all-nodes"}
	case command == commandWhy:
		args = []string{command, "--all-nodes", "team/train"}
	case command == commandGateway:
		kubeconfig := filepath.Join(dir, "kubeconfig")
		must.Do(t, os.WriteFile(kubeconfig, []byte(goodKubeconfig), 0o600))
		args = []string{commandGateway, "--exporter.namespace=a", "--kubeconfig=" + kubeconfig}
	default:
		args = append(args, command)
	}
	args = slices.DeleteFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--"+name+"=") || name == "url" && arg == "--all-nodes"
	})
	args = append(args, "--"+name+"="+value)
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // an accepted value starts the program
	defer cancel()
	status := Run(ctx, args, []Source{far}, &stdout, &stderr)
	said := stderr.String()
	expect.That(t, status == exitUsage && strings.Count(said, "\n") == 1,
		"%v: exit status %d, want %d and one line:\n%s", args, status, exitUsage, said)
	expect.That(t, strings.HasPrefix(said, "dra-exporter: --"+name+": ") && strings.Contains(said, value),
		"%v: does not name the flag and %s: %s", args, value, said)
	for _, unclear := range []string{":;", "; ;", "  "} {
		expect.That(t, !strings.Contains(said, unclear), "%v: has %q: %s", args, unclear, said)
	}
}

// Every flag that names a file, a folder, a socket or an address is in the table.
func TestBadFilesHasAllFlags(t *testing.T) {
	app := kingpin.New("dra-exporter", "")
	newOptions(app, []Source{{Name: "far", Addressed: true}})
	table := inputsOf()
	check := func(prefix string, flags []*kingpin.FlagModel) {
		for _, f := range flags {
			name := prefix + f.Name
			path := len(f.Default) > 0 && strings.ContainsAny(f.Default[0], "/:") && f.Name != "web.telemetry-path"
			names := slices.Contains([]string{"FILE", "FOLDER", "SOCKET", "URL"}, f.PlaceHolder)
			expect.That(t, !path && !names && !strings.Contains(f.Name, "file") || table[name] != nil,
				"no bad input for --%s", name)
		}
	}
	check("", app.Model().Flags)
	for _, c := range app.Model().Commands {
		if c.Hidden {
			continue
		}
		check(c.Name+" ", c.Flags)
	}
}

// apiServer starts an API server with two nodes, which passes requests to their exporters. It
// returns a kubeconfig, and a function that returns the requested paths. The named pods refuse all
// requests, as pods do that require credentials.
func apiServer(t *testing.T, refuse ...string) (kubeconfig string, asked func() []string) {
	var mu sync.Mutex
	var paths []string
	exporter := func(n int) string {
		return fmt.Sprintf(`{"metadata": {"namespace": "dra", "name": "x-%d"}, "spec": {"nodeName": "node-%d", "containers": [
			{"ports": [{"name": "metrics", "containerPort": 10985}]}]}, "status": {"phase": "Running"}}`, n, n)
	}
	rows := func(n int) string {
		return fmt.Sprintf(`{"time": "2026-11-23 12:00:00 UTC", "node": "node-%d", "devices": [{"driver": "gpu.example.com",
			"pool": "p", "device": "gpu-0", "id": "gpu.example.com/p/gpu-0", "state": "stalled", "holders": [{
			"claim": "team/train-%d", "pods": "team/rank-%d"}]}], "claims": [{"namespace": "team", "name": "train-%d",
			"device": "gpu-0", "state": "stalled"}], "pods": [{"namespace": "team", "name": "rank-%d", "device": "gpu-0"}],
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
