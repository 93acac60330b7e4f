package integrations

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/alert"
	"github.com/prometheus/alertmanager/config"
	"github.com/prometheus/alertmanager/template"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
