package rules

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func newCatalog(t *testing.T) query.Catalog {
	t.Helper()
	c := query.NewCatalog()
	return c
}

func newGroups(t *testing.T) []Group {
	t.Helper()
	groups := must.Get(Groups(Defaults(), newCatalog(t)))(t)
	return groups
}

func TestAlertsAreComplete(t *testing.T) {
	alerts := 0
	o := Defaults()
	o.Grafana, o.Page = "https://grafana.example.com", "http://{{ $labels.node }}:10985/"
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			if page := r.Annotations["page_url"]; page == "" && strings.Contains(r.Annotations["dashboard_url"], "var-node=") {
				t.Errorf("%s is about a node, and has no link to its page", r.Alert)
			}
			for _, annotation := range []string{"summary", "description", "runbook_url", "dashboard_url"} {
				if r.Annotations[annotation] == "" {
					t.Errorf("%s has no %s", r.Alert, annotation)
				}
			}
			if text := r.Annotations["summary"] + r.Annotations["description"]; strings.ContainsAny(text, "<>") {
				t.Errorf("%s: an abbreviation is not replaced: %s", r.Alert, text)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
		}
	}
	if alerts < 20 {
		t.Errorf("%d alerts", alerts)
	}
}

// An idle pod without a claim is as urgent as an idle claim, and as soon.
func TestIdlePodIsAsSevereAsIdleClaim(t *testing.T) {
	alerts := map[string]Rule{}
	for _, g := range newGroups(t) {
		for _, r := range g.Rules {
			if r.Alert == "DRAClaimIdle" || r.Alert == "DRAPodIdle" {
				alerts[r.Alert] = Rule{Labels: r.Labels, For: r.For, KeepFiringFor: r.KeepFiringFor}
			}
		}
	}
	if diff := cmp.Diff(alerts["DRAClaimIdle"], alerts["DRAPodIdle"]); len(alerts) != 2 || diff != "" {
		t.Errorf("%d alerts; -claim +pod:\n%s", len(alerts), diff)
	}
}

// TestRunbook checks that the shipped runbook is up to date and has the section that each alert's
// runbook_url names.
func TestRunbook(t *testing.T) {
	shipped := must.Get(os.ReadFile("../RUNBOOK.md"))(t)
	expect.Equal(t, "the shipped runbook is out of date", string(Runbook(Defaults())), string(shipped))
	anchors := map[string]bool{}
	for _, section := range strings.Split(string(shipped), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		anchors[strings.ToLower(title)] = true
		if !strings.Contains(text, "\n```promql\n") {
			t.Errorf("%s has no query", title)
		}
		for _, part := range []string{"**Meaning.** ", "**Diagnosis.** ", "**Mitigation.** "} {
			if _, rest, ok := strings.Cut(text, part); !ok || strings.HasPrefix(rest, "\n") {
				t.Errorf("%s: no text after %s", title, part)
			}
		}
	}
	for _, g := range newGroups(t) {
		for _, r := range g.Rules {
			_, anchor, ok := strings.Cut(r.Annotations["runbook_url"], "RUNBOOK.md#")
			if r.Alert != "" && (!ok || !anchors[anchor]) {
				t.Errorf("%s: the runbook has no section %q", r.Alert, anchor)
			}
		}
	}
}

// TestTuned checks that the options appear in the rules' text.
func TestTuned(t *testing.T) {
	o := Defaults()
	o.Idle.Window, o.Idle.UsedShare, o.Job = 2*time.Hour, 0.07, "mine"
	o.Interval, o.Idle.Interval = 30*time.Second, 40*time.Second
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	text := must.Get(File(groups))(t)
	for _, want := range []string{
		"[2h]", "< bool 0.07", `job=~"mine"`, "> 5760", "interval: 30s", "interval: 40s", "interval: 80s", ") * 80",
		"7% of the last 2h",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the rules", want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"idle window":     func(o *Options) { o.Idle.Window = 0 },
		"interval":        func(o *Options) { o.Interval = time.Millisecond },
		"idle used share": func(o *Options) { o.Idle.UsedShare = 50 },
		"throttled ratio": func(o *Options) { o.ThrottledRatio = 0 },
		"error window":    func(o *Options) { o.ErrorWindow = -time.Minute },
	} {
		o := Defaults()
		spoil(&o)
		if _, err := Groups(o, newCatalog(t)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestTextNamesLabels checks the error for a text with a label that the expression does not have.
func TestTextNamesLabels(t *testing.T) {
	a := alert{name: "X", expr: `max by (cluster, node) (dra_device_up)`, summary: "{{ $labels.node }} {{ $labels.pool}}"}
	o := Defaults()
	if _, err := a.rule(&o, newCatalog(t)); err == nil || !strings.Contains(err.Error(), `"pool"`) {
		t.Errorf("got %v", err)
	}
}

// Each action that a device may need has an alert, and the runbook says of each reason what to do.
func TestAttentionHasAlerts(t *testing.T) {
	var actions []string
	mitigation := ""
	for _, a := range hardwareAlerts(&Options{}) {
		if a.name == "DRADeviceNeedsAttention" {
			actions, mitigation = append(actions, a.action), mitigation+a.mitigation
		}
	}
	labels := driver.NeedsAttention.Spec().Labels
	for _, action := range labels[0].Values {
		if action != "none" && !slices.Contains(actions, action) {
			t.Errorf("no alert has the action %s", action)
		}
	}
	for _, reason := range labels[1].Values {
		if reason != "ok" && !strings.Contains(mitigation, "`"+reason+"`") {
			t.Errorf("the runbook does not have the reason %s", reason)
		}
	}
}
