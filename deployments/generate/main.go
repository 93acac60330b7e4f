// Command generate renders what is derived from the chart and the dashboards: the chart's copies of rules and dashboards, and
// the plain manifests with their kustomize base. It is run in deployments/.
package main

import (
	"bytes"
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
	if err := copyMonitoring(); err != nil {
		return err
	}
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
	base := "# A base for overlays: kubectl apply -k, with patches of your own.\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n  - dra-exporter.yaml\n"
	return os.WriteFile(filepath.Join(manifests, "kustomization.yaml"), []byte(base), 0o644)
}

// withoutHelm leaves out what only Helm can keep up to date, and the comments that name templates.
func withoutHelm(documents []string) []string {
	var out []string
	for _, document := range documents {
		var b strings.Builder
		for line := range strings.Lines(document) {
			if strings.HasPrefix(line, "# Source:") || strings.Contains(line, "helm.sh/chart:") || strings.Contains(line, "app.kubernetes.io/managed-by:") {
				continue
			}
			b.WriteString(line)
		}
		out = append(out, b.String())
	}
	return out
}

// copyMonitoring brings the generated rules and dashboards into the chart, which can not reach files outside of it.
func copyMonitoring() error {
	from := filepath.Join("..", "dashboards", "out")
	if err := copyFile(filepath.Join(from, "rules.yaml"), filepath.Join(folder, "files", "rules.yaml")); err != nil {
		return err
	}
	to := filepath.Join(folder, "files", "dashboards")
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	dashboards, err := filepath.Glob(filepath.Join(from, "grafana", "*.json"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, path := range dashboards {
		if err := copyFile(path, filepath.Join(to, filepath.Base(path))); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return os.WriteFile(to, data, 0o644)
}
