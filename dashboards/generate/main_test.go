package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestShipped compares the generated files with the shipped ones.
func TestShipped(t *testing.T) {
	dir := t.TempDir()
	if status := run([]string{"-out=" + dir}, io.Discard); status != 0 {
		t.Fatalf("status %d", status)
	}
	want, got := tree(t, dir), tree(t, "../out")
	for name, content := range want {
		if !bytes.Equal(content, got[name]) {
			t.Errorf("%s differs from the generated file", name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is shipped but not generated", name)
		}
	}
}

// One file alone is written on request.
func TestOnly(t *testing.T) {
	dir := t.TempDir()
	if status := run([]string{"-out=" + dir, "-only=rules.yaml"}, io.Discard); status != 0 {
		t.Fatalf("status %d", status)
	}
	if files := tree(t, dir); len(files) != 1 || len(files["rules.yaml"]) == 0 {
		t.Errorf("%d files, and %d bytes of rules", len(files), len(files["rules.yaml"]))
	}
	if status := run([]string{"-out=" + dir, "-only=none.yaml"}, io.Discard); status != exitFailure {
		t.Errorf("a file that is not there: status %d", status)
	}
}

// The rules of deployments/compose are those of -demo, and flags after it override its windows.
func TestDemo(t *testing.T) {
	want := must.Get(os.ReadFile("../../deployments/compose/rules.yaml"))(t)
	rules := func(args ...string) []byte {
		dir := t.TempDir()
		if status := run(append([]string{"-out=" + dir, "-only=rules.yaml"}, args...), io.Discard); status != 0 {
			t.Fatalf("%q: status %d", args, status)
		}
		return tree(t, dir)["rules.yaml"]
	}
	if !bytes.Equal(rules("-demo"), want) {
		t.Error("-demo differs from deployments/compose/rules.yaml")
	}
	if !bytes.Equal(rules("-demo=false"), rules()) {
		t.Error("-demo=false is not the default")
	}
	got := string(rules("-demo", "-idle.for=7s"))
	if !strings.Contains(got, "for: 7s") || strings.Contains(got, "for: 30s") {
		t.Error("-idle.for after -demo has no effect")
	}
}

func tree(t *testing.T, root string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		out[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBadUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	tests := []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-idle.window=soon"}, exitUsage, "idle.window"},
		{[]string{"-help"}, 0, "idle.used-share"},
		{[]string{"-out=" + t.TempDir(), "-idle.used-share=7"}, exitFailure, "idle used share"},
		{[]string{"-out=" + file}, exitFailure, "make folder"},
	}
	for _, tt := range tests {
		var stderr strings.Builder
		if status := run(tt.args, &stderr); status != tt.status || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%v: status %d: %s", tt.args, status, &stderr)
		}
	}
}
