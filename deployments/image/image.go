// Package image builds the container image of dra-exporter without a container engine and without a
// registry. The image contains the program, the C library that it links, and certificates. The
// package writes it as an OCI layout in a tar file, which containerd and podman load.
//
// go-containerregistry makes the image and the layout. It does not collect the libraries of a
// program, nor does ko, which builds without cgo; and its tar files are those of docker save.
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
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
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

// Write writes the image as a tar file of an OCI layout.
func Write(path string, c Config) error {
	image, err := Build(c)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a file that is left over does no harm
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	ref, err := name.NewTag(c.Name)
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	annotations := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": ref.Name(), "org.opencontainers.image.ref.name": ref.TagStr(),
	})
	if err := out.AppendImage(image, annotations); err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	return archive(path, dir, c.Created)
}

// Build builds the image: one layer with the root file system, and the settings of the Dockerfile.
func Build(c Config) (v1.Image, error) {
	files, err := filesOf(c.Program)
	if err != nil {
		return nil, err
	}
	content, err := root(files, c.Created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	machine, err := architecture(c.Program)
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON),
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

// filesOf returns the files of an image of a program by their path in it.
func filesOf(program string) (map[string]string, error) {
	files := map[string]string{entrypoint: program}
	if _, err := os.Stat(certificates); err == nil {
		files[certificates] = certificates
	}
	if err := addLibraries(files, program, map[string]bool{}); err != nil {
		return nil, err
	}
	return files, nil
}

// addLibraries adds the program's interpreter and all libraries that it is linked with, directly or
// indirectly. The vendors' libraries are not included: the program opens them at run time.
func addLibraries(files map[string]string, path string, seen map[string]bool) error {
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
			if err := addLibrary(files, library, f.Machine, seen); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", path, err)
	}
	for _, library := range needed {
		if err := addLibrary(files, library, f.Machine, seen); err != nil {
			return err
		}
	}
	return nil
}

func addLibrary(files map[string]string, library string, machine elf.Machine, seen map[string]bool) error {
	if seen[library] {
		return nil
	}
	seen[library] = true
	from, to, err := findLibrary(library, machine)
	if err != nil {
		return err
	}
	files[to] = from
	return addLibraries(files, from, seen)
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
	folders := map[string]bool{"/tmp": true, "/etc": true, "/host": true}
	for path := range files {
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(folders)) {
		mode := int64(0o755)
		if path == "/tmp" {
			mode = 0o1777
		}
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: path[1:] + "/", Mode: mode,
			ModTime: created,
		}); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[path])
		if err != nil {
			return nil, err
		}
		if err := addFile(w, path[1:], data, 0o755, created); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		addFile(w, "etc/passwd", []byte("root:x:0:0:root:/:/sbin/nologin\n"), 0o644, created),
		addFile(w, "etc/nsswitch.conf", []byte("hosts: files dns\n"), 0o644, created),
		w.Close(),
	)
	return b.Bytes(), err
}

func addFile(w *tar.Writer, path string, data []byte, mode int64, created time.Time) error {
	if err := w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(data)),
		ModTime: created,
	}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// archive writes a folder as a tar file.
func archive(path, dir string, created time.Time) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	files := os.DirFS(dir)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return addFile(w, name, data, 0o644, created)
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
