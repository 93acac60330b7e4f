package rules

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"

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

// read returns the metrics that a rule reads.
func read(t *testing.T, expr string) []string {
	parsed := must.Get(parser.NewParser(parser.Options{}).ParseExpr(expr))(t)
	var out []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok && !slices.Contains(out, selector.Name) {
			out = append(out, selector.Name)
		}
		return nil
	})
	return out
}

// TestGroups checks that no group has more rules than Grafana Mimir accepts by default, that a rule
// comes after those of its group whose values it uses, and that rules over all nodes read nothing
// that only a server that scrapes nodes has.
func TestGroups(t *testing.T) {
	const most = 20
	groups := newGroups(t)
	recordedBy := map[string][]string{} // the groups by the record
	for _, g := range groups {
		expect.That(t, len(g.Rules) != 0 && len(g.Rules) <= most,
			"%s has %d rules, and %d are the most", g.Name, len(g.Rules), most)
		for _, r := range g.Rules {
			if r.Record != "" && !slices.Contains(recordedBy[r.Record], g.Name) {
				recordedBy[r.Record] = append(recordedBy[r.Record], g.Name)
			}
		}
	}
	for name, by := range recordedBy {
		expect.That(t, len(by) <= 1, "%s is recorded by the groups %v", name, by)
	}
	if local, global := Of(Node, groups), Of(Global, groups); len(local)+len(global) != len(groups) || len(global) < 2 {
		t.Errorf("%d groups are %d of nodes and %d of all nodes", len(groups), len(local), len(global))
	}
	for _, g := range groups {
		var before []string
		for _, r := range g.Rules {
			for _, metric := range read(t, r.Expr) {
				by := recordedBy[metric]
				if slices.Contains(by, g.Name) && !slices.Contains(before, metric) {
					t.Errorf("%s: %s%s comes before %s, which it uses", g.Name, r.Record, r.Alert, metric)
				}
				if g.Scope == Global && by == nil {
					t.Errorf("%s: %s%s reads %s, which only nodes have", g.Name, r.Record, r.Alert, metric)
				}
				global := func(o Group) bool { return o.Scope == Global && slices.Contains(by, o.Name) }
				if g.Scope == Node && slices.ContainsFunc(groups, global) {
					t.Errorf("%s: %s%s reads %s, which a server of nodes has not", g.Name, r.Record, r.Alert, metric)
				}
			}
			before = append(before, r.Record)
		}
	}
}

// TestExpectedClusters checks that the clusters in the options, and no others, must have exporters.
func TestExpectedClusters(t *testing.T) {
	o := Defaults()
	o.Clusters = []string{"east", `w"est`}
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	const want = `absent(cluster:dra_exporters:count{cluster="east"})` + "\nor\n" +
		`absent(cluster:dra_exporters:count{cluster="w\"est"})`
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Alert == "DRAExporterAbsent" && r.Expr != want {
				t.Errorf("got %s, want %s", r.Expr, want)
			}
		}
	}
}

// TestReplacements checks that the records of other exporters' series are in groups that Grafana
// Mimir accepts, that each name is recorded once, and that no rule but these reads them.
func TestReplacements(t *testing.T) {
	catalog := newCatalog(t)
	groups, err := Groups(Defaults(), catalog)
	must.Do(t, err)
	all, err := Replacements(Defaults(), catalog)
	must.That(t, err == nil && len(all) == 2, "%d exporters, %v", len(all), err)
	records := map[string]bool{}
	for i := range all {
		for _, g := range all[i].Groups() {
			expect.That(t, len(g.Rules) != 0 && len(g.Rules) <= 20 && g.Every == "30s",
				"%s has %d rules, each %s", g.Name, len(g.Rules), g.Every)
			for _, r := range g.Rules {
				expect.That(t, !records[r.Record] && !strings.Contains(r.Record+r.Expr, "<"),
					"%s is recorded twice, or has abbreviations: %s", r.Record, r.Expr)
				records[r.Record] = true
			}
		}
	}
	for _, name := range []string{
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_XID_ERRORS", "gpu_gfx_activity",
	} {
		expect.That(t, records[name], "%s is not recorded", name)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			for _, metric := range read(t, r.Expr) {
				expect.That(t, !records[metric], "%s%s reads %s, which is not there by default", r.Record, r.Alert, metric)
			}
		}
	}
}

// Links of alerts are absolute: those to what has no address are left out.
func TestLinks(t *testing.T) {
	for _, test := range []struct{ grafana, page string }{
		{}, {grafana: "https://grafana.example.com/"}, {page: "https://dra.example.com/{{ $labels.node }}"},
	} {
		o := Defaults()
		o.Grafana, o.Page = test.grafana, test.page
		groups := must.Get(Groups(o, newCatalog(t)))(t)
		for _, g := range groups {
			for _, r := range g.Rules {
				for name, begin := range map[string]string{"dashboard_url": test.grafana, "page_url": test.page} {
					link, has := r.Annotations[name]
					if has && (begin == "" || !strings.HasPrefix(link, strings.TrimSuffix(begin, "/")+"/")) {
						t.Errorf("%s, with %+v: %s is %q", r.Alert, test, name, link)
					}
					if r.Alert == "DRAClaimStalled" && has != (begin != "") {
						t.Errorf("with %+v, it has %s: %v", test, name, has)
					}
				}
			}
		}
	}
	o := Defaults()
	if o.Gateway = "dra.example.com"; o.Check() == nil {
		t.Error("an address of the gateway that is not absolute is accepted")
	}
	o = Defaults()
	if o.Page = "demo-node:10985"; o.Check() == nil {
		t.Error("an address that is not absolute is accepted")
	}
}

// With the gateway's address, links lead to it, and have the node.
func TestLinksByGateway(t *testing.T) {
	o := Defaults()
	o.Gateway, o.Page = "https://dra.example.com/", "https://other.example.com"
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	want := map[string]string{
		"DRAClaimStalled": "https://dra.example.com/claim/{{ $labels.namespace | urlquery }}/" +
			"{{ $labels.resourceclaim_name | urlquery }}?node={{ $labels.node | urlquery }}",
		"DRADeviceDown": "https://dra.example.com/device/{{ $labels.driver | urlquery }}/{{ $labels.pool | urlquery }}/" +
			"{{ $labels.device | urlquery }}?node={{ $labels.node | urlquery }}",
		"DRAExporterStale": "https://dra.example.com/node/{{ $labels.node | urlquery }}/",
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			link := r.Annotations["page_url"]
			if exact, known := want[r.Alert]; known && link != exact {
				t.Errorf("%s: %s, want %s", r.Alert, link, exact)
			}
			delete(want, r.Alert)
			expect.That(t, link == "" || strings.HasPrefix(link, "https://dra.example.com/") && strings.Contains(link, onNode),
				"%s: %s", r.Alert, link)
		}
	}
	expect.That(t, len(want) == 0, "there are no alerts %v", want)
}
