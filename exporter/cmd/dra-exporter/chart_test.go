package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const chart = "../../../deployments/helm/dra-exporter/"

// The program has every flag and every variable that the templates of the Helm chart name, and the
// chart's values have a switch for each of its groups of metrics and of its sources.
func TestChart(t *testing.T) {
	var help, stderr bytes.Buffer
	for _, args := range [][]string{{"--help"}, {"top", "--help"}, {"gateway", "--help"}} {
		status := program.Run(t.Context(), args, sources(), &help, &stderr)
		must.That(t, status == 0, "%v: exit status %d: %s", args, status, &stderr)
	}
	// Names that end with a dot or an underscore are completed by values.
	name := regexp.MustCompile(`--(?:\[no-\])?[a-z][a-z.-]*[a-z]\b|\bDRA_EXPORTER_[A-Z_]*[A-Z]\b`)
	var known []string
	for _, flag := range name.FindAllString(help.String(), -1) {
		plain := strings.Replace(flag, "[no-]", "", 1)
		variable := strings.NewReplacer("--", "DRA_EXPORTER_", ".", "_", "-", "_").Replace(plain)
		known = append(known, plain, strings.Replace(flag, "[no-]", "no-", 1), strings.ToUpper(variable))
	}
	templates := must.Get(filepath.Glob(chart + "templates/*.yaml"))(t)
	named := 0
	for _, path := range append(templates, chart+"templates/tests/scrape.yaml") {
		text := must.Get(os.ReadFile(path))(t)
		for line := range strings.Lines(string(text)) {
			for _, flag := range name.FindAllString(line, -1) {
				rest := line[strings.Index(line, flag)+len(flag):]
				if strings.HasPrefix(rest, ".{{") || strings.HasPrefix(rest, "_{{") {
					continue
				}
				named++
				expect.That(t, slices.Contains(known, flag), "%s: the program does not have %s", path, flag)
			}
		}
	}
	expect.That(t, named >= 40, "the templates name only %d flags and variables", named)
	text := must.Get(os.ReadFile(chart + "values.schema.json"))(t)
	var schema struct {
		Properties struct {
			Metrics struct{ Properties map[string]any }
			Sources struct{ PropertyNames struct{ Enum []string } }
		}
	}
	must.Do(t, json.Unmarshal(text, &schema))
	next := regexp.MustCompile(`-[a-z]`)
	sources := []string{"scrape"} // its only flag is --source.scrape.config
	for _, flag := range known {
		if source, is := strings.CutPrefix(flag, "--source."); is && !strings.Contains(source, ".") {
			sources = append(sources, source)
		}
		group, is := strings.CutPrefix(flag, "--metrics.")
		group = next.ReplaceAllStringFunc(group, func(s string) string { return strings.ToUpper(s[1:]) })
		if _, has := schema.Properties.Metrics.Properties[group]; is && !has {
			t.Errorf("the values of the chart have no switch for %s", flag)
		}
	}
	slices.Sort(sources)
	expect.Equal(t, "the chart's schema names other sources", schema.Properties.Sources.PropertyNames.Enum,
		slices.Compact(sources))
}
