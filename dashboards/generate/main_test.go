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
	out, chart := t.TempDir(), t.TempDir()
	status := run([]string{"-out=" + out, "-chart=" + chart}, io.Discard)
	must.That(t, status == 0, "status %d", status)
	for dir, shipped := range map[string]string{out: "../out", chart: "../../deployments/helm/dra-exporter/files"} {
		want, got := tree(t, dir), tree(t, shipped)
		for name, content := range want {
			expect.That(t, bytes.Equal(content, got[name]), "%s: %s differs from the generated file", shipped, name)
		}
		for name := range got {
			_, ok := want[name]
			expect.That(t, ok, "%s: %s is shipped but not generated", shipped, name)
		}
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

// The rules of deployments/compose have its values.
func TestValues(t *testing.T) {
	dir := t.TempDir()
	status := run([]string{"-out=" + dir, "-only=rules.yaml", "-values=../../deployments/compose/values.yaml"}, io.Discard)
	must.That(t, status == 0, "status %d", status)
	want := must.Get(os.ReadFile("../../deployments/compose/rules.yaml"))(t)
	expect.That(t, bytes.Equal(tree(t, dir)["rules.yaml"], want), "deployments/compose/rules.yaml is another file")
}

func tree(t *testing.T, root string) map[string][]byte {
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
	values := func(text string) string {
		path := filepath.Join(t.TempDir(), "values.yaml")
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		return "-values=" + path
	}
	tests := []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-help"}, 0, "-values"},
		{[]string{"-idle.window=2h"}, exitUsage, "idle.window"},
		{[]string{"-values=/nowhere"}, exitFailure, "/nowhere"},
		{[]string{values("prometheusRule: {idle: {window: soon}}")}, exitFailure, "soon"},
		{[]string{values("prometheusRule: {idle: {windw: 2h}}")}, exitFailure, "windw"},
		{[]string{values("prometheusRule: {idle: {usedShare: 7}}")}, exitFailure, "idle used share"},
		{[]string{values("compat: {interval: 10ms}")}, exitFailure, "compat interval"},
		{[]string{values("gateway: {url: dra.example.com}")}, exitFailure, "gateway"},
		{[]string{"-out=" + file}, exitFailure, "make folder"},
	}
	for _, tt := range tests {
		var stderr strings.Builder
		if status := run(append([]string{"-out=" + t.TempDir()}, tt.args...), &stderr); status != tt.status ||
			!strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%v: status %d: %s", tt.args, status, &stderr)
		}
	}
}
