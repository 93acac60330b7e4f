package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// build compiles a program that needs the C library and opens others by name, like dra-exporter.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.CommandContext(t.Context(), "cc", "-o", program, "testdata/program.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func config(program string) Config {
	return Config{
		Program: program, Name: "example.com/dra-exporter:test", Version: "1.2.3", Revision: "abc",
		Created: time.Unix(1_700_000_000, 0).UTC(),
	}
}

func TestSameInputSameBytes(t *testing.T) {
	program, dir := build(t), t.TempDir()
	var images [2]string
	for i, name := range []string{"a.tar", "b.tar"} {
		path := filepath.Join(dir, name)
		if err := Write(path, config(program)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		images[i] = string(data)
	}
	if images[0] != images[1] {
		t.Error("the images differ")
	}
}

// The program runs in the image's root file system alone, and finds a mounted library.
func TestProgramRunsInTheRoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := Write(path, config(build(t))); err != nil {
		t.Fatal(err)
	}
	image := load(t, path)
	root := t.TempDir()
	unpack(t, mutate.Extract(image), root)
	cmd := exec.CommandContext(t.Context(), entrypoint)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "opened libm.so.6\n" {
		t.Errorf("%v: %s", err, out)
	}
	if shells, err := filepath.Glob(filepath.Join(root, "*bin", "*sh")); err != nil || len(shells) > 0 {
		t.Errorf("there are shells: %v %v", shells, err)
	}
}

func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := Write(path, config(build(t))); err != nil {
		t.Fatal(err)
	}
	got, err := load(t, path).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		Entrypoint: []string{"/usr/bin/dra-exporter"}, User: "0:0", ExposedPorts: map[string]struct{}{"10985/tcp": {}},
		Env: []string{"PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "dra-exporter", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":  "https://github.com/dra-exporter/dra-exporter",
			"org.opencontainers.image.version": "1.2.3", "org.opencontainers.image.revision": "abc",
		},
	}
	if diff := cmp.Diff(want, got.Config); diff != "" {
		t.Error(diff)
	}
	if got.OS != "linux" || got.Architecture == "" || got.Created.Unix() != 1_700_000_000 {
		t.Errorf("the image is for %s/%s, created at %v", got.OS, got.Architecture, got.Created)
	}
}

func TestBadInput(t *testing.T) {
	for name, c := range map[string]Config{
		"no program":    config("/nowhere"),
		"not a program": config("image.go"),
		"no name":       {Program: build(t), Name: "Not A Name"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image.tar")
			if err := Write(path, c); err == nil {
				t.Error("it is accepted")
			}
			if _, err := os.Stat(path); err == nil {
				t.Error("a file is left over")
			}
		})
	}
}

// load reads the image from the tar file by its name.
func load(t *testing.T, path string) v1.Image {
	t.Helper()
	tag, err := name.NewTag("example.com/dra-exporter:test")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func unpack(t *testing.T, content io.Reader, root string) {
	t.Helper()
	r := tar.NewReader(content)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, data, os.FileMode(h.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
