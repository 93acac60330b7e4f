// Package chart renders the Helm chart of dra-exporter with Helm's own library, for the plain
// manifests and for tests.
package chart

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// Release is the input of helm template: a release's name, namespace and values, and the version of
// the API server.
type Release struct {
	Name, Namespace string
	Values          map[string]any
	KubeVersion     string // empty: NewestKubeVersion
}

// NewestKubeVersion is the version of Kubernetes that the chart was last tested with.
const NewestKubeVersion = "v1.37.0"

// Render returns the objects of the chart in a folder as YAML documents, sorted by the names of
// their templates. It returns an error for values that the chart's schema rejects. It includes
// tests on request, and never the notes.
func Render(folder string, r Release, tests bool) ([]string, error) {
	c, err := loader.LoadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	return documents(c, r, tests)
}

func documents(c *chart.Chart, r Release, tests bool) ([]string, error) {
	files, err := render(c, r)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") || strings.Contains(name, "/templates/tests/") && !tests {
			continue
		}
		for document := range strings.SplitSeq(files[name], "\n---\n") {
			if document = strings.TrimPrefix(strings.TrimSpace(document), "---\n"); document != "" {
				out = append(out, document+"\n")
			}
		}
	}
	return out, nil
}

func render(c *chart.Chart, r Release) (map[string]string, error) {
	options := common.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: true}
	version, err := common.ParseKubeVersion(cmp.Or(r.KubeVersion, NewestKubeVersion))
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	values, err := util.ToRenderValues(c, r.Values, options, capabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		return nil, fmt.Errorf("render chart: %w", err)
	}
	return files, nil
}
