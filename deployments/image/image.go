// Package image builds the container image of dra-exporter without a container engine and without a
// registry. The image contains the program, the C library that it links, and certificates.
//
// go-containerregistry makes the image and its file, as docker save does: docker, podman and
// containerd load it. It does not collect the libraries of a program, nor does ko, which builds
// without cgo.
package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Config describes an image.
type Config struct {
	Program  string // path of the built program
	Name     string // of the image, with its tag
	Version  string
	Revision string
	Created  time.Time // of all files, so that the same input gives the same bytes
}

const (
	entrypoint   = "/usr/bin/dra-exporter"
	certificates = "/etc/ssl/certs/ca-certificates.crt"
)

// Write writes the image as a tar file, as docker save does.
func Write(path string, c Config) error {
	ref, err := name.NewTag(c.Name)
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	image, err := Build(c)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(path, ref, image); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// Build builds the image: one layer with the root file system, and the settings of the Dockerfile.
func Build(c Config) (v1.Image, error) {
	files := map[string]string{entrypoint: c.Program}
	if _, err := os.Stat(certificates); err == nil {
		files[certificates] = certificates
	}
	if err := addLibraries(files, c.Program); err != nil {
		return nil, err
	}
	machine, err := architecture(c.Program)
	if err != nil {
		return nil, err
	}
	content, err := root(files, c.Created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	image, err := mutate.Append(empty.Image,
		mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: c.Created}, CreatedBy: "make image-tar"}})
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", machine, v1.Time{Time: c.Created}
	config.Config = v1.Config{
		Entrypoint: []string{entrypoint}, User: "0:0", ExposedPorts: map[string]struct{}{"10985/tcp": {}},
		Env: []string{"PATH=/usr/bin", "SSL_CERT_FILE=" + certificates},
		Labels: map[string]string{
			"org.opencontainers.image.title": "dra-exporter", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":  "https://github.com/dra-exporter/dra-exporter",
			"org.opencontainers.image.version": c.Version, "org.opencontainers.image.revision": c.Revision,
		},
	}
	return mutate.ConfigFile(image, config)
}

// addLibraries adds the program's interpreter and all libraries that it is linked with, directly or
// indirectly. The vendors' libraries are not included: the program opens them at run time.
func addLibraries(files map[string]string, path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close() //nolint:errcheck // the file was only read
	if interpreter := interpreterOf(f); interpreter != "" {
		from, _, err := findLibrary(filepath.Base(interpreter), f.Machine)
		if err != nil {
			return err
		}
		files[interpreter] = from
		// Libraries that the program opens at run time need the other parts of the C library.
		for _, library := range []string{
			"libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libresolv.so.2",
			"libnss_files.so.2", "libnss_dns.so.2",
		} {
			if err := addLibrary(files, library, f.Machine); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", path, err)
	}
	for _, library := range needed {
		if err := addLibrary(files, library, f.Machine); err != nil {
			return err
		}
	}
	return nil
}

func addLibrary(files map[string]string, library string, machine elf.Machine) error {
	from, to, err := findLibrary(library, machine)
	if err != nil || files[to] != "" {
		return err
	}
	files[to] = from
	return addLibraries(files, from)
}

// findLibrary returns the path of a library for an architecture and its path in the image. Debian
// has a folder of its own for libraries of other architectures (libc6-arm64-cross).
func findLibrary(library string, machine elf.Machine) (from, to string, err error) {
	triplet := map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}[machine]
	native := "/lib/" + triplet
	for _, folder := range []string{
		native, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
		"/usr/" + triplet + "/lib",
	} {
		path := filepath.Join(folder, library)
		f, err := elf.Open(path)
		if err != nil {
			continue
		}
		same := f.Machine == machine
		f.Close() //nolint:errcheck // the file was only read
		switch {
		case !same:
		case folder == "/usr/"+triplet+"/lib":
			return path, filepath.Join(native, library), nil
		default:
			return path, path, nil
		}
	}
	return "", "", fmt.Errorf("library %s for %v: %w", library, machine, fs.ErrNotExist)
}

func interpreterOf(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			if err == nil {
				return strings.TrimRight(string(data), "\x00")
			}
		}
	}
	return ""
}

func architecture(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close() //nolint:errcheck // the file was only read
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	default:
		return "", fmt.Errorf("%s is for %v", program, f.Machine)
	}
}

// root writes a root file system as a tar file. Folders precede their files.
func root(files map[string]string, created time.Time) ([]byte, error) {
	content := map[string][]byte{
		"/etc/passwd": []byte("root:x:0:0:root:/:/sbin/nologin\n"), "/etc/nsswitch.conf": []byte("hosts: files dns\n"),
	}
	headers := map[string]*tar.Header{"/tmp/": {Mode: 0o1777}, "/host/": {Mode: 0o755}}
	for path, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		content[path] = data
	}
	for path, data := range content {
		headers[path] = &tar.Header{Mode: 0o755, Size: int64(len(data))}
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			headers[dir+"/"] = &tar.Header{Mode: 0o755}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(headers)) {
		h := headers[path]
		h.Name, h.ModTime = path[1:], created
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content[path]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
