// Package layout tests the layout of the source tree: the entries of the top folder, the packages
// that others link, directly or indirectly, and that no file has a path of a developer's machine.
// The linters check the rules for direct imports.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	root   = "../.."
	module = "github.com/dra-exporter/dra-exporter"
)

func TestTopLevel(t *testing.T) {
	want := []string{
		".ci", ".dockerignore", ".gitattributes", ".github", ".gitignore", ".golangci.yml", "CHANGELOG.md", "CONTRIBUTING.md",
		"Dockerfile", "LICENSE", "METRICS.md",
		"Makefile", "README.md", "SECURITY.md", "dashboards", "deployments", "driver", "exporter", "go.mod", "go.sum",
		"podresources", "test",
	}
	seen := map[string]bool{}
	for _, path := range tracked(t) {
		top, _, _ := strings.Cut(path, "/")
		if !seen[top] && !slices.Contains(want, top) {
			t.Errorf("%s is not among the fixed entries of the top folder", top)
		}
		seen[top] = true
	}
}

func TestNoMachinePaths(t *testing.T) {
	// Split, so that this file does not contain them.
	names := []string{"/wo" + "rk", "/ro" + "ot", "/ho" + "me", "/Us" + "ers", "../sha" + "red"}
	path := regexp.MustCompile(`(^|[^\w.~/-])/(wo` + `rk|ro` + `ot|ho` + `me|Us` + `ers)/\w|\.\./sha` + `red\b`)
	find := func(content []byte) []byte {
		if !slices.ContainsFunc(names, func(name string) bool { return bytes.Contains(content, []byte(name)) }) {
			return nil // many times faster than the regular expression
		}
		return path.Find(content)
	}
	for _, text := range []string{
		"see /wo" + "rk/x", `"/ro` + `ot/go"`, "../sha" + "red/a", "(/ho" + "me/a", "=/Us" + "ers/a",
	} {
		expect.That(t, find([]byte(text)) != nil, "%q is not recognized as a path of a machine", text)
	}
	for _, path := range tracked(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		must.Do(t, err)
		content = bytes.ReplaceAll(content, []byte("/home/kubernetes/bin/nvidia"), nil) // path of the driver on GKE's nodes
		found := find(content)
		expect.That(t, found == nil, "%s has a path of a developer's machine: %q", path, found)
	}
}

func TestLinks(t *testing.T) {
	tests := []struct {
		name   string
		target string
		bad    func(linked) bool
		why    string
	}{
		{
			name: "driver", target: "./driver",
			bad: func(p linked) bool { return !p.Standard && p.ImportPath != module+"/driver" },
			why: "driver imports the standard library alone",
		},
		{
			name: "podresources", target: "./podresources",
			bad: func(p linked) bool {
				return p.ours() && p.ImportPath != module+"/driver" && p.ImportPath != module+"/podresources"
			},
			why: "podresources imports of ours only driver",
		},
		{
			name: "exporter", target: "./exporter",
			bad: func(p linked) bool {
				return p.under("k8s.io/client-go") || p.under("github.com/NVIDIA") || p.under(module+"/podresources/kube")
			},
			why: "the exporter knows no vendor and no API server",
		},
		{
			name: "program", target: "./exporter/cmd/...",
			bad: func(p linked) bool {
				return p.ours() && (strings.HasSuffix(p.ImportPath, "test") || p.under(module+"/test") ||
					p.under(module+"/exporter/api"))
			},
			why: "the shipped program simulates, tests and generates nothing",
		},
		{
			name: "program without testing", target: "./exporter/cmd/...",
			bad: func(p linked) bool {
				// go-dcgm has test helpers outside of _test.go files.
				testing := slices.Contains(p.Imports, "testing") && !p.Standard && !p.under("github.com/NVIDIA/go-dcgm")
				return testing || p.under("go.uber.org/goleak")
			},
			why: "the shipped program tests nothing",
		},
		{
			name: "program without dashboards", target: "./exporter/cmd/...",
			bad: func(p linked) bool {
				return p.under(module+"/dashboards") || p.under("github.com/prometheus/prometheus/promql") ||
					p.under("github.com/grafana/grafana-foundation-sdk")
			},
			why: "the shipped program parses no PromQL and makes no dashboards",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			packages := deps(t, tt.target)
			must.That(t, slices.ContainsFunc(packages, linked.ours), "%s has no package of ours", tt.target)
			for _, p := range packages {
				expect.That(t, !tt.bad(p), "%s links %s: %s", tt.target, p.ImportPath, tt.why)
			}
		})
	}
}

