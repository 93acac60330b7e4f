package integrations

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestSchemas checks shipped objects as an API server would that has the custom resource
// definitions of their project: a field that the schema does not have, or a value that it refuses,
// is an error.
func TestSchemas(t *testing.T) {
	heavy(t)
	for name, test := range map[string]struct {
		module, definitions string // a module, and its file of custom resource definitions
		object              func(*testing.T) []byte
	}{
		"PodMonitoring": {
			"github.com/GoogleCloudPlatform/prometheus-engine@v0.17.2", "manifests/setup.yaml",
			read("google/podmonitoring.yaml"),
		},
		"ClusterRules": {"github.com/GoogleCloudPlatform/prometheus-engine@v0.17.2", "manifests/setup.yaml", clusterRules},
		"ScaledObject": {
			"github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml",
			read("autoscaling/scaledobject.yaml"),
		},
		"PolicyException": {
			"github.com/kyverno/kyverno@v1.19.1", "config/crds/kyverno/kyverno.io_policyexceptions.yaml",
			read("pod-security/kyverno-exception.yaml"),
		},
		"SecurityContextConstraints": {
			"github.com/openshift/api@v0.0.0-20250710004639-926605d3338b",
			"security/v1/zz_generated.crd-manifests/0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
			read("openshift/scc.yaml"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			definitions := definitionsOf(t, test.module, test.definitions)
			object := test.object(t)
			for _, message := range refused(t, definitions, object) {
				t.Error(message)
			}
			// The schema knows what it must refuse.
			expect.That(t, len(refused(t, definitions, append(object, "\nnoSuchField: 1\n"...))) != 0,
				"an unknown field is accepted")
		})
	}
}

func read(path string) func(*testing.T) []byte {
	return func(t *testing.T) []byte {
		content := must.Get(os.ReadFile(filepath.Join(files, path)))(t)
		return content
	}
}

// clusterRules returns the rules as Google's object, as the page makes it: its type has no
// keep_firing_for.
func clusterRules(t *testing.T) []byte {
	rules := must.Get(os.ReadFile(filepath.Join(root, "dashboards", "out", "rules.yaml")))(t)
	head := "apiVersion: monitoring.googleapis.com/v1\nkind: ClusterRules\nmetadata: {name: dra-exporter}\nspec:\n"
	page := must.Get(os.ReadFile(filepath.Join(files, "google", "README.md")))(t)
	expect.That(t, bytes.Contains(page, []byte(strings.ReplaceAll(head, "\n", `\n`))), "the page makes another object")
	rules = regexp.MustCompile(`(?m)^ *keep_firing_for:.*\n`).ReplaceAll(rules, nil)
	return append([]byte(head), regexp.MustCompile(`(?m)^`).ReplaceAll(rules, []byte("  "))...)
}

// definitionsOf returns the custom resource definitions of a file of a module.
func definitionsOf(t *testing.T, module, path string) []apiextensionsv1.CustomResourceDefinition {
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // outside of any module
	said, err := cmd.Output()
	must.That(t, err == nil, "%v: %s", err, said)
	var downloaded struct{ Dir string }
	must.Do(t, json.Unmarshal(said, &downloaded))
	content := must.Get(os.ReadFile(filepath.Join(downloaded.Dir, filepath.FromSlash(path))))(t)
	var out []apiextensionsv1.CustomResourceDefinition
	for _, document := range regexp.MustCompile(`(?m)^---.*$`).Split(string(content), -1) {
		var d apiextensionsv1.CustomResourceDefinition
		must.Do(t, yaml.Unmarshal([]byte(document), &d))
		if d.Kind == "CustomResourceDefinition" {
			out = append(out, d)
		}
	}
	return out
}

// refused returns what the definitions refuse of an object.
func refused(t *testing.T, definitions []apiextensionsv1.CustomResourceDefinition, object []byte) []string {
	t.Helper()
	var content map[string]any
	must.Do(t, yaml.Unmarshal(object, &content))
	group, version, _ := strings.Cut(content["apiVersion"].(string), "/")
	for _, d := range definitions {
		if d.Spec.Group != group || d.Spec.Names.Kind != content["kind"] {
			continue
		}
		for _, v := range d.Spec.Versions {
			if v.Name == version {
				return check(t, v.Schema.OpenAPIV3Schema, content)
			}
		}
	}
	t.Fatalf("there is no definition of %v %v", content["apiVersion"], content["kind"])
	return nil
}

func check(t *testing.T, of *apiextensionsv1.JSONSchemaProps, content map[string]any) []string {
	var internal apiextensions.JSONSchemaProps
	must.Do(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(of, &internal, nil))
	structural := must.Get(schema.NewStructural(&internal))(t)
	validator, _, err := validation.NewSchemaValidator(&internal)
	must.Do(t, err)
	var out []string
	for _, e := range validation.ValidateCustomResource(nil, content, validator) {
		out = append(out, e.Error())
	}
	track := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	unknown := pruning.PruneWithOptions(content, structural, true, track)
	for _, path := range unknown {
		out = append(out, "unknown field "+path)
	}
	return out
}
