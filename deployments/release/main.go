// Command release packs the files of a release from built programs: archives of the programs,
// images for clusters without a registry, the Helm chart, and checksums. The same input gives the
// same bytes. It uploads and signs nothing. See make release.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"

	"github.com/dra-exporter/dra-exporter/deployments/image"
)

// release describes a release.
type release struct {
	Out      string // the folder to write; its content is replaced
	Programs string // the folder of the built programs, named by platform: linux-amd64, linux-arm64-purego
	Tree     string // the root of the source tree
	Image    string // name of the image, without its tag
	Version  string
	Revision string
	Created  time.Time
}

// purego is the suffix of a program that was built without cgo, and therefore without the sources
// that need a vendor's library.
const purego = "-purego"

func main() {
	var r release
	created := flag.Int64("created", 0, "Unix time of all files in the release")
	flag.StringVar(&r.Out, "out", "", "the folder to write")
	flag.StringVar(&r.Programs, "programs", "", "the folder of the built programs, named by platform")
	flag.StringVar(&r.Tree, "tree", "..", "the root of the source tree")
	flag.StringVar(&r.Image, "image", "", "name of the image, without its tag")
	flag.StringVar(&r.Version, "version", "", "version of the release (SemVer, without v)")
	flag.StringVar(&r.Revision, "revision", "", "commit of the release")
	flag.Parse()
	r.Created = time.Unix(*created, 0).UTC()
	if err := r.pack(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r release) pack() error {
	platforms, err := r.platforms()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(r.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return err
	}
	for _, platform := range platforms {
		if err := r.archive(platform); err != nil {
			return fmt.Errorf("archive of %s: %w", platform, err)
		}
		if strings.HasSuffix(platform, purego) {
			continue
		}
		if err := r.image(platform); err != nil {
			return fmt.Errorf("image of %s: %w", platform, err)
		}
	}
	if err := r.chart(); err != nil {
		return err
	}
	return r.checksums()
}

// platforms returns the platforms of the built programs.
func (r release) platforms() ([]string, error) {
	entries, err := os.ReadDir(r.Programs)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}
	if len(out) == 0 {
		return nil, errors.New("no programs to pack")
	}
	return out, nil
}

func (r release) name(platform string) string {
	return "dra-exporter-" + r.Version + "." + platform
}

// archive packs a program with its documents.
func (r release) archive(platform string) error {
	var content bytes.Buffer
	zipped := gzip.NewWriter(&content)
	w := tar.NewWriter(zipped)
	for _, file := range []struct {
		name, path string
		mode       int64
	}{
		{"CHANGELOG.md", filepath.Join(r.Tree, "CHANGELOG.md"), 0o644},
		{"LICENSE", filepath.Join(r.Tree, "LICENSE"), 0o644},
		{"README.md", filepath.Join(r.Tree, "README.md"), 0o644},
		{"dra-exporter", filepath.Join(r.Programs, platform), 0o755},
	} {
		data, err := os.ReadFile(file.path)
		if err != nil {
			return err
		}
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: r.name(platform) + "/" + file.name, Mode: file.mode, Size: int64(len(data)),
			ModTime: r.Created,
		}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Out, r.name(platform)+".tar.gz"), content.Bytes(), 0o644)
}

// image packs the image of a program.
func (r release) image(platform string) error {
	return image.Write(filepath.Join(r.Out, r.name(platform)+".image.tar"), image.Config{
		Program: filepath.Join(r.Programs, platform), Name: r.Image + ":" + r.Version, Version: r.Version,
		Revision: r.Revision, Created: r.Created,
	})
}

// chart packs the Helm chart, with the image of the same version as default.
func (r release) chart() error {
	c, err := loader.LoadDir(filepath.Join(r.Tree, "deployments", "helm", "dra-exporter"))
	if err != nil {
		return fmt.Errorf("load chart: %w", err)
	}
	const images = "artifacthub.io/images"
	asked := c.Metadata.Annotations[images]
	c.Metadata.Annotations[images] = strings.ReplaceAll(asked, ":"+c.Metadata.AppVersion, ":"+r.Version)
	c.Metadata.Version, c.Metadata.AppVersion = r.Version, r.Version
	c.ModTime, c.SchemaModTime = r.Created, r.Created
	for _, files := range [][]*common.File{c.Raw, c.Templates, c.Files} {
		for _, f := range files {
			f.ModTime = r.Created
		}
	}
	if _, err := util.Save(c, r.Out); err != nil {
		return fmt.Errorf("save chart: %w", err)
	}
	return nil
}

// checksums writes SHA256SUMS, as sha256sum --check reads it.
func (r release) checksums() error {
	entries, err := os.ReadDir(r.Out)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(r.Out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), entry.Name())
	}
	return os.WriteFile(filepath.Join(r.Out, "SHA256SUMS"), sums.Bytes(), 0o644)
}
