// Package integrations runs the programs of other stacks with the files of
// deployments/integrations: the OpenTelemetry Collector, VictoriaMetrics' vmagent and vmalert, and
// a Prometheus Agent, each against the demo. The Makefile's target test-integrations builds them
// and names them in the environment.
package integrations

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/alert"
	"github.com/prometheus/alertmanager/config"
	"github.com/prometheus/alertmanager/template"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	root  = "../../.."
	files = root + "/deployments/integrations"
)

type object = map[string]any

// heavy skips a test that runs the programs of other stacks, where only the others are asked for.
func heavy(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-integrations runs it")
	}
}

// program returns the path of a program that the environment names.
func program(t *testing.T, variable string) string {
	path := os.Getenv(variable)
	must.That(t, path != "", "%s is not set: run this with make test-integrations", variable)
	return path
}

// shipped decodes a file of deployments/integrations.
func shipped(t *testing.T, path string, into any) {
	content := must.Get(os.ReadFile(filepath.Join(files, path)))(t)
	err := yaml.UnmarshalStrict(content, into)
	must.That(t, err == nil, "%s: %v", path, err)
}

// write writes a file as YAML, and returns its path.
func write(t *testing.T, content any) string {
	data := must.Get(yaml.Marshal(content))(t)
	path := filepath.Join(t.TempDir(), "file.yaml")
	must.Do(t, os.WriteFile(path, data, 0o600))
	return path
}

// scrapeDemo replaces what finds the pods of a cluster in a scrape configuration by the demo.
func scrapeDemo(t *testing.T, job object, demo string) {
	must.That(t, job["kubernetes_sd_configs"] != nil && job["relabel_configs"] != nil, "the job finds no pods: %v", job)
	delete(job, "kubernetes_sd_configs")
	delete(job, "relabel_configs")
	job["scrape_interval"] = "1s"
	job["static_configs"] = []any{object{
		"targets": []any{demo}, "labels": object{"node": "demo-node", "instance": "demo-node", "cluster": "demo"},
	}}
}

// TestAlertmanager expands the shipped configuration's texts with Alertmanager's own loader and
// templates, for alerts of a claim and of a device.
func TestAlertmanager(t *testing.T) {
	c := must.Get(config.LoadFile(filepath.Join(files, "alertmanager", "alertmanager.yaml")))(t)
	for i, name := range c.Templates {
		c.Templates[i] = filepath.Join(files, "alertmanager", filepath.Base(name))
	}
	templates := must.Get(template.FromGlobs(c.Templates))(t)
	templates.ExternalURL = &url.URL{Scheme: "https", Host: "alerts.example.com"}
	slack, pagerduty := c.Receivers[0].SlackConfigs[0], c.Receivers[1].PagerdutyConfigs[0]
	expand := func(text string, alerts ...*alert.Alert) string {
		data := templates.Data("devices", model.LabelSet{}, model.LabelSet{}, "", alerts...)
		out, err := templates.ExecuteTextString(text, data)
		expect.That(t, err == nil, "%s: %v", text, err)
		return out
	}
	idle := example("DRAClaimIdle", "warning",
		model.LabelSet{"resourceclaim_name": "notebook", "namespace": "research"}, false)
	lost := example("DRADeviceDown", "critical", model.LabelSet{"device": "gpu-3", "driver": "gpu.example.com"}, false)
	over := example("DRADeviceDown", "critical", model.LabelSet{"device": "gpu-3", "driver": "gpu.example.com"}, true)
	for _, test := range []struct {
		text   string
		alerts []*alert.Alert
		want   string
	}{
		{slack.Title, []*alert.Alert{idle, idle}, "[FIRING: 2] DRAClaimIdle in east"},
		{slack.Title, []*alert.Alert{over}, "[RESOLVED] DRADeviceDown in east"},
		{slack.Text, []*alert.Alert{idle}, "*research/notebook on node-1* (warning): It holds devices."},
		{slack.Text, []*alert.Alert{lost}, "*gpu-3 on node-1* (critical): It holds devices."},
		{slack.Text, []*alert.Alert{over}, "(critical, resolved)"},
		{slack.Text, []*alert.Alert{idle}, "<https://runbook.example.com#x|Runbook> \n"}, // the dashboard is a path
		{slack.TitleLink, []*alert.Alert{idle}, "https://runbook.example.com#x"},
		{slack.Color, []*alert.Alert{idle}, "warning"},
		{slack.Color, []*alert.Alert{lost}, "danger"},
		{slack.Color, []*alert.Alert{over}, "good"},
		{pagerduty.Severity, []*alert.Alert{lost}, "critical"},
		{pagerduty.Severity, []*alert.Alert{idle, lost}, "error"}, // they have none in common
		{pagerduty.Component, []*alert.Alert{lost}, "gpu.example.com"},
		{pagerduty.Description, []*alert.Alert{lost}, "[FIRING: 1] DRADeviceDown in east"},
		{pagerduty.Details["what"].(string), []*alert.Alert{lost}, "gpu-3 on node-1: It holds devices.\n"},
	} {
		if got := expand(test.text, test.alerts...); !strings.Contains(got, test.want) {
			t.Errorf("%s is %q, want %q in it", test.text, got, test.want)
		}
	}
}

// example returns an alert with the annotations of the shipped rules.
func example(name, severity string, labels model.LabelSet, resolved bool) *alert.Alert {
	a := &alert.Alert{Alert: model.Alert{
		Labels: labels.Merge(model.LabelSet{
			"alertname": model.LabelValue(name), "severity": model.LabelValue(severity), "cluster": "east", "node": "node-1",
		}),
		Annotations: model.LabelSet{
			"summary": "It holds devices.", "description": "Nothing was active.", "runbook_url": "https://runbook.example.com#x",
			"dashboard_url": "/d/dra-claim", "page_url": "/#claim=research/notebook",
		},
		StartsAt: time.Now().Add(-time.Hour),
	}}
	if resolved {
		a.EndsAt = time.Now().Add(-time.Minute)
	}
	return a
}
