package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// TestRelease packs a release of a small program instead of dra-exporter, with and without cgo.
func TestRelease(t *testing.T) {
	programs := filepath.Join(t.TempDir(), "programs")
	for platform, cgo := range map[string]string{"linux-amd64": "1", "linux-amd64" + purego: "0"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o",
			filepath.Join(programs, platform), "./testdata/program")
		build.Env = append(build.Environ(), "CGO_ENABLED="+cgo, "GOARCH=amd64")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r := release{
		Out: filepath.Join(t.TempDir(), "out"), Programs: programs, Tree: "../..", Image: "example.com/dra-exporter",
		Version: "1.2.3", Revision: strings.Repeat("ab", 20), Created: time.Unix(1_700_000_000, 0).UTC(),
	}
	if err := r.pack(); err != nil {
		t.Fatal(err)
	}
	t.Run("Files", func(t *testing.T) { testFiles(t, r) })
	t.Run("SameInputSameBytes", func(t *testing.T) { testSameBytes(t, r) })
	t.Run("BadInput", func(t *testing.T) { testBadInput(t, r) })
}

func testFiles(t *testing.T, r release) {
	t.Helper()
	want := []string{
		"SHA256SUMS", "dra-exporter-1.2.3.linux-amd64-purego.tar.gz", "dra-exporter-1.2.3.linux-amd64.image.tar",
		"dra-exporter-1.2.3.linux-amd64.tar.gz", "dra-exporter-1.2.3.tgz",
	}
	if diff := cmp.Diff(want, names(t, r.Out)); diff != "" {
		t.Error(diff)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = r.Out
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != len(want)-1 {
		t.Errorf("%v: %s", err, out)
	}
	in := "dra-exporter-1.2.3.linux-amd64/"
	if diff := cmp.Diff([]string{in + "CHANGELOG.md", in + "LICENSE", in + "README.md", in + "dra-exporter"},
		members(t, filepath.Join(r.Out, "dra-exporter-1.2.3.linux-amd64.tar.gz"))); diff != "" {
		t.Error(diff)
	}
	c, err := loader.LoadFile(filepath.Join(r.Out, "dra-exporter-1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != "1.2.3" || c.Metadata.AppVersion != "1.2.3" || len(c.Templates) == 0 || c.Schema == nil ||
		!strings.Contains(c.Metadata.Annotations["artifacthub.io/images"], "dra-exporter:1.2.3\n") {
		t.Errorf("the chart is %+v with %d templates", c.Metadata, len(c.Templates))
	}
}

func testSameBytes(t *testing.T, r release) {
	t.Helper()
	again := r
	again.Out = filepath.Join(t.TempDir(), "again")
	if err := again.pack(); err != nil {
		t.Fatal(err)
	}
	var sums [2]string
	for i, out := range []string{r.Out, again.Out} {
		data, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(data)
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Error(diff)
	}
}

func testBadInput(t *testing.T, r release) {
	t.Helper()
	r.Out, r.Version = filepath.Join(t.TempDir(), "out"), "57a17ff"
	if err := r.pack(); err == nil || !strings.Contains(err.Error(), "57a17ff") {
		t.Errorf("error %v for a version that is not SemVer", err)
	}
	if err := (release{Programs: t.TempDir()}).pack(); err == nil {
		t.Error("a release without programs is packed")
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// members returns the files of an archive and checks that all have the time of the release.
func members(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(out)
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1_700_000_000 {
			t.Errorf("%s has the time %v", h.Name, h.ModTime)
		}
		out = append(out, h.Name)
	}
}
