package grafana

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// object is what the ConfigMap and the GrafanaDashboard have in common.
type object struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   metadata          `yaml:"metadata"`
	Data       map[string]string `yaml:"data,omitempty"`
	Spec       *spec             `yaml:"spec,omitempty"`
}

type metadata struct {
	Name        string            `yaml:"name"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// spec is of grafana-operator's GrafanaDashboard, grafana.integreatly.org/v1beta1.
type spec struct {
	AllowCrossNamespaceImport bool         `yaml:"allowCrossNamespaceImport"`
	Folder                    string       `yaml:"folder"`
	InstanceSelector          selector     `yaml:"instanceSelector"`
	ConfigMapRef              configMapRef `yaml:"configMapRef"`
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type configMapRef struct {
	Name string `yaml:"name"`
	Key  string `yaml:"key"`
}

// ConfigMap returns the dashboard as the Grafana sidecar finds it: by the label grafana_dashboard, in the folder DRA.
func (b *Board) ConfigMap(dashboard []byte) ([]byte, error) {
	labels := b.labels()
	labels["grafana_dashboard"] = "1"
	return encode(object{
		APIVersion: "v1", Kind: "ConfigMap",
		Metadata: metadata{Name: b.objectName(), Labels: labels, Annotations: map[string]string{"grafana_folder": "DRA"}},
		Data:     map[string]string{b.UID + ".json": string(dashboard)},
	})
}

// GrafanaDashboard returns the grafana-operator's object, which takes the dashboard from the ConfigMap. Its instance
// selector matches the label that the operator's documentation uses.
func (b *Board) GrafanaDashboard() ([]byte, error) {
	return encode(object{
		APIVersion: "grafana.integreatly.org/v1beta1", Kind: "GrafanaDashboard",
		Metadata: metadata{Name: b.objectName(), Labels: b.labels()},
		Spec: &spec{
			AllowCrossNamespaceImport: true, Folder: "DRA",
			InstanceSelector: selector{map[string]string{"dashboards": "grafana"}},
			ConfigMapRef:     configMapRef{Name: b.objectName(), Key: b.UID + ".json"},
		},
	})
}

func (b *Board) objectName() string { return "dra-exporter-dashboard-" + b.UID }

func (*Board) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "dra-exporter"}
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("# Made by go generate from the Go code in dashboards/grafana; do not edit.\n")
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("write object: %w", err)
	}
	return out.Bytes(), nil
}
