package chart

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

type rule struct {
	Record, Alert, Expr, For string
	KeepFiringFor            string `json:"keep_firing_for"`
	Labels, Annotations      map[string]string
}

type ruleGroup struct {
	Name, Interval string
	Rules          []rule
}

func readRules(t *testing.T, path string) []ruleGroup {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []ruleGroup }
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups
}

// renderRules returns the rules of the chart with these values of prometheusRule.
func renderRules(t *testing.T, v values) []ruleGroup {
	t.Helper()
	v = maps.Clone(v)
	v["enabled"] = true
	documents, err := renderShipped(Release{Name: "a", Namespace: "x", Values: values{"prometheusRule": v}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents {
		if !strings.Contains(document, "kind: PrometheusRule") {
			continue
		}
		var object struct{ Spec struct{ Groups []ruleGroup } }
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		return object.Spec.Groups
	}
	t.Fatal("there is no PrometheusRule")
	return nil
}

// id is the name of an alert in the values.
func (r *rule) id() string {
	return strings.TrimSuffix(r.Alert+"-"+r.Labels["action"], "-")
}

// With default values the chart's rules are the shipped ones: all, those of nodes, or the global
// ones.
func TestRules(t *testing.T) {
	t.Parallel()
	for scope, file := range map[string]string{"all": "rules", "node": "rules-node", "global": "rules-global"} {
		want := readRules(t, "../../dashboards/out/"+file+".yaml")
		if diff := cmp.Diff(want, renderRules(t, values{"rules": scope})); diff != "" || len(want) < 2 {
			t.Errorf("%s: %d groups, -file +chart:\n%s", scope, len(want), diff)
		}
	}
	if diff := cmp.Diff(renderRules(t, values{"rules": "all"}), renderRules(t, values{})); diff != "" {
		t.Errorf("-all +default:\n%s", diff)
	}
}

// renderReplacements returns the rules of the chart that record the series of other exporters, by
// the name of the object.
func renderReplacements(t *testing.T, compat, rule values) map[string][]ruleGroup {
	t.Helper()
	documents, err := renderShipped(Release{
		Name: "a", Namespace: "x", Values: values{"compat": compat, "prometheusRule": rule},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]ruleGroup{}
	for _, document := range documents {
		if !strings.Contains(document, "kind: PrometheusRule") {
			continue
		}
		var object struct {
			Metadata struct{ Name string }
			Spec     struct{ Groups []ruleGroup }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		out[object.Metadata.Name] = object.Spec.Groups
	}
	return out
}

// The rules that record the series of other exporters are the shipped ones, each on its own value;
// values change them as those of the generator do.
func TestReplacements(t *testing.T) {
	t.Parallel()
	const dcgm, amd = "a-dra-exporter-compat-dcgm-exporter", "a-dra-exporter-compat-amd-device-metrics-exporter"
	on := values{"enabled": true}
	for value, want := range map[string]string{"dcgmExporter": dcgm, "amdDeviceMetricsExporter": amd} {
		file := "../../dashboards/out/compat/" + strings.TrimPrefix(want, "a-dra-exporter-compat-") + ".yaml"
		got := renderReplacements(t, values{value: on}, values{})
		if diff := cmp.Diff(map[string][]ruleGroup{want: readRules(t, file)}, got); diff != "" {
			t.Errorf("%s: -file +chart:\n%s", value, diff)
		}
	}
	if got := renderReplacements(t, values{}, values{}); len(got) > 0 {
		t.Errorf("by default there are %d", len(got))
	}
	v := tunedValues(t)
	for _, value := range []string{"dcgmExporter", "amdDeviceMetricsExporter"} {
		v["compat"].(values)[value].(values)["enabled"] = true
	}
	tuned := renderReplacements(t, v["compat"].(values), v["prometheusRule"].(values))
	for name, file := range map[string]string{dcgm: "dcgm-exporter", amd: "amd-device-metrics-exporter"} {
		if diff := cmp.Diff(readRules(t, "testdata/compat/"+file+".yaml"), tuned[name]); diff != "" {
			t.Errorf("%s: -generator +chart:\n%s", name, diff)
		}
	}
}

//go:generate -command tuned go run -C ../../dashboards ./generate -out=../deployments/chart/testdata -values=../deployments/chart/testdata/values.yaml
//go:generate tuned -only=compat/dcgm-exporter.yaml
//go:generate tuned -only=compat/amd-device-metrics-exporter.yaml
//go:generate tuned -only=rules.yaml

// tunedValues are values that the generator reads, too.
func tunedValues(t *testing.T) values {
	t.Helper()
	data, err := os.ReadFile("testdata/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var v values
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Windows, thresholds and prices in the values give the same rules as in the generator's.
func TestTunedRules(t *testing.T) {
	t.Parallel()
	tuned := renderRules(t, tunedValues(t)["prometheusRule"].(values))
	if diff := cmp.Diff(readRules(t, "testdata/rules.yaml"), tuned); diff != "" {
		t.Errorf("-generator +chart:\n%s", diff)
	}
}

// An evaluation interval that is longer than the window of the rates is refused, as by the
// generator. 90m and 1h30m are equal.
func TestIdleInterval(t *testing.T) {
	for interval, window := range map[string]string{"5m1s": "5m", "6m": "5m", "1d": "23h59m"} {
		v := values{"enabled": true, "rateWindow": window, "idle": values{"interval": interval}}
		_, err := renderShipped(Release{Name: "a", Namespace: "x", Values: values{"prometheusRule": v}}, false)
		want := "prometheusRule.idle.interval: " + interval + " is longer than prometheusRule.rateWindow, " + window
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s and %s: error %v, want one with %q", interval, window, err, want)
		}
	}
	for interval, window := range map[string]string{"5m": "5m", "90m": "1h30m", "300s": "5m"} {
		renderRules(t, values{"rateWindow": window, "idle": values{"interval": interval}})
	}
}

// Without prices no device has a price.
func TestNoPrices(t *testing.T) {
	seen := false
	for _, g := range renderRules(t, values{"prices": []any{}}) {
		for _, r := range g.Rules {
			if r.Record != "device:dra_price:per_hour" {
				continue
			}
			seen = true
			if !strings.Contains(r.Expr, "device:dra_model:info > 1") {
				t.Errorf("the prices are %s", r.Expr)
			}
		}
	}
	if !seen {
		t.Error("no rule has prices")
	}
}

func renderError(v values) ([]string, error) {
	v["enabled"] = true
	return renderShipped(Release{Name: "a", Namespace: "x", Values: values{"prometheusRule": v}}, false)
}

// Severity, durations, labels and ignored namespaces of one alert are those of its values. Another
// one is off.
func TestChangedAlert(t *testing.T) {
	const idle, unprepared = "DRAClaimIdle", "DRAClaimNotPrepared"
	changed := renderRules(t, values{
		"ignoreNamespaces": []any{"dev-.*"},
		"alerts": values{
			idle: values{
				"severity": "page", "for": "1h", "keepFiringFor": "10m", "labels": values{"team": "ml", "severity": "x"},
				"ignoreNamespaces": []any{"test"},
			},
			unprepared: values{"for": "20m"}, "DRAClaimPartlyIdle": values{"enabled": false},
		},
	})
	seen := map[string]rule{}
	for _, g := range changed {
		for _, r := range g.Rules {
			seen[r.id()] = r
		}
	}
	shipped := map[string]rule{}
	for _, g := range renderRules(t, values{}) {
		for _, r := range g.Rules {
			shipped[r.id()] = r
		}
	}
	if _, is := seen["DRAClaimPartlyIdle"]; is || len(seen) != len(shipped)-1 {
		t.Errorf("of %d rules, one of which is off, there are %d", len(shipped), len(seen))
	}
	want := shipped[idle]
	want.Expr = "(\n  " + strings.ReplaceAll(want.Expr, "\n", "\n  ") +
		"\n)\nunless on (cluster, namespace) dra_claim_device_info{namespace=~\"dev-.*|test\"}"
	want.For, want.KeepFiringFor = "1h", "10m"
	want.Labels = map[string]string{"severity": "page", "team": "ml"}
	if diff := cmp.Diff(want, seen[idle]); diff != "" {
		t.Error(diff)
	}
	if got := seen[unprepared]; got.For != "20m" || !strings.Contains(got.Annotations["description"], " for 20m, ") ||
		!strings.HasSuffix(got.Expr, `{namespace=~"dev-.*"}`) {
		t.Errorf("%+v", got)
	}
	for id, r := range seen {
		about := strings.HasPrefix(r.Alert, "DRAClaim") || strings.HasPrefix(r.Alert, "DRAWorkload") ||
			strings.HasPrefix(r.Alert, "DRAPod") // which may be in a namespace without a claim
		if strings.HasPrefix(r.Alert, "DRAPod") != strings.Contains(r.Expr, "dra_pod_claim_info{namespace") {
			t.Errorf("%s: its expression is %s", id, r.Expr)
		}
		if about != strings.Contains(r.Expr, "dev-.*") {
			t.Errorf("%s: its expression is %s", id, r.Expr)
		}
		if strings.ContainsAny(r.Annotations["summary"]+r.Annotations["description"]+r.Annotations["dashboard_url"], "<>") {
			t.Errorf("%s: an abbreviation is not replaced: %v", id, r.Annotations)
		}
	}
	_, err := renderError(values{"alerts": values{"DRADeviceDown": values{"ignoreNamespaces": []any{"a"}}}})
	if err == nil || !strings.Contains(err.Error(), "not about a claim") {
		t.Errorf("namespaces of an alert without: %v", err)
	}
}

// The relabelings of deployments/README.md drop the families that the flag of the same group
// switches off, and no others. METRICS.md lists both.
func TestDocumentedRelabelings(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile("../../exporter/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	metric, group := regexp.MustCompile("^\\| `(dra_[a-z_]+)` "), regexp.MustCompile("^\\| `--metrics\\.([a-z-]+)` ")
	names := regexp.MustCompile("dra_[a-z_]+")
	var all []string
	groups := map[string][]string{}
	for line := range strings.Lines(string(metrics)) {
		if m := metric.FindStringSubmatch(line); m != nil {
			all = append(all, m[1])
		} else if m := group.FindStringSubmatch(line); len(m) > 1 && m[1] != "details" { // off by default
			groups[m[1]] = names.FindAllString(line, -1)
		}
	}
	slices.Sort(all)
	if len(all) < 50 || len(groups) < 6 {
		t.Fatalf("METRICS.md has %d metrics and %d groups", len(all), len(groups))
	}
	rule := regexp.MustCompile(`  # ([a-z-]+)\n  - action: drop\n    sourceLabels: \[__name__\]\n    regex: (\S+)\n`)
	rules := rule.FindAllStringSubmatch(string(readme), -1)
	for _, r := range rules {
		dropped := regexp.MustCompile("^(?:" + r[2] + ")$")
		var got []string
		for _, name := range all {
			if dropped.MatchString(name) {
				got = append(got, name)
			}
		}
		if want := groups[r[1]]; !slices.Equal(got, want) {
			t.Errorf("the relabeling of %s drops %q, the flag %q", r[1], got, want)
		}
		delete(groups, r[1])
	}
	if len(groups) > 0 {
		t.Errorf("no relabeling is documented for %v", groups)
	}
}
