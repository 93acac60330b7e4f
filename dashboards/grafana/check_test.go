package grafana

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// check returns an error unless every panel has a title and a description, and every query uses
// existing metrics and labels, and has what its panel shows.
func (b *Board) check(catalog query.Catalog) error {
	var errs []error
	titles := map[string]bool{}
	for _, row := range b.Rows {
		if row.Title == "" {
			errs = append(errs, errors.New("a row has no title"))
		}
		for i := range row.Panels {
			p := &row.Panels[i]
			if titles[p.Title] {
				errs = append(errs, fmt.Errorf("two panels %q", p.Title))
			}
			titles[p.Title] = true
			if err := p.check(catalog); err != nil {
				errs = append(errs, fmt.Errorf("panel %q: %w", p.Title, err))
			}
		}
	}
	for _, v := range b.choices() {
		if err := v.check(catalog); err != nil {
			errs = append(errs, fmt.Errorf("variable %s: %w", v.name, err))
		}
	}
	for _, a := range Annotations() {
		errs = append(errs, a.check(catalog))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dashboard %s: %w", b.UID, err)
	}
	return nil
}

func (v *variable) check(catalog query.Catalog) error {
	expr := Expand(v.expr())
	answer, err := catalog.Check(checkable(expr))
	switch {
	case err != nil:
		return err
	case !answer.Has(v.of):
		return fmt.Errorf("%s has no label %q", expr, v.of)
	default:
		return nil
	}
}

func (p *Panel) check(catalog query.Catalog) error {
	var errs []error
	require := func(is bool, what string) {
		if !is {
			errs = append(errs, errors.New(what))
		}
	}
	require(p.Title != "" && p.Description != "", "title or description is missing")
	require(strings.HasSuffix(p.Description, "."), "the description is not a sentence")
	require(p.NoData != "", "the text without data is missing")
	require(len(p.Targets) > 0, "no query")
	require(p.Width > 0 && p.Width <= columns && p.Height > 0, "no size")
	require(p.Unit != "" || p.Kind == Table || p.Kind == Timeline, "no unit")
	require((p.Kind == Heatmap) == (p.axis != ""), "the unit of the axis is required for heat maps and only there")
	require((p.Kind == Timeline && !p.aligned) == (len(p.states) > 0), "states are required for timelines and not "+
		"allowed for other kinds")
	total := false
	for _, t := range p.Targets {
		merged, err := p.checkTarget(t, catalog)
		errs, total = append(errs, err), total || merged
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	require(total == p.Total, "it is marked as a total, and no query is one")
	return errors.Join(errs...)
}

// checkTarget reports whether the query gives one value for several devices, which only panels that
// are marked as totals may have.
func (p *Panel) checkTarget(t Target, catalog query.Catalog) (merged bool, err error) {
	t.Expr = Expand(t.Expr)
	if strings.Contains(t.Expr, "rate(") && !strings.Contains(t.Expr, "[$__rate_interval]") {
		return false, fmt.Errorf("%s: rates must use $__rate_interval", t.Expr)
	}
	answer, err := catalog.Check(checkable(t.Expr))
	if err != nil {
		return false, err
	}
	if _, err := catalog.Check(checkable(strings.ReplaceAll(t.Expr, "$"+hoursName, rules.Hourly))); err != nil {
		return false, fmt.Errorf("over a long time: %w", err)
	}
	if err := p.checkTitles(answer.Labels); err != nil {
		return false, fmt.Errorf("%s: %w", t.Expr, err)
	}
	if slices.Contains([]Kind{Graph, Timeline}, p.Kind) && t.Legend == "" {
		return false, fmt.Errorf("%s has no legend", t.Expr)
	}
	for _, label := range legendLabels(t.Legend) {
		if !answer.Has(label) {
			return false, fmt.Errorf("the legend names the label %q, which %s does not have", label, t.Expr)
		}
	}
	if t.Legend != "" && answer.Has("device") && answer.Has("node") && !strings.Contains(t.Legend, "{{node}}") {
		return false, fmt.Errorf("the legend %q does not name the node: devices of two nodes may have the same name",
			t.Legend)
	}
	if answer.Merged && !p.Total {
		return false, fmt.Errorf("%s gives one value for several devices, and the panel is not marked as a total", t.Expr)
	}
	return answer.Merged, nil
}

// checkTitles returns an error unless each label has the title of a column, or is none.
func (p *Panel) checkTitles(labels []string) error {
	titles := columnTitles()
	for _, label := range labels {
		if p.Kind == Table && titles[label] == "" && !slices.Contains(p.hide, label) {
			return fmt.Errorf("the column %q has no title", label)
		}
	}
	return nil
}

func (a *Annotation) check(catalog query.Catalog) error {
	answer, err := catalog.Check(checkable(a.Expr))
	if err != nil {
		return fmt.Errorf("annotation %s: %w", a.Name, err)
	}
	for _, label := range legendLabels(a.title + a.text) {
		if !answer.Has(label) {
			return fmt.Errorf("annotation %s: there is no label %q", a.Name, label)
		}
	}
	return nil
}

func legendLabels(legend string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`).FindAllStringSubmatch(legend, -1) {
		out = append(out, m[1])
	}
	return out
}
