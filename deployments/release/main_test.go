package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
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
		Builder: "https://example.com/builder",
	}
	if err := r.pack(); err != nil {
		t.Fatal(err)
	}
	t.Run("Files", func(t *testing.T) { testFiles(t, r) })
	t.Run("Krew", func(t *testing.T) { testKrew(t, r) })
	t.Run("Provenance", func(t *testing.T) { testProvenance(t, r) })
	t.Run("SBOM", func(t *testing.T) { testSBOM(t, r) })
	t.Run("SameInputSameBytes", func(t *testing.T) { testSameBytes(t, r) })
	t.Run("Dirty", func(t *testing.T) { testDirty(t, r) })
	t.Run("BadInput", func(t *testing.T) { testBadInput(t, r) })
}

func testFiles(t *testing.T, r release) {
	t.Helper()
	want := []string{"SHA256SUMS", krewName}
	for _, artefact := range artefacts() {
		want = append(want, artefact, artefact+sbomSuffix, artefact+provenanceSuffix)
	}
	slices.Sort(want)
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

// testKrew: the manifest has the digest of the archive without cgo, and names a program in it.
func testKrew(t *testing.T, r release) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.Out, krewName))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []krewPlatform
		}
	}
	if err := yaml.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Name != "dra" || got.Spec.Version != "v1.2.3" || len(got.Spec.Platforms) != 1 {
		t.Fatalf("the manifest is %s", content)
	}
	p := got.Spec.Platforms[0]
	archive := filepath.Join(r.Out, filepath.Base(p.URI))
	packed, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if p.SHA256 != fmt.Sprintf("%x", sha256.Sum256(packed)) || p.Bin != p.Files[0]["to"] ||
		!slices.Contains(members(t, archive), p.Files[0]["from"]) || p.Selector.MatchLabels["arch"] != "amd64" {
		t.Errorf("the platform is %+v", p)
	}
}

func artefacts() []string {
	return []string{
		"dra-exporter-1.2.3.linux-amd64-purego.tar.gz", "dra-exporter-1.2.3.linux-amd64.image.tar",
		"dra-exporter-1.2.3.linux-amd64.tar.gz", "dra-exporter-1.2.3.tgz",
	}
}

// testProvenance: in-toto's own package accepts the statement of each artefact, which has its
// digest and the commit.
func testProvenance(t *testing.T, r release) {
	t.Helper()
	for _, artefact := range artefacts() {
		content, err := os.ReadFile(filepath.Join(r.Out, artefact+provenanceSuffix))
		if err != nil {
			t.Fatal(err)
		}
		var s intoto.Statement
		if err := protojson.Unmarshal(content, &s); err != nil {
			t.Fatal(err)
		}
		var p slsa.Provenance
		predicate, err := protojson.Marshal(s.GetPredicate())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Validate(), protojson.Unmarshal(predicate, &p), p.Validate()); err != nil {
			t.Errorf("%s: %v", artefact, err)
		}
		digest, err := digestOf(filepath.Join(r.Out, artefact))
		subject := s.GetSubject()[0]
		if err != nil || subject.GetName() != artefact || subject.GetDigest()["sha256"] != digest {
			t.Errorf("%s: the subject is %v, %v", artefact, subject, err)
		}
		if of := p.GetBuildDefinition().GetResolvedDependencies()[0]; of.GetDigest()["gitCommit"] != r.Revision {
			t.Errorf("%s is of %v", artefact, of)
		}
	}
}

// testSBOM: each artefact has a list of its components.
func testSBOM(t *testing.T, r release) {
	t.Helper()
	for artefact, want := range map[string][]string{
		artefacts()[0]: {"stdlib", "sigs.k8s.io/yaml"},
		artefacts()[1]: {"stdlib", "sigs.k8s.io/yaml", "/lib64/ld-linux-x86-64.so.2"},
		artefacts()[2]: {"stdlib", "sigs.k8s.io/yaml"},
		artefacts()[3]: {"example.com/dra-exporter"},
	} {
		f, err := os.Open(filepath.Join(r.Out, artefact+sbomSuffix))
		if err != nil {
			t.Fatal(err)
		}
		var bom cdx.BOM
		err = errors.Join(cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom), f.Close())
		if err != nil || bom.Metadata.Component.Name != artefact || bom.SpecVersion != cdx.SpecVersion1_6 {
			t.Fatalf("%s: %s of %s: %v", artefact, bom.SpecVersion, bom.Metadata.Component.Name, err)
		}
		names := map[string]bool{}
		for _, c := range *bom.Components {
			names[c.Name] = true
		}
		for _, name := range want {
			if !names[name] {
				t.Errorf("%s: %s is missing in %v", artefact, name, names)
			}
		}
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

// testDirty: if the tree has changes, no file claims to be built from a commit.
func testDirty(t *testing.T, r release) {
	t.Helper()
	r.Out, r.Version = filepath.Join(t.TempDir(), "out"), "1.2.3"+dirty
	if err := r.pack(); err != nil {
		t.Fatal(err)
	}
	all := names(t, r.Out)
	if len(all) < 2*len(artefacts()) ||
		slices.ContainsFunc(all, func(name string) bool { return strings.HasSuffix(name, provenanceSuffix) }) {
		t.Errorf("the files are %v", all)
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
