package chart

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// help builds the program and returns its help text.
func help(t *testing.T) string {
	t.Helper()
	text, err := helpOnce()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return text
}

// helpOnce runs the program of this tree once for all tests. Without cgo it is linked faster, and
// has the same flags.
var helpOnce = sync.OnceValues(func() (string, error) {
	run := exec.CommandContext(context.Background(), "go", "run", "./exporter/cmd/dra-exporter", "--help-long")
	run.Dir, run.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := run.CombinedOutput()
	return string(out), err
})

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

// The program has every flag and every variable that the chart sets, and the values can switch off
// every source.
func TestFlags(t *testing.T) {
	known := regexp.MustCompile(`--(?:\[no-\])?[a-z][a-z.-]+|\$DRA_EXPORTER_[A-Z_]+`).FindAllString(help(t), -1)
	for i := range known {
		known[i] = strings.Replace(known[i], "[no-]", "", 1)
	}
	for name, v := range combinations() {
		o := renderObjects(t, v)
		containers := []corev1.Container{o.daemonSet.Spec.Template.Spec.Containers[0]}
		if test, ok := o.all["Pod test-dra-exporter-test"].(*corev1.Pod); ok {
			containers = append(containers, test.Spec.Containers[0])
		}
		for i := range containers {
			for flag := range settings(&containers[i]) {
				if flag != "top" && !slices.Contains(known, flag) {
					t.Errorf("%s: the program does not have %s", name, flag)
				}
			}
		}
	}
	switches := 0
	for _, flag := range known {
		source, ok := strings.CutPrefix(flag, "--source.")
		if !ok || strings.Contains(source, ".") || source == "dcgm" { // its value is an address
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

// The values have a switch for every group of metrics, which is on by default.
func TestGroupsOfMetrics(t *testing.T) {
	of := func(v values) map[string][]string {
		o := renderObjects(t, v)
		return settings(&o.daemonSet.Spec.Template.Spec.Containers[0])
	}
	name := regexp.MustCompile(`-([a-z])`)
	groups := 0
	for _, flag := range regexp.MustCompile(`--metrics\.[a-z-]+`).FindAllString(help(t), -1) {
		groups++
		value := name.ReplaceAllStringFunc(strings.TrimPrefix(flag, "--metrics."), func(s string) string {
			return strings.ToUpper(s[1:])
		})
		if got := of(values{"metrics": values{value: false}})[flag]; !slices.Equal(got, []string{"off"}) {
			t.Errorf("%s is %q where metrics.%s is false", flag, got, value)
		}
		if got := of(values{})[flag]; got != nil {
			t.Errorf("%s is %q by default", flag, got)
		}
	}
	if groups < 6 {
		t.Errorf("only %d groups have a switch", groups)
	}
	if got := of(values{"metrics": values{"pods": "info"}})["--metrics.pods"]; !slices.Equal(got, []string{"info"}) {
		t.Errorf("--metrics.pods is %q, want info", got)
	}
}
