// Package examples tests the examples.
package examples

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/deployments/chart"
)

// decoded holds the objects of the examples, decoded strictly.
type decoded struct {
	pods    map[string]corev1.PodSpec // by file and name
	claims  []string                  // names of claims and templates, by file
	scripts map[string]string         // of ConfigMaps
	service *corev1.Service
}

func decode(t *testing.T) decoded {
	t.Helper()
	d := decoded{pods: map[string]corev1.PodSpec{}, scripts: map[string]string{}}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" || filepath.Base(path) == "values.yaml" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		for documents := yamlstream.NewYAMLReader(bufio.NewReader(file)); ; {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			d.add(t, path, document)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *decoded) add(t *testing.T, path string, document []byte) {
	t.Helper()
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &meta); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	into := map[string]any{
		"Pod": &corev1.Pod{}, "Deployment": &appsv1.Deployment{}, "DaemonSet": &appsv1.DaemonSet{},
		"ConfigMap": &corev1.ConfigMap{}, "Service": &corev1.Service{},
		"ResourceClaim": &resourcev1.ResourceClaim{}, "ResourceClaimTemplate": &resourcev1.ResourceClaimTemplate{},
		"DeviceClass": &resourcev1.DeviceClass{},
	}[meta.Kind]
	if into == nil {
		t.Fatalf("%s: unknown kind %s", path, meta.Kind)
	}
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		t.Fatalf("%s: %s %s: %v", path, meta.Kind, meta.Name, err)
	}
	name := path + " " + meta.Name
	switch o := into.(type) {
	case *corev1.Pod:
		d.pods[name] = o.Spec
	case *appsv1.Deployment:
		d.pods[name] = o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		d.pods[name] = o.Spec.Template.Spec
	case *resourcev1.ResourceClaim, *resourcev1.ResourceClaimTemplate:
		d.claims = append(d.claims, name)
	case *corev1.ConfigMap:
		maps.Copy(d.scripts, o.Data)
	case *corev1.Service:
		d.service = o
	}
}

// Every pod refers to claims in its file, and its containers use them.
func TestPodsHaveTheirClaims(t *testing.T) {
	d := decode(t)
	used := 0
	for name, pod := range d.pods {
		path, _, _ := strings.Cut(name, " ")
		for _, c := range pod.ResourceClaims {
			var claim string
			if c.ResourceClaimName != nil {
				claim = *c.ResourceClaimName
			} else {
				claim = *c.ResourceClaimTemplateName
			}
			if !slices.Contains(d.claims, path+" "+claim) {
				t.Errorf("%s: there is no claim %s", name, claim)
			}
			if !slices.Contains(pod.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c.Name}) {
				t.Errorf("%s: its container does not use %s", name, c.Name)
			}
			used++
		}
	}
	if used != 7 {
		t.Errorf("%d pods hold claims", used)
	}
}

// The chart accepts the simulated values, which name the simulated vendor's Service and every
// metric that it serves.
func TestSimulatedVendor(t *testing.T) {
	d := decode(t)
	data, err := os.ReadFile("simulated/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	if _, err := chart.Render("../helm/dra-exporter",
		chart.Release{Name: "dra-exporter", Namespace: "dra-exporter", Values: values}, false); err != nil {
		t.Error(err)
	}
	if url := "http://" + d.service.Name + "." + d.service.Namespace +
		":9400/metrics"; !strings.Contains(string(data), url) || d.service.Spec.Ports[0].Port != 9400 {
		t.Errorf("the values do not name %s", url)
	}
	www := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", d.scripts["simulate.sh"])
	cmd.Env = append(os.Environ(), "WWW="+www, "ONCE=yes", "GPUS=2")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	metrics, err := os.ReadFile(filepath.Join(www, "metrics"))
	if err != nil {
		t.Fatal(err)
	}
	served, joined := map[string]int{}, map[string]int{}
	sample := regexp.MustCompile(`(?m)^(sim_\w+)\{device="gpu-[01]"\} [0-9.]+$`)
	for _, m := range sample.FindAllStringSubmatch(string(metrics), -1) {
		served[m[1]]++
	}
	for _, m := range regexp.MustCompile(`name: (sim_\w+)`).FindAllStringSubmatch(string(data), -1) {
		joined[m[1]] += 2
	}
	if diff := cmp.Diff(joined, served); diff != "" || len(served) == 0 {
		t.Errorf("joined and served: %s\n%s", diff, metrics)
	}
}
