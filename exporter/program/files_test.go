package program

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	t.Helper()
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
