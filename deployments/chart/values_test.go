package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Invalid values are rejected before anything is installed.
func TestBadValues(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]values{
		"vendor":    {"vendor": "nvidea"},
		"interval":  {"interval": "soon"},
		"unknown":   {"intervall": "1s"},
		"idle":      {"idle": values{"threshold": 50}},
		"DNS":       {"dnsPolicy": "None"},
		"port":      {"port": 0},
		"digest":    {"image": values{"digest": "sha256:abc"}},
		"CDI":       {"paths": values{"cdi": []any{"etc/cdi"}}},
		"no class":  {"adminAccess": values{"enabled": true}},
		"no nodes":  {"vendor": "cpu", "onlyOnVendorNodes": true},
		"monitors":  {"podMonitor": values{"enabled": true}, "serviceMonitor": values{"enabled": true}},
		"service":   {"service": values{"enabled": false}, "serviceMonitor": values{"enabled": true}},
		"severity":  {"prometheusRule": values{"alerts": values{"DRAClaimIdle": values{"severity": ""}}}},
		"alert":     {"prometheusRule": values{"alerts": values{"DRAClaimIdel": values{"severity": "info"}}}},
		"share":     {"prometheusRule": values{"idle": values{"usedShare": 50}}},
		"window":    {"prometheusRule": values{"errorWindow": "15 minutes"}},
		"rules":     {"prometheusRule": values{"rules": "nodes"}},
		"clusters":  {"prometheusRule": values{"clusters": []any{""}}},
		"price":     {"prometheusRule": values{"prices": []any{values{"models": ".*"}}}},
		"no API":    {"kube": values{"enabled": false}, "web": values{"kubeAuthorization": values{"enabled": true}}},
		"no writer": {"kube": values{"enabled": false}, "incidents": values{"events": true}},
		"folder":    {"incidents": values{"dir": "incidents"}},
		"root":      {"incidents": values{"dir": "/"}},
		"no folder": {"state": values{"dir": ""}},
		"whole":     {"state": values{"dir": "/"}},
		"MIG":       {"vendor": "amd", "nvidia": values{"migMonitor": true}},
		"library":   {"nvidia": values{"library": "/usr/lib"}},
		"DCGM":      {"sources": values{"dcgm": values{"address": "somewhere"}}},
		"source":    {"sources": values{"nvlm": "false"}},
		"switch":    {"sources": values{"nvml": "perhaps"}},
		"log level": {"logLevel": "loud"},
		"page":      {"prometheusRule": values{"pageURL": "/pages"}},
		"two webs":  {"web": values{"secretName": "web", "certificate": values{"from": "generated"}}},
		"gateway 1": {"gateway": values{"enabled": true}, "service": values{"enabled": false}},
		"gateway 2": {"gateway": values{"enabled": true}, "kube": values{"enabled": false}},
		"gateway 3": {"gateway": values{"enabled": true}, "web": values{"page": false}},
		"group":     {"metrics": values{"pots": false}},
		"choice":    {"metrics": values{"errors": "info"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderShipped(Release{Name: "test", Namespace: "x", Values: v}, false); err == nil {
				t.Error("no error")
			}
		})
	}
}

// Numbers can be set on the command line: helm's --set gives integers as numbers, and everything
// with a point or an exponent as a string.
func TestSetNumbers(t *testing.T) {
	t.Parallel()
	arguments := func(set string) []string {
		v := values{}
		if err := strvals.ParseInto(set, v); err != nil {
			t.Fatal(err)
		}
		return renderObjects(t, v).daemonSet.Spec.Template.Spec.Containers[0].Args
	}
	for set, want := range map[string]string{
		"idle.threshold=0.2": "--idle.threshold=0.2", "idle.threshold=0": "--idle.threshold=0",
		"idle.networkThreshold=2.5e4": "--idle.network-threshold=2.5e4",
	} {
		if args := arguments(set); !slices.Contains(args, want) {
			t.Errorf("--set %s: %q, want %s", set, args, want)
		}
	}
	rules := func(value string, parse func(string, map[string]any) error) string {
		v := values{}
		if err := strvals.ParseInto("prometheusRule.enabled=true,prometheusRule.prices[0].models=.*", v); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"idle.held", "idle.usedShare", "idle.partly", "throttledRatio", "downRatio", "prices[0].perHour",
		} {
			if err := parse("prometheusRule."+name+"="+value, v); err != nil {
				t.Fatal(err)
			}
		}
		documents, err := renderShipped(Release{Name: "test", Namespace: "x", Values: v}, false)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(documents, "")
	}
	if diff := cmp.Diff(rules("0.25", strvals.ParseJSON), rules("0.25", strvals.ParseInto)); diff != "" {
		t.Errorf("numbers, and the same as strings: %s", diff)
	}
	for _, set := range []string{
		"idle.threshold=1.5", "idle.threshold=often", "idle.threshold=-0.1", "prometheusRule.throttledRatio=0.0",
		"prometheusRule.throttledRatio=1.01", "prometheusRule.idle.held=-0.5", "prometheusRule.idle.held=80%",
		"idle.networkThreshold=-1.5", "idle.networkThreshold=",
	} {
		v := values{}
		if err := strvals.ParseInto(set, v); err != nil {
			t.Fatal(err)
		}
		if _, err := renderShipped(Release{Name: "test", Namespace: "x", Values: v}, false); err == nil {
			t.Errorf("--set %s: no error", set)
		}
	}
}

