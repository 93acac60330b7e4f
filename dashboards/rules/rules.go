package rules

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
)

// Scope is where rules may be evaluated.
type Scope string

// The scopes.
const (
	// Node are rules about single nodes. A server that scrapes some of the nodes can evaluate them.
	Node Scope = "node"
	// Global are rules over all nodes. They read what those of nodes record, and nothing else.
	Global Scope = "global"
)

// Group is a group of rules that are evaluated together, in order.
type Group struct {
	Name  string `yaml:"name"`
	Scope Scope  `yaml:"scope,omitempty"` // in files of the chart alone
	Every string `yaml:"interval,omitempty"`
	Rules []Rule `yaml:"rules"`
}

// Of returns the groups of a scope.
func Of(scope Scope, groups []Group) []Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return g.Scope != scope })
}

// Rule is a rule as Prometheus reads it. As it is defined, and in the chart, it has an ID, and its
// texts have abbreviations, see [Options.words].
type Rule struct {
	ID            string            `yaml:"id,omitempty"` // of an alert, unique
	Record        string            `yaml:"record,omitempty"`
	Alert         string            `yaml:"alert,omitempty"`
	Expr          string            `yaml:"expr"`
	For           string            `yaml:"for,omitempty"`
	KeepFiringFor string            `yaml:"keep_firing_for,omitempty"`
	Labels        map[string]string `yaml:"labels,omitempty"`
	Annotations   map[string]string `yaml:"annotations,omitempty"`
	// Namespaced is whether an alert that has an ID is about a claim: it has the label namespace.
	Namespaced bool `yaml:"namespaced,omitempty"`
}

// Groups returns all rules with these options, and adds the recorded metrics to the catalog. The
// error names every metric and label that the exporter does not have.
func Groups(o Options, catalog query.Catalog) ([]Group, error) {
	sources, err := sources(&o, catalog)
	if err != nil {
		return nil, err
	}
	return resolved(&o, sources), nil
}

// resolved returns the rules with their abbreviations replaced.
func resolved(o *Options, sources []Group) []Group {
	words := strings.NewReplacer(o.words()...)
	groups := slices.Clone(sources)
	for i := range groups {
		g := &groups[i]
		g.Every, g.Rules = words.Replace(g.Every), slices.Clone(g.Rules)
		for j := range g.Rules {
			g.Rules[j] = g.Rules[j].with(o)
		}
	}
	return groups
}

// with returns the rule with its abbreviations replaced.
func (r Rule) with(o *Options) Rule {
	replacer := strings.NewReplacer(append([]string{"<for>", r.For}, o.words()...)...)
	r.ID, r.Namespaced = "", false
	r.Expr, r.Record = replacer.Replace(r.Expr), replacer.Replace(r.Record)
	texts := r.Annotations
	r.Annotations = nil
	for name, text := range texts {
		if r.Annotations == nil {
			r.Annotations = map[string]string{}
		}
		if text = replacer.Replace(o.byGateway(text)); !isRelative(text) { // a link without an address is dropped
			r.Annotations[name] = text
		}
	}
	return r
}

// isRelative reports whether a text is a link whose address is not set.
func isRelative(text string) bool { return strings.HasPrefix(text, "/") }

// sources returns all rules as they are defined, and checks them with these options.
func sources(o *Options, catalog query.Catalog) ([]Group, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("check options of rules: %w", err)
	}
	var groups []Group
	var errs []error
	for _, scope := range []Scope{Node, Global} {
		for _, g := range slices.Concat(recordings(), alerts(o)) {
			if g.scope != scope {
				continue
			}
			group := Group{Name: g.name, Scope: scope, Every: g.every}
			for _, define := range g.rules {
				rule, err := define.rule(o, catalog)
				errs = append(errs, err)
				group.Rules = append(group.Rules, rule)
			}
			groups = append(groups, group)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("build rules: %w", err)
	}
	return groups, nil
}