// TestImports checks the direction of imports below exporter: each package imports exactly these
// packages of this repository.
func TestImports(t *testing.T) {
	want := map[string][]string{
		"exporter/join":         {"driver", "podresources"},
		"exporter/distribution": nil,
		"exporter/fit":          {"driver", "exporter/join", "podresources"},
		"exporter/stall":        {"driver"},
		"exporter/timeline":     {"driver", "exporter/join", "podresources"},
		"exporter/ledger": {
			"driver", "exporter/distribution", "exporter/fit", "exporter/join", "exporter/ledger/book",
			"exporter/ledger/divide", "exporter/ledger/meter", "exporter/ledger/saved", "exporter/timeline", "podresources",
		},
		"exporter/ledger/book": {
			"driver", "exporter/distribution", "exporter/fit", "exporter/join", "exporter/stall", "exporter/timeline",
			"podresources",
		},
		"exporter/ledger/meter":  {"driver"},
		"exporter/ledger/divide": {"driver", "exporter/join", "exporter/ledger/meter", "podresources"},
		"exporter/exposition": {
			"driver", "exporter/distribution", "exporter/fit", "exporter/join", "exporter/ledger/book", "exporter/stall",
			"podresources",
		},
		"exporter/recorder": {
			"driver", "driver/nvidia/xid", "exporter/join", "exporter/ledger/book", "exporter/stall", "exporter/timeline",
			"podresources",
		},
		"exporter/archive":      {"driver", "exporter/state"},
		"exporter/ledger/saved": {"driver", "exporter/state/former"},
		"exporter/state":        {"driver", "exporter/state/former"},
		"exporter/state/former": {"driver"},
		"exporter/present": {
			"driver", "exporter/exposition", "exporter/fit", "exporter/join", "exporter/ledger/book",
			"exporter/recorder", "exporter/stall", "podresources",
		},
		"exporter/web": {
			"driver", "exporter/exposition", "exporter/present", "exporter/recorder", "exporter/web/client",
		},
		"exporter/web/access": {"driver", "exporter/web/client"},
		"exporter/web/client": nil,
		"exporter/web/decode": {"exporter/present"},
		"exporter/gateway": {
			"exporter/ledger/book", "exporter/present", "exporter/web", "exporter/web/access", "exporter/web/decode",
		},
		"exporter/check": {
			"driver", "exporter/join", "exporter/node", "exporter/present", "podresources",
			"podresources/holders", "podresources/kube",
		},
		"exporter/api": {
			"exporter/fit", "exporter/join", "exporter/ledger/book", "exporter/present", "exporter/recorder",
			"podresources",
		},
		"exporter/api/generate": {"exporter/api"},
		"exporter/top":          {"exporter/ledger/book", "exporter/present", "exporter/web/decode"},
		"exporter/node": {
			"driver", "driver/inventory", "podresources", "podresources/holders", "podresources/kube",
		},
		"exporter": {
			"driver", "exporter/exposition", "exporter/join", "exporter/ledger", "exporter/ledger/book",
			"exporter/recorder", "podresources", "podresources/holders",
		},
		"exporter/program": {
			"driver", "driver/scrape", "driver/sysfs", "exporter", "exporter/archive", "exporter/check",
			"exporter/exposition", "exporter/fit", "exporter/gateway", "exporter/ledger", "exporter/node",
			"exporter/present", "exporter/recorder", "exporter/stall", "exporter/state", "exporter/top",
			"exporter/web", "exporter/web/access", "podresources", "podresources/kube",
			"podresources/kube/events",
		},
	}
	seen := 0
	for _, p := range list(t, "./exporter/...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasSuffix(name, "test") || strings.HasPrefix(name, "exporter/cmd/") {
			continue // the program's list of sources imports what it lists
		}
		seen++
		var got []string
		for _, path := range p.Imports {
			if ours, ok := strings.CutPrefix(path, module+"/"); ok {
				got = append(got, ours)
			}
		}
		if allowed, known := want[name]; !known {
			t.Errorf("%s is a package that the table does not have", name)
		} else if !slices.Equal(got, allowed) {
			t.Errorf("%s imports %v, want %v", name, got, allowed)
		}
	}
	expect.That(t, seen >= len(want), "%d packages are listed, want %d", seen, len(want))
}

