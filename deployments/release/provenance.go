package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// provenanceSuffix is added to the name of an artefact for the statement of how it was built.
const provenanceSuffix = ".intoto.json"

const repository = "https://github.com/dra-exporter/dra-exporter"

// statement is an in-toto statement, version 1, with a predicate of SLSA provenance, version 1. It
// is not signed; the publisher signs it.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

// resource is in-toto's ResourceDescriptor.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// provenance writes the statement of an artefact: its digest, the commit, and what built it.
func (r release) provenance(artefact string) error {
	digest, err := digestOf(filepath.Join(r.Out, artefact))
	if err != nil {
		return err
	}
	s := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Subject: []resource{{Name: artefact, Digest: map[string]string{"sha256": digest}}},
	}
	b := &s.Predicate.BuildDefinition
	b.BuildType = repository + "/blob/main/deployments/RELEASE.md"
	b.ExternalParameters = map[string]string{"source": "git+" + repository, "revision": r.Revision, "version": r.Version}
	b.InternalParameters = map[string]string{"command": "make release", "go": runtime.Version()}
	b.ResolvedDependencies = []resource{{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.Revision}}}
	s.Predicate.RunDetails.Builder.ID = r.Builder
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the provenance: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Out, artefact+provenanceSuffix), append(content, '\n'), 0o644)
}

// dirty is the suffix of the version that git describe gives a tree with changes since its commit.
const dirty = "-dirty"

// provenances writes the statement of each artefact. It writes none if the tree has changes,
// because a statement would name a commit that was not built.
func (r release) provenances() error {
	if strings.HasSuffix(r.Version, dirty) {
		fmt.Fprintln(os.Stderr, "release: the tree has changes since its commit: provenance is left out")
		return nil
	}
	entries, err := os.ReadDir(r.Out)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), sbomSuffix) {
			continue
		}
		if err := r.provenance(entry.Name()); err != nil {
			return err
		}
	}
	return nil
}
