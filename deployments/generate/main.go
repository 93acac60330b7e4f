// Command generate writes the plain manifests, as the chart has them, and their kustomize base. It
// must run in deployments/.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
)

const (
	folder    = "helm/dra-exporter"
	manifests = "manifests"
	generated = "# Generated from the Helm chart. Do not edit.\n"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	documents, err := chart.Render(folder, chart.Release{Name: "dra-exporter", Namespace: "dra-exporter"}, false)
	if err != nil {
		return err
	}
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: dra-exporter\n  labels:\n" +
		"    pod-security.kubernetes.io/enforce: privileged # hostPath volumes; everything else is restricted\n"
	all := generated + strings.Join(append([]string{namespace}, withoutHelm(documents)...), "---\n")
	if err := os.WriteFile(filepath.Join(manifests, "dra-exporter.yaml"), []byte(all), 0o644); err != nil {
		return err
	}
	base := "# A base for overlays: kubectl apply -k, with your own patches.\napiVersion: " +
		"kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n  - dra-exporter.yaml\n"
	return os.WriteFile(filepath.Join(manifests, "kustomization.yaml"), []byte(base), 0o644)
}

// withoutHelm removes labels that only Helm maintains, and comments that name templates.
func withoutHelm(documents []string) []string {
	var out []string
	for _, document := range documents {
		var b strings.Builder
		for line := range strings.Lines(document) {
			if strings.HasPrefix(line, "# Source:") || strings.Contains(line, "helm.sh/chart:") ||
				strings.Contains(line, "app.kubernetes.io/managed-by:") {
				continue
			}
			b.WriteString(line)
		}
		out = append(out, b.String())
	}
	return out
}
