// Package chart renders the Helm chart of dra-exporter with Helm's own library, for the plain manifests and for tests.
package chart

import (
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

// Release is what a user would give to helm template.
type Release struct {
	Name, Namespace string
	Values          map[string]any
}

// Render returns the objects of the chart in a folder as YAML documents, in order of their templates' names. Values that the chart's
// schema refuses are an error. Tests and notes are left out, unless tests are asked for.
func Render(folder string, r Release, tests bool) ([]string, error) {
	c, err := loader.LoadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
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
	values, err := util.ToRenderValues(c, r.Values, options, common.DefaultCapabilities.Copy())
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		return nil, fmt.Errorf("render chart: %w", err)
	}
	return files, nil
}