// rule returns the recording as a Prometheus rule and adds its metric to the catalog.
func (r recording) rule(o *Options, catalog query.Catalog) (Rule, error) {
	rule := Rule{Record: r.name, Expr: tidy(strings.NewReplacer(LabelWords()...).Replace(r.expr)), Labels: r.labels}
	answer, err := catalog.Check(rule.with(o).Expr)
	if err != nil {
		return rule, fmt.Errorf("record %s: %w", r.name, err)
	}
	labels := slices.Concat(answer.Labels, slices.Collect(maps.Keys(r.labels)), r.more)
	catalog.Add(query.Family{Name: r.name, Labels: labels})
	if r.perInterval {
		rule.Expr = fmt.Sprintf("(\n%s\n) * <long interval seconds>", indent(rule.Expr))
	}
	return rule, nil
}

// rule returns the alert as a Prometheus rule. Labels in its texts must be labels of its
// expression.
func (a alert) rule(o *Options, catalog query.Catalog) (Rule, error) {
	rule := Rule{
		ID: a.name, Alert: a.name, Expr: tidy(strings.NewReplacer(LabelWords()...).Replace(a.expr)), For: span(a.hold),
		KeepFiringFor: span(a.keep), Labels: map[string]string{"severity": string(a.severity)},
		Annotations: map[string]string{
			"summary":     a.summary,
			"description": a.description,
			"runbook_url": RunbookURL + "#" + strings.ToLower(a.name),
		},
	}
	if a.action != "" {
		rule.Labels["action"] = a.action
		rule.ID += "-" + a.action
	}
	answer, err := catalog.Check(rule.with(o).Expr)
	if err != nil {
		return rule, fmt.Errorf("alert %s: %w", a.name, err)
	}
	rule.Namespaced = answer.Has("namespace")
	rule.Annotations["dashboard_url"] = "<grafana>" + dashboardOf(answer)
	if answer.Has("node") {
		rule.Annotations["page_url"] = "<page>" + pageOf(answer)
	}
	for _, text := range rule.Annotations {
		for _, label := range labelsIn(text) {
			if !answer.Has(label) {
				return rule, fmt.Errorf("alert %s: its text has the label %q, but its expression does not", a.name, label)
			}
		}
	}
	return rule, nil
}

// dashboardOf returns the path of the dashboard of what an alert is about: the claim, the device,
// the namespace of a pod, the exporter of a node, or all exporters.
func dashboardOf(a query.Answer) string {
	board, labels := "dra-exporter", []string{"cluster", "node"}
	switch {
	case a.Has("resourceclaim_name"):
		board, labels = "dra-claim", []string{"cluster", "node", "namespace", "resourceclaim_name"}
	case a.Has("device"):
		board, labels = "dra-nodes", []string{"cluster", "node", "driver", "device"}
	case a.Has("pod"):
		board, labels = "dra-workloads", []string{"cluster", "namespace"}
	case !a.Has("node"):
		board, labels = "dra-fleet", []string{"cluster"}
	}
	var variables []string
	for _, label := range labels {
		if a.Has(label) {
			name := strings.Replace(label, "resourceclaim_name", "claim", 1)
			variables = append(variables, "var-"+name+"={{ $labels."+label+" | urlquery }}")
		}
	}
	return "/d/" + board + "?" + strings.Join(variables, "&")
}

// pageOf returns the path of what an alert is about on the page of its node's exporter: the details
// of the claim, the device or the pod, else the whole page.
func pageOf(a query.Answer) string {
	switch {
	case a.Has("namespace") && a.Has("resourceclaim_name"):
		return "/#claim={{ $labels.namespace | urlquery }}/{{ $labels.resourceclaim_name | urlquery }}"
	case a.Has("driver") && a.Has("pool") && a.Has("device"):
		return "/#device={{ $labels.driver | urlquery }}/{{ $labels.pool | urlquery }}/{{ $labels.device | urlquery }}"
	case a.Has("namespace") && a.Has("pod"):
		return "/#pod={{ $labels.namespace | urlquery }}/{{ $labels.pod | urlquery }}"
	default:
		return "/"
	}
}

