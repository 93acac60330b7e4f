// Package image writes a container image of one program. It needs no container engine and no
// registry.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Config describes an image.
type Config struct {
	Name    string // The full name: docker.io/library/workload:1.
	Program string // The path of a statically linked program. In the image it is /bin/program.
	Aliases []string
}

// Write writes the image as a tar file, as docker save does. In a container, the program can also
// be run by its aliases.
func Write(path string, c Config) error {
	tag, err := name.NewTag(c.Name)
	if err != nil {
		return err
	}
	root, err := rootOf(c)
	if err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil })
	if err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"PATH=/bin"}, Entrypoint: []string{"/bin/program"}}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	return tarball.WriteToFile(path, tag, image)
}

// rootOf returns the root file system as a tar file.
func rootOf(c Config) ([]byte, error) {
	program, err := os.ReadFile(c.Program)
	if err != nil {
		return nil, err
	}
	headers := []tar.Header{{Name: "bin/", Mode: 0o755}, {Name: "bin/program", Mode: 0o755, Size: int64(len(program))}}
	for _, alias := range c.Aliases {
		headers = append(headers, tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + alias, Linkname: "program"})
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		if err := w.WriteHeader(&headers[i]); err != nil {
			return nil, err
		}
		if _, err := w.Write(program[:headers[i].Size]); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	return b.Bytes(), err
}
