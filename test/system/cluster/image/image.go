// Package image writes a container image of one program. It needs no container engine and no
// registry.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// The media types of the OCI image specification.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Config describes an image.
type Config struct {
	Name    string // The full name: docker.io/library/workload:1.
	Program string // The path of a statically linked program. In the image it is /bin/program.
	Aliases []string
}

// descriptor refers to another part of an image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type object = map[string]any

// Write writes the image as a tar file of an OCI layout, which containerd can import. In a
// container, the program can also be run by its aliases.
func Write(path string, c Config) error {
	program, err := os.ReadFile(c.Program)
	if err != nil {
		return fmt.Errorf("read the image's program: %w", err)
	}
	var b bytes.Buffer
	if err := write(&b, c, program); err != nil {
		return fmt.Errorf("make image %s: %w", c.Name, err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write image %s: %w", c.Name, err)
	}
	return nil
}

func write(w io.Writer, c Config, program []byte) error {
	root, err := layer(program, c.Aliases)
	if err != nil {
		return err
	}
	out := layout{w: tar.NewWriter(w)}
	layers := out.blob(layerType, root)
	config := out.document(configType, object{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       object{"Env": []string{"PATH=/bin"}, "Entrypoint": []string{"/bin/program"}},
		"rootfs":       object{"type": "layers", "diff_ids": []string{layers.Digest}},
	})
	manifest := out.document(manifestType, object{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layers},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": c.Name}
	out.json("index.json", object{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{manifest}})
	out.json("oci-layout", object{"imageLayoutVersion": "1.0.0"})
	return out.close()
}

// layer returns the root file system as a tar file.
func layer(program []byte, aliases []string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	headers := []tar.Header{
		{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "bin/program", Mode: 0o755, Size: int64(len(program))},
	}
	for _, alias := range aliases {
		headers = append(headers, tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + alias, Linkname: "program"})
	}
	for i := range headers {
		if err := w.WriteHeader(&headers[i]); err != nil {
			return nil, err
		}
		if headers[i].Size > 0 {
			if _, err := w.Write(program); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// layout writes the files of an OCI layout. After an error it writes nothing more.
type layout struct {
	w   *tar.Writer
	err error
}

func (l *layout) close() error {
	if l.err != nil {
		return l.err
	}
	return l.w.Close()
}

func (l *layout) file(name string, content []byte) {
	if l.err != nil {
		return
	}
	if l.err = l.w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); l.err == nil {
		_, l.err = l.w.Write(content)
	}
}

// blob writes content to a file that is named after its digest.
func (l *layout) blob(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	l.file("blobs/sha256/"+digest, content)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
}

func (l *layout) document(mediaType string, o object) descriptor {
	content, err := json.Marshal(o)
	if l.err == nil {
		l.err = err
	}
	return l.blob(mediaType, content)
}

func (l *layout) json(name string, o object) {
	content, err := json.Marshal(o)
	if l.err == nil {
		l.err = err
	}
	l.file(name, content)
}
