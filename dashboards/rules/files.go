package rules

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

const generatedNote = "# Made by go generate from the Go code in dashboards/rules; do not edit.\n"

// File returns the groups as a Prometheus rules file.
func File(groups []Group) ([]byte, error) {
	return encode(struct {
		Groups []Group `yaml:"groups"`
	}{groups})
}

// prometheusRule is monitoring.coreos.com/v1 of the Prometheus operator.
type prometheusRule struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		Groups []Group `yaml:"groups"`
	} `yaml:"spec"`
}

// PrometheusRule returns the groups as the Prometheus operator's object.
func PrometheusRule(groups []Group) ([]byte, error) {
	rule := prometheusRule{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"}
	rule.Metadata.Name = "dra-exporter"
	rule.Metadata.Labels = map[string]string{"app.kubernetes.io/name": "dra-exporter"}
	rule.Spec.Groups = groups
	return encode(rule)
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(generatedNote)
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("write rules: %w", err)
	}
	return out.Bytes(), nil
}