// Every value is used by a template.
func TestEveryValueIsUsed(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var v values
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var templates strings.Builder
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, filepath.Join(folder, "templates", "tests", "scrape.yaml")) {
		if data, err := os.ReadFile(path); err == nil {
			templates.Write(data)
		}
	}
	for name := range v {
		if !strings.Contains(templates.String(), ".Values."+name) {
			t.Errorf("%s is not used", name)
		}
	}
}

// The chart's README lists every value, with a description.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var v values
	data, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	described := regexp.MustCompile("(?m)^\\| (\\S+): `.*` \\| (.*) \\|$").FindAllSubmatch(readme, -1)
	listed := map[string]bool{}
	for _, row := range described {
		key, description := string(row[1]), string(row[2])
		if !strings.HasSuffix(description, ".") {
			t.Errorf("%s is described as %q", key, description)
		}
		for parent := key; ; {
			listed[parent] = true
			dot := strings.LastIndexByte(parent, '.')
			if dot < 0 {
				break
			}
			parent = parent[:dot]
		}
	}
	var check func(prefix string, v values)
	check = func(prefix string, v values) {
		for name, value := range v {
			if !listed[prefix+name] {
				t.Errorf("%s is not in the README", prefix+name)
			}
			if below, ok := value.(values); ok && !bytes.Contains(readme, []byte("\n| "+prefix+name+": `")) {
				check(prefix+name+".", below)
			}
		}
	}
	check("", v)
	if len(described) < 100 {
		t.Errorf("%d values are described", len(described))
	}
}

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
	of := schema(t, "properties", "prometheusRule", "properties", "alerts", "propertyNames")
	for _, name := range of["enum"].([]any) {
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

// Go's memory limit is 80 % of the container's limit, for every notation of that limit.
func TestGoMemoryLimit(t *testing.T) {
	goLimit := func(limits any) (string, bool) {
		c := renderObjects(t, values{"resources": values{"limits": limits}}).daemonSet.Spec.Template.Spec.Containers[0]
		for _, e := range c.Env {
			if e.Name == "GOMEMLIMIT" {
				return e.Value, true
			}
		}
		return "", false
	}
	for _, limit := range []any{
		"256Mi", "1Gi", "0.5Gi", "200M", "1G", "1T", "2Ti", "300000k", "262144Ki", "268435456", 268435456, 268435456.0,
	} {
		text := ""
		switch v := limit.(type) {
		case string:
			text = v
		case int:
			text = strconv.Itoa(v)
		case float64:
			text = strconv.FormatFloat(v, 'f', -1, 64)
		}
		quantity := resource.MustParse(text)
		want := strconv.FormatInt(quantity.Value()*8/10, 10)
		if got, _ := goLimit(values{"memory": limit}); got != want {
			t.Errorf("limit %v: GOMEMLIMIT %s, want %s", limit, got, want)
		}
	}
	if got, set := goLimit(values{"memory": nil}); set {
		t.Errorf("without a limit GOMEMLIMIT is %q", got)
	}
	_, err := renderShipped(Release{Name: "test", Values: values{
		"resources": values{"limits": values{string(corev1.ResourceMemory): "lots"}},
	}}, false)
	if err == nil || !strings.Contains(err.Error(), "resources.limits.memory") {
		t.Errorf("a limit that is no quantity: error %v", err)
	}
}
