package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbomSuffix is added to the name of an artefact for its list of components.
const sbomSuffix = ".cdx.json"

// sbom writes the list of components of an artefact with a program, in CycloneDX 1.6: the modules
// in the program's build information, and the other files of an image. The same artefact gives the
// same bytes.
func (r release) sbom(artefact, platform string, files map[string]string) error {
	program := filepath.Join(r.Programs, platform)
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read how the program was built: %w", err)
	}
	components := []cdx.Component{library("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, library(m.Path, m.Version))
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if files[path] == program {
			continue
		}
		sum, err := digestOf(files[path])
		if err != nil {
			return err
		}
		components = append(components, cdx.Component{
			BOMRef: "file:" + path, Type: cdx.ComponentTypeFile, Name: path, Hashes: sha256Of(sum),
		})
	}
	return r.writeSBOM(artefact, cdx.ComponentTypeApplication, components)
}

// chartSBOM writes the list of components of the chart: its image.
func (r release) chartSBOM(artefact string) error {
	return r.writeSBOM(artefact, cdx.ComponentTypeData, []cdx.Component{{
		BOMRef: r.Image + ":" + r.Version, Type: cdx.ComponentTypeContainer, Name: r.Image, Version: r.Version,
	}})
}

func (r release) writeSBOM(artefact string, kind cdx.ComponentType, components []cdx.Component) error {
	digest, err := digestOf(filepath.Join(r.Out, artefact))
	if err != nil {
		return err
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(digest)
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.Created.Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: "artefact", Type: kind, Name: artefact, Version: r.Version, Hashes: sha256Of(digest),
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	bom.Components = &components
	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil { // more tools read it than the newest version
		return fmt.Errorf("encode the SBOM: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Out, artefact+sbomSuffix), out.Bytes(), 0o644)
}

func library(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}

func sha256Of(digest string) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest}}
}

// serial returns a UUID (version 8) computed from a digest, so that the same artefact has the same
// UUID.
func serial(digest string) string {
	return fmt.Sprintf("urn:uuid:%s-%s-8%s-8%s-%s", digest[:8], digest[8:12], digest[13:16], digest[17:20], digest[20:32])
}

func digestOf(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}