// Of this repository, a source imports only driver and packages that sources share, directly or
// indirectly.
func TestSources(t *testing.T) {
	shared := []string{"", "/sysfs", "/sysfs/drmcard", "/nvidia", "/nvidia/xid"} // below driver
	mayImport := map[string][]string{                                            // more than shared
		"/inventory":          {"/inventory", "/inventory/manifest"},
		"/inventory/manifest": {"/inventory/manifest"},
	}
	const drivers = "k8s.io/kubelet/pkg/apis" // the API of DRA drivers, which the source health reads
	sources := 0
	for path := range strings.Lines(output(t, "go", "list", "./driver/...")) {
		name := strings.TrimPrefix(strings.TrimSpace(path), module+"/driver")
		if strings.HasSuffix(name, "test") || slices.Contains(strings.Split(name, "/"), "fake") {
			continue
		}
		sources++
		for _, p := range deps(t, "./driver"+name) {
			below, inDriver := strings.CutPrefix(p.ImportPath, module+"/driver")
			allowed := inDriver && (below == name || slices.Contains(shared, below) || slices.Contains(mayImport[name], below))
			switch {
			case p.ours() && !allowed:
				t.Errorf("driver%s links %s, which is no part of it", name, p.ImportPath)
			case name == "/health" && p.under(drivers):
			case p.under("k8s.io") && len(mayImport[name]) == 0:
				t.Errorf("driver%s links %s: a source knows nothing of Kubernetes", name, p.ImportPath)
			}
		}
	}
	expect.That(t, sources >= 8, "%d sources were looked at", sources)
}

// Tests in bubbles need testmain.Main, which keeps them from crashing the race detector.
func TestBubbles(t *testing.T) {
	has := func(folder, text string) bool {
		files := must.Get(filepath.Glob(filepath.Join(root, folder, "*_test.go")))(t)
		return slices.ContainsFunc(files, func(path string) bool {
			content, err := os.ReadFile(path)
			return err == nil && bytes.Contains(content, []byte(text))
		})
	}
	folders := map[string]bool{}
	for _, path := range tracked(t) {
		folder := filepath.Dir(path)
		switch {
		case !strings.HasSuffix(path, "_test.go"), folders[folder], folder == "test/layout", !has(folder, "synctest.Test("):
			continue
		}
		folders[folder] = true
		if !has(folder, "testmain.Main(m)") && !has(folder, "exportertest.Main(m)") {
			t.Errorf("%s has tests in bubbles, but its TestMain is not testmain.Main", folder)
		}
	}
	expect.That(t, len(folders) >= 6, "only %d packages have tests in bubbles", len(folders))
}

// make test-deep finds the packages whose tests do less with -short by their calls of
// testing.Short, and packages with properties.
func TestShort(t *testing.T) {
	var got []string
	for _, path := range tracked(t) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/system/") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte("testing.Short()")) {
			got = append(got, path)
		}
	}
	want := []string{"exporter/exportertest/main.go"} // the number of cases of properties
	expect.That(t, slices.Equal(got, want), "besides tests, %v call testing.Short, want %v", got, want)
}

// linked is a package that a program or another package links.
type linked struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func (p linked) ours() bool { return p.under(module) }

func (p linked) under(path string) bool {
	return p.ImportPath == path || strings.HasPrefix(p.ImportPath, path+"/")
}

// deps returns target's packages and all that they import, directly or indirectly.
func deps(t *testing.T, target string) []linked {
	return list(t, "-deps", target)
}

// list lists the packages that go list has for the arguments.
func list(t *testing.T, args ...string) []linked {
	out := output(t, "go", append([]string{"list", "-json=ImportPath,Imports,Standard"}, args...)...)
	var all []linked
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var p linked
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		must.That(t, err == nil, "decode output of go list: %v", err)
		all = append(all, p)
	}
}

// tracked returns the files that git tracks. It also opens the index, so that go test's cache of
// results notices new files.
func tracked(t *testing.T) []string {
	_, _ = os.Stat(filepath.Join(root, ".git", "index")) // in a linked work tree, it is elsewhere
	out := output(t, "git", "-c", "safe.directory=*", "ls-files", "-z")
	paths := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	must.That(t, len(paths) >= 2, "git tracks %q", paths)
	return paths
}

// output runs a program in the top folder.
func output(t *testing.T, name string, args ...string) string {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.That(t, err == nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	return string(out)
}

// All delays of the decision about holders are in one table.
func TestTimesOfHolders(t *testing.T) {
	unit := regexp.MustCompile(`\btime\.(Millisecond|Second|Minute|Hour)\b`)
	var with []string
	for _, path := range tracked(t) {
		if filepath.Dir(path) != "podresources/holders" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		content := must.Get(os.ReadFile(filepath.Join(root, path)))(t)
		if unit.Match(content) {
			with = append(with, filepath.Base(path))
		}
	}
	if want := []string{"times.go"}; !slices.Equal(with, want) {
		t.Errorf("durations stand in %q, want %q", with, want)
	}
}
