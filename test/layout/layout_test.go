// Package layout holds the tree to its layout: what lies at the top, what the packages link, and that nothing in it
// names the machine that it was written on. The linters hold direct imports to their rules; here counts what comes in
// through others too.
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
)

const (
	root   = "../.."
	module = "github.com/dra-exporter/dra-exporter"
)

func TestTopLevel(t *testing.T) {
	want := []string{
		".ci", ".dockerignore", ".gitattributes", ".gitignore", ".golangci.yml", "CHANGELOG.md", "Dockerfile", "LICENSE", "METRICS.md",
		"Makefile", "README.md", "SECURITY.md", "dashboards", "deployments", "driver", "exporter", "go.mod", "go.sum", "podresources", "test",
	}
	seen := map[string]bool{}
	for _, path := range tracked(t) {
		top, _, _ := strings.Cut(path, "/")
		if !seen[top] && !slices.Contains(want, top) {
			t.Errorf("%s lies at the top of the tree, whose content is fixed", top)
		}
		seen[top] = true
	}
}

func TestNoMachinePaths(t *testing.T) {
	// In pieces, so that this file holds none of them.
	paths := regexp.MustCompile(`(^|[^\w.~/-])/(wo` + `rk|ro` + `ot|ho` + `me|Us` + `ers)/\w|\.\./sha` + `red\b`)
	for _, text := range []string{"see /wo" + "rk/x", `"/ro` + `ot/go"`, "../sha" + "red/a"} {
		if !paths.MatchString(text) {
			t.Errorf("%q passes for no path of a machine", text)
		}
	}
	for _, path := range tracked(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.ReplaceAll(content, []byte("/home/kubernetes/bin/nvidia"), nil) // where GKE's nodes keep the driver
		if found := paths.Find(content); found != nil {
			t.Errorf("%s names a path of one machine: %q", path, found)
		}
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
				return p.ours() && (strings.HasSuffix(p.ImportPath, "test") || p.under(module+"/driver/sim") || p.under(module+"/test"))
			},
			why: "the shipped program simulates and tests nothing",
		},
		{
			name: "program without testing", target: "./exporter/cmd/...",
			bad: func(p linked) bool {
				// go-dcgm keeps helpers of its tests among its own files.
				testing := slices.Contains(p.Imports, "testing") && !p.Standard && !p.under("github.com/NVIDIA/go-dcgm")
				return testing || p.under("go.uber.org/goleak")
			},
			why: "the shipped program tests nothing",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			packages := deps(t, tt.target)
			if !slices.ContainsFunc(packages, linked.ours) {
				t.Fatalf("%s has no package of ours", tt.target)
			}
			for _, p := range packages {
				if tt.bad(p) {
					t.Errorf("%s links %s: %s", tt.target, p.ImportPath, tt.why)
				}
			}
		})
	}
}

// linked is a package among those that a program or a package needs.
type linked struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func (p linked) ours() bool { return p.under(module) }

func (p linked) under(path string) bool {
	return p.ImportPath == path || strings.HasPrefix(p.ImportPath, path+"/")
}

// deps lists target's packages and all that they import, directly or not.
func deps(t *testing.T, target string) []linked {
	t.Helper()
	out := output(t, "go", "list", "-deps", "-json=ImportPath,Imports,Standard", target)
	var all []linked
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var p linked
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("decode what go list says: %v", err)
		}
		all = append(all, p)
	}
}

// tracked lists the files that git tracks. It looks at the index itself too, so that go test's cache of results
// notices a file that comes.
func tracked(t *testing.T) []string {
	t.Helper()
	_, _ = os.Stat(filepath.Join(root, ".git", "index")) // elsewhere in a linked work tree
	out := output(t, "git", "-c", "safe.directory=*", "ls-files", "-z")
	paths := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	if len(paths) < 2 {
		t.Fatalf("git tracks %q", paths)
	}
	return paths
}

// output runs a program at the root of the tree.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}
