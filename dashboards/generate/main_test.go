package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestShipped compares the generated files with the shipped ones.
func TestShipped(t *testing.T) {
	dir := t.TempDir()
	status := run([]string{"-out=" + dir}, io.Discard)
	must.That(t, status == 0, "status %d", status)
	want, got := tree(t, dir), tree(t, "../out")
	for name, content := range want {
		expect.That(t, bytes.Equal(content, got[name]), "%s differs from the generated file", name)
	}
	for name := range got {
		_, ok := want[name]
		expect.That(t, ok, "%s is shipped but not generated", name)
	}
}

// One file alone is written on request.
func TestOnly(t *testing.T) {
	dir := t.TempDir()
	status := run([]string{"-out=" + dir, "-only=rules.yaml"}, io.Discard)
	must.That(t, status == 0, "status %d", status)
	if files := tree(t, dir); len(files) != 1 || len(files["rules.yaml"]) == 0 {
		t.Errorf("%d files, and %d bytes of rules", len(files), len(files["rules.yaml"]))
	}
	expect.Is(t, run([]string{"-out=" + dir, "-only=none.yaml"}, io.Discard), exitFailure,
		"a file that is not there: status")
}

// The rules of deployments/compose are those of -demo, and flags after it override its windows.
func TestDemo(t *testing.T) {
	want := must.Get(os.ReadFile("../../deployments/compose/rules.yaml"))(t)
	rules := func(args ...string) []byte {
		dir := t.TempDir()
		status := run(append([]string{"-out=" + dir, "-only=rules.yaml"}, args...), io.Discard)
		must.That(t, status == 0, "%q: status %d", args, status)
		return tree(t, dir)["rules.yaml"]
	}
	expect.That(t, bytes.Equal(rules("-demo"), want), "-demo differs from deployments/compose/rules.yaml")
	expect.That(t, bytes.Equal(rules("-demo=false"), rules()), "-demo=false is not the default")
	got := string(rules("-demo", "-idle.for=7s"))
	expect.That(t, strings.Contains(got, "for: 7s") && !strings.Contains(got, "for: 30s"),
		"-idle.for after -demo has no effect")
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
	must.Do(t, err)
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
