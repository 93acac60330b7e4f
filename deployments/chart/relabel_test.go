package chart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
