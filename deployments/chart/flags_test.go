package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// settings are the settings of a container by flag or environment variable.
func settings(c *corev1.Container) map[string][]string {
	out := map[string][]string{}
	for _, arg := range c.Args {
		flag, value, _ := strings.Cut(arg, "=")
		out[flag] = append(out[flag], value)
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "DRA_EXPORTER_") {
			out["$"+e.Name] = strings.Split(e.Value, "\n")
		}
	}
	return out
}

// schema returns the schema of the chart's values below a path of keys.
func schema(t *testing.T, path ...string) values {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var part values
	if err := json.Unmarshal(text, &part); err != nil {
		t.Fatal(err)
	}
	for _, key := range path {
		part, _ = part[key].(values)
	}
	return part
}

// The schema names the alerts, each with its action.
func TestNamesOfAlerts(t *testing.T) {
	var want, got []string
	for _, g := range readRules(t, "../../dashboards/out/rules.yaml") {
		for i := range g.Rules {
			if g.Rules[i].Alert != "" {
				want = append(want, g.Rules[i].id())
			}
		}
	}
	for _, name := range schema(t, "properties", "prometheusRule", "properties", "alerts", "propertyNames")["enum"].([]any) {
		got = append(got, name.(string))
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), got); diff != "" || len(want) < 30 {
		t.Errorf("of %d alerts, -rules +schema:\n%s", len(want), diff)
	}
}

// The values can switch off every source: those that the schema names, which are those of the
// program (a test of exporter/cmd/dra-exporter).
func TestSources(t *testing.T) {
	switches := 0
	for _, name := range schema(t, "properties", "sources", "propertyNames")["enum"].([]any) {
		source := name.(string)
		if source == "dcgm" || source == "scrape" { // whose value is an address or a list
			continue
		}
		switches++
		o := renderObjects(t, values{"sources": values{source: false}})
		set := settings(&o.daemonSet.Spec.Template.Spec.Containers[0])
		if got := set["$DRA_EXPORTER_SOURCE_"+strings.ToUpper(source)]; !slices.Equal(got, []string{"false"}) {
			t.Errorf("without source %s its variable is %q", source, got)
		}
	}
	if switches < 3 {
		t.Errorf("only %d sources have a switch", switches)
	}
}

// The values have a switch for groups of metrics, and the program's defaults. The test of
// exporter/cmd/dra-exporter checks that each group has one.
func TestGroupsOfMetrics(t *testing.T) {
	of := func(v values) map[string][]string {
		o := renderObjects(t, v)
		return settings(&o.daemonSet.Spec.Template.Spec.Containers[0])
	}
	off, defaults := values{}, of(values{})
	for group := range schema(t, "properties", "metrics", "properties") {
		off[group] = false
	}
	groups := 0
	for flag, got := range of(values{"metrics": off}) {
		if !strings.HasPrefix(flag, "--metrics.") {
			continue
		}
		groups++
		if !slices.Equal(got, []string{"off"}) || defaults[flag] != nil {
			t.Errorf("%s is %q where its value is false, and %q by default", flag, got, defaults[flag])
		}
	}
	if groups < 6 || groups != len(off)-1 { // details is off by default
		t.Errorf("%d of %d groups have a switch", groups, len(off))
	}
	if got := of(values{"metrics": values{"details": true}})["--metrics.details"]; !slices.Equal(got, []string{"on"}) {
		t.Errorf("--metrics.details is %q, want on", got)
	}
	if got := of(values{"metrics": values{"pods": "info"}})["--metrics.pods"]; !slices.Equal(got, []string{"info"}) {
		t.Errorf("--metrics.pods is %q, want info", got)
	}
	all := of(values{"metrics": values{"quantitySource": true}})["--metrics.quantity-source"]
	if !slices.Equal(all, []string{"on"}) { // by default, only those of estimates
		t.Errorf("--metrics.quantity-source is %q, want on", all)
	}
}
