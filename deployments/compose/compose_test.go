// Package compose tests the compose file of the demo: its syntax, and what it mounts.
package compose

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// load returns the project, as docker compose reads it.
func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// source returns the file that a service mounts at a path, relative to this folder.
func source(t *testing.T, project *types.Project, service, target string) string {
	t.Helper()
	for _, v := range project.Services[service].Volumes {
		if v.Target == target {
			return v.Source
		}
	}
	t.Fatalf("%s has nothing mounted at %s", service, target)
	return ""
}

// decode decodes the YAML file that a service mounts at a path. Unknown fields are errors.
func decode(t *testing.T, project *types.Project, service, target string, to any) {
	t.Helper()
	content, err := os.ReadFile(source(t, project, service, target))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(content, to); err != nil {
		t.Errorf("%s: %v", target, err)
	}
}

// Images have a tag, mounted files are there and read-only, and no port is reachable from outside.
func TestServices(t *testing.T) {
	project := load(t)
	if names := project.ServiceNames(); !slices.Equal(names, []string{"demo", "grafana", "prometheus"}) {
		t.Errorf("services %v", names)
	}
	for name, service := range project.Services {
		if _, tag, found := strings.Cut(service.Image, ":"); !found || tag == "" || tag == "latest" {
			t.Errorf("%s: the image %s has no tag", name, service.Image)
		}
		for _, p := range service.Ports {
			if host, err := netip.ParseAddr(p.HostIP); err != nil || !host.IsLoopback() {
				t.Errorf("%s: port %s listens on %q", name, p.Published, p.HostIP)
			}
		}
		for _, v := range service.Volumes {
			switch v.Type {
			case types.VolumeTypeBind:
				if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
					t.Errorf("%s: mount %s at %s: %v; read-only: %v", name, v.Source, v.Target, err, v.ReadOnly)
				}
			case types.VolumeTypeVolume:
				if _, ok := project.Volumes[v.Source]; !ok {
					t.Errorf("%s: there is no volume %s", name, v.Source)
				}
			default:
				t.Errorf("%s: a volume of the type %s", name, v.Type)
			}
		}
	}
}

// Prometheus scrapes the demo's address, and its rules are mounted at the path in its
// configuration.
func TestPrometheus(t *testing.T) {
	project := load(t)
	var config struct {
		Global struct {
			Scrape     string `json:"scrape_interval"`
			Evaluation string `json:"evaluation_interval"`
			Native     bool   `json:"scrape_native_histograms"` // needed by panels
		} `json:"global"`
		Rules   []string `json:"rule_files"`
		Scrapes []struct {
			Job     string `json:"job_name"`
			Honor   bool   `json:"honor_labels"`
			Statics []struct {
				Targets []string          `json:"targets"`
				Labels  map[string]string `json:"labels"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	decode(t, project, "prometheus", "/etc/prometheus/prometheus.yml", &config) // the path that the image reads
	if !config.Global.Native || len(config.Rules) != 1 || len(config.Scrapes) != 1 || len(config.Scrapes[0].Statics) != 1 {
		t.Fatalf("configuration %+v", config)
	}
	var rules struct {
		Groups []struct {
			Name     string           `json:"name"`
			Interval string           `json:"interval"`
			Rules    []map[string]any `json:"rules"`
		} `json:"groups"`
	}
	decode(t, project, "prometheus", "/etc/prometheus/"+config.Rules[0], &rules)
	n := 0
	for _, g := range rules.Groups {
		n += len(g.Rules)
	}
	if n < 50 {
		t.Errorf("%d rules", n)
	}
	demo := project.Services["demo"]
	target := config.Scrapes[0].Statics[0].Targets[0]
	name, port, _ := strings.Cut(target, ":")
	if name != "demo" || !strings.Contains(strings.Join(demo.Command, " "), "--listen=0.0.0.0:"+port) {
		t.Errorf("Prometheus scrapes %s, and the demo runs %q", target, demo.Command)
	}
	if !config.Scrapes[0].Honor || config.Scrapes[0].Statics[0].Labels["node"] == "" {
		t.Errorf("scrapes %+v", config.Scrapes)
	}
	tree := source(t, project, "demo", demo.WorkingDir)
	if _, err := os.Stat(filepath.Join(tree, "test", "demo", "main.go")); err != nil {
		t.Errorf("the demo is not in its working folder: %v", err)
	}
}

// Grafana has the data source, the dashboards at the path of the provider, and the fleet dashboard
// as its home page.
func TestGrafana(t *testing.T) {
	project := load(t)
	const provisioning = "/etc/grafana/provisioning/" // the path that the image reads
	var sources struct {
		Version int `json:"apiVersion"`
		Sources []struct {
			Name    string            `json:"name"`
			Type    string            `json:"type"`
			Access  string            `json:"access"`
			URL     string            `json:"url"`
			Default bool              `json:"isDefault"`
			More    map[string]string `json:"jsonData"`
		} `json:"datasources"`
	}
	decode(t, project, "grafana", provisioning+"datasources/prometheus.yaml", &sources)
	if len(sources.Sources) != 1 || sources.Sources[0].Type != "prometheus" || !sources.Sources[0].Default {
		t.Fatalf("data sources %+v", sources)
	}
	address, _ := strings.CutPrefix(sources.Sources[0].URL, "http://")
	if name, port, _ := strings.Cut(address, ":"); project.Services[name].Image == "" || port != "9090" {
		t.Errorf("there is no Prometheus at %s", address)
	}
	var providers struct {
		Version   int `json:"apiVersion"`
		Providers []struct {
			Name    string            `json:"name"`
			Type    string            `json:"type"`
			Options map[string]string `json:"options"`
		} `json:"providers"`
	}
	decode(t, project, "grafana", provisioning+"dashboards/dra-exporter.yaml", &providers)
	if len(providers.Providers) != 1 || providers.Providers[0].Type != "file" {
		t.Fatalf("providers %+v", providers)
	}
	folder := providers.Providers[0].Options["path"]
	files, err := filepath.Glob(filepath.Join(source(t, project, "grafana", folder), "*.json"))
	if err != nil || len(files) < 6 {
		t.Errorf("dashboards %v, %v", files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct{ UID, Title string }
		if err := json.Unmarshal(content, &dashboard); err != nil || dashboard.UID+".json" != filepath.Base(file) {
			t.Errorf("%s: %v: %+v", file, err, dashboard)
		}
	}
	home := project.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if home == nil || !slices.ContainsFunc(files, func(f string) bool { return *home == folder+"/"+filepath.Base(f) }) {
		t.Errorf("the home dashboard is none of %v", files)
	}
}