// labelsIn returns the labels that the template of an alert's text uses as $labels.NAME.
func labelsIn(text string) []string {
	var out []string
	for _, rest := range strings.Split(text, "$labels.")[1:] {
		end := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz0123456789_"))
		out = append(out, rest[:end])
	}
	return out
}

// span formats a duration, 0 as "".
func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return duration(d)
}

// tidy removes the indentation that an expression has in the Go source.
func tidy(expr string) string {
	lines := strings.Split(strings.Trim(expr, "\n\t "), "\n")
	shortest := -1
	for _, line := range lines[1:] {
		if tabs := len(line) - len(strings.TrimLeft(line, "\t")); shortest < 0 || tabs < shortest {
			shortest = tabs
		}
	}
	for i, line := range lines {
		if i > 0 {
			line = line[shortest:]
		}
		lines[i] = strings.ReplaceAll(line, "\t", "  ")
	}
	return strings.Join(lines, "\n")
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

const generatedNote = "# Generated by go generate from the Go code in dashboards/rules; do not edit.\n"

// File returns the groups as a Prometheus rules file.
func File(groups []Group) ([]byte, error) {
	groups = slices.Clone(groups)
	for i := range groups {
		groups[i].Scope = ""
	}
	return encode(groups)
}

// Chart returns the rules for the Helm chart, which replaces the abbreviations by its values.
func Chart(o Options, catalog query.Catalog) ([]byte, error) {
	groups, err := sources(&o, catalog)
	if err != nil {
		return nil, err
	}
	return encode(groups)
}

func encode(groups []Group) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(generatedNote)
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(map[string]any{"groups": groups}); err != nil {
		return nil, fmt.Errorf("write rules: %w", err)
	}
	return out.Bytes(), nil
}

// RunbookURL is where the runbook is published.
const RunbookURL = "https://github.com/dra-exporter/dra-exporter/blob/main/dashboards/RUNBOOK.md"

const runbookHead = `# Runbook

<!-- Generated by go generate from the Go code in dashboards/rules; do not edit. -->

What each alert of [out/rules.yaml](out/rules.yaml) means, where to look, and what to do. The expression is
that of the alert, without an action that of the first one. Windows and thresholds are those of the
shipped file; see [Tuning](README.md#tuning).
`

// Runbook returns the runbook as Markdown. It has a section for each alert, whose anchor is in the
// alert's runbook_url.
func Runbook(o Options) []byte {
	words := strings.NewReplacer(append(LabelWords(), o.words()...)...)
	var out strings.Builder
	out.WriteString(runbookHead)
	seen := map[string]bool{}
	for _, group := range alerts(&o) {
		for _, rule := range group.rules {
			a := rule.(alert)
			if seen[a.name] {
				continue
			}
			seen[a.name] = true
			fmt.Fprintf(&out, "\n## %s\n\n%s\n\n", a.name, severities(group.rules, a.name))
			section := fmt.Sprintf("**Meaning.** %s\n\n```promql\n%s\n```\n\n**Diagnosis.** %s\n\n**Mitigation.** %s\n",
				a.meaning, tidy(a.expr), a.diagnosis, a.mitigation)
			out.WriteString(words.Replace(section))
		}
	}
	return []byte(out.String())
}

// severities describes the severity of the alerts of a name and after which time they fire.
func severities(alerts []definition, name string) string {
	var lines []string
	for _, rule := range alerts {
		a := rule.(alert)
		if a.name != name {
			continue
		}
		line := string(a.severity)
		if a.action != "" {
			line += " if `action` is `" + a.action + "`"
		}
		if a.hold > 0 {
			line += ", after " + duration(a.hold)
		}
		lines = append(lines, line)
	}
	return "Severity " + strings.Join(lines, "; ") + "."
}
