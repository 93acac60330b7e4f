// Command generate writes the files that are derived from the chart, the dashboards and the
// program: the chart's copies of rules and dashboards, the names of sources and alerts in the
// schema of its values, and the plain manifests with their kustomize base. It must run in
// deployments/.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	if err := errors.Join(nameSources(), nameAlerts()); err != nil {
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

// nameSources writes the names of the program's sources into the schema of the chart's values, so
// that the chart accepts each source and refuses misspelled names.
func nameSources() error {
	program := exec.CommandContext(context.Background(), "go", "run", "./exporter/cmd/dra-exporter", "--help-long")
	program.Dir = ".."
	help, err := program.Output()
	if err != nil {
		return fmt.Errorf("ask the program for its flags: %w", err)
	}
	names := []string{"scrape"} // its only flag is --source.scrape.config
	for _, flag := range regexp.MustCompile(`--(?:\[no-\])?source\.([a-z0-9-]+)[ =]`).FindAllSubmatch(help, -1) {
		names = append(names, string(flag[1]))
	}
	return nameInSchema("sources", names)
}

// nameAlerts writes the names of the alerts into the schema.
func nameAlerts() error {
	rules, err := os.ReadFile(filepath.Join(folder, "files", "rules.yaml"))
	if err != nil {
		return err
	}
	var names []string
	for _, id := range regexp.MustCompile(`(?m)^ +- id: (\S+)$`).FindAllSubmatch(rules, -1) {
		names = append(names, string(id[1]))
	}
	return nameInSchema("alerts", names)
}

// nameInSchema writes the allowed keys of a value into the schema.
func nameInSchema(value string, names []string) error {
	slices.Sort(names)
	list, err := json.Marshal(slices.Compact(names))
	if err != nil {
		return err
	}
	path := filepath.Join(folder, "values.schema.json")
	schema, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	line := regexp.MustCompile(`("` + value + `": \{\s*"type": "object",\s*"propertyNames": )\{"enum": \[.*\]\}`)
	if n := len(line.FindAll(schema, -1)); n != 1 || len(names) < 2 {
		return fmt.Errorf("the schema has no names of %s, or there are none", value)
	}
	enum := `${1}{"enum": ` + strings.ReplaceAll(string(list), ",", ", ") + "}"
	return os.WriteFile(path, line.ReplaceAll(schema, []byte(enum)), 0o644)
}

// gateway is a placeholder for the gateway's address in the chart's dashboards. The chart replaces
// it with the address in its values, or removes the links.
const gateway = "https://gateway.invalid"

// copyMonitoring copies the rules and dashboards into the chart, because a chart cannot use files
// outside its folder.
func copyMonitoring() error {
	from, err := os.MkdirTemp("", "monitoring")
	if err != nil {
		return err
	}
	defer os.RemoveAll(from) //nolint:errcheck // leftover files do no harm
	program := exec.CommandContext(context.Background(), "go", "run", "./generate", "-out="+from, "-gateway.url="+gateway)
	program.Dir, program.Stderr = filepath.Join("..", "dashboards"), os.Stderr
	if err := program.Run(); err != nil {
		return fmt.Errorf("generate rules and dashboards: %w", err)
	}
	files := filepath.Join(folder, "files")
	if err := os.RemoveAll(files); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(files, os.DirFS(filepath.Join(from, "chart"))),
		os.CopyFS(filepath.Join(files, "dashboards"), os.DirFS(filepath.Join(from, "grafana"))))
}
