package rules

import (
	"fmt"
	"strings"
)

// RunbookURL is where the runbook is published.
const RunbookURL = "https://github.com/dra-exporter/dra-exporter/blob/main/dashboards/RUNBOOK.md"

const runbookHead = `# Runbook

<!-- Made by go generate from the Go code in dashboards/rules; do not edit. -->

What each alert of [out/rules.yaml](out/rules.yaml) means, where to look, and what to do. Windows and
thresholds are those of the shipped file; ` + "`go run -C dashboards ./generate -help`" + ` lists what can be tuned.
`

// Runbook returns the runbook of all alerts as Markdown: a section for each, whose anchor its runbook_url names.
func Runbook(o Options) []byte {
	words := strings.NewReplacer(o.words()...)
	var out strings.Builder
	out.WriteString(runbookHead)
	seen := map[string]bool{}
	for _, group := range alerts(&o) {
		for i := range group.alerts {
			a := &group.alerts[i]
			if seen[a.name] {
				continue
			}
			seen[a.name] = true
			fmt.Fprintf(&out, "\n## %s\n\n%s\n\n", a.name, severities(group.alerts, a.name))
			section := fmt.Sprintf("**Meaning.** %s\n\n**Look.** %s\n\n**Do.** %s\n", a.meaning, a.look, a.do)
			out.WriteString(words.Replace(section))
		}
	}
	return []byte(out.String())
}

// severities says how bad the alerts of a name are, and when they fire.
func severities(alerts []alert, name string) string {
	var lines []string
	for i := range alerts {
		a := &alerts[i]
		if a.name != name {
			continue
		}
		line := "Severity " + string(a.severity)
		if a.action != "" {
			line += " where `action` is `" + a.action + "`"
		}
		if a.hold > 0 {
			line += ", after " + duration(a.hold)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ") + "."
}
