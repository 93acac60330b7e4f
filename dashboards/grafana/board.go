// Package grafana defines the dashboards for the exporter's metrics. Queries and texts of panels
// are Go code, checked against the exporter's families and written as Grafana's JSON (schema v1).
package grafana

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// Board is a dashboard.
type Board struct {
	UID         string
	Title       string
	Description string
	Rows        []Row
	// Gateway is the address of the gateway, to which cells and the board link; empty: none does.
	Gateway string

	uses []string // the visible variables; the others are present but hidden, so that links keep their values
	// one has the variables that start with their first value, and not with All.
	one []string
	// folded has the titles of the rows that are collapsed at first.
	folded []string
	// search is the variable whose values the text box searches.
	search string
	lists  []list
	// recorded means that the variables offer values of recorded metrics, which the panels show.
	recorded bool
	since    string // the start of the time range when it is opened; empty: an hour before
}

// Row is a titled row of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is a panel with its queries and its texts.
type Panel struct { //nolint:recvcheck // what returns a changed copy takes one
	Title       string
	Description string
	Kind        Kind
	Unit        string // as Grafana names it; in tables each target has its own
	NoData      string // the text without data
	Targets     []Target
	Width       uint32 // of 24
	Height      uint32
	Total       bool // a value is a sum over several devices

	steps    []step // thresholds; none: one neutral color
	states   []state
	colors   []colored // by series of a graph; other series use the palette
	stacked  bool
	max      float64  // of the axis; 0: from the data
	decimals int      // number of decimals; 0: automatic
	sort     string   // the column of a table by which it is sorted, highest first
	limit    int      // of a table's rows
	hide     []string // labels that have no column in a table
	link     string   // the UID of the dashboard that a click on the value opens
	view     int      // the id of the only panel that it opens there; 0: all
	axis     string   // of a heat map: the unit of the values, where Unit is that of the cells
	axisMin  float32  // of a heat map: where the axis begins; 0: from the data
	bars     bool     // of a graph: stacked bars, one for each step
	below    bool     // of a graph: the legend is a list below it
	aligned  bool     // no legend, and an axis as wide as that of other such panels: times are in line
	points   *points  // of a chart of points: which fields it shows
	reshape  []dashboard.DataTransformerConfig
	fields   []dashboard.DashboardFieldConfigSourceOverrides
	// MayBeEmpty is whether the panel may have no data although nothing is wrong.
	MayBeEmpty bool
}

// Target is one query of a panel.
type Target struct {
	Expr   string
	Legend string // of a graph: the name of a series, with {{label}}
	Column string // of a table: the title of the value's column; empty hides it
	Unit   string // of a table's column
}

// Kind is the kind of a panel, named as Grafana's plugin.
type Kind string

// The kinds that the dashboards use.
const (
	Stat     Kind = "stat"
	Graph    Kind = "timeseries"
	Table    Kind = "table"
	Heatmap  Kind = "heatmap"
	Timeline Kind = "state-timeline"
	Points   Kind = "xychart"
)

// The texts of panels that are empty where nothing happens, and without exporters or rules.
const (
	nothingHeld = "nothing held, or no rules loaded"
	noDevice    = "no device: is an exporter scraped, are the rules loaded?"
)

// rank is the column of a table that orders its rows, the highest first, and is not shown.
const rank = "Rank"

// step is a threshold: from value on, color.
type step struct {
	value float64
	color string
}

// state is the text and color of a value in a timeline.
type state struct {
	value, text, color string
}

// colored is the color of a series, the same in all graphs.
type colored struct{ series, color string }

const (
	green   = "green"
	yellow  = "yellow"
	orange  = "orange"
	red     = "red"
	blue    = "blue"
	purple  = "purple"
	darkRed = "dark-red"
	grey    = "#808080"
)

// Boards returns all dashboards.
func Boards() []Board {
	return []Board{fleet(), claim(), namespaces(), workloads(), nodes(), network(), exporter()}
}

// words are the abbreviations in expressions: <of …> is a selector by the variables of the
// dashboard, others are lists of labels, most of them those of the rules.
func words() []string {
	return append([]string{
		"<of devices>", `cluster=~"$cluster", node=~"$node", driver=~"$driver"`,
		"<its nodes>", `cluster=~"$cluster", node=~"$` + claimNodes().name + `", driver=~"$driver"`,
		"<of device>", `cluster=~"$cluster", node=~"$node", driver=~"$driver", device=~"$device"`,
		"<of claims>", `cluster=~"$cluster", node=~"$node", driver=~"$driver", namespace=~"$namespace", ` +
			`resourceclaim_name=~"$claim"`,
		"<of pods>", `cluster=~"$cluster", node=~"$node", namespace=~"$namespace", pod=~"$pod"`,
		"<of claims of all drivers>", `cluster=~"$cluster", node=~"$node", namespace=~"$namespace", ` +
			`resourceclaim_name=~"$claim"`,
		"<of models>", `cluster=~"$cluster", driver=~"$driver", model=~"$model"`,
		"<of namespaces>", `cluster=~"$cluster", driver=~"$driver", model=~"$model", namespace=~"$namespace"`,
		"<of drivers of namespaces>", `cluster=~"$cluster", driver=~"$driver", namespace=~"$namespace"`,
		"<of nodes>", `cluster=~"$cluster", node=~"$node"`,
		"<of workloads>", `cluster=~"$cluster", driver=~"$driver", namespace=~"$namespace", workload_kind=~"$kind", ` +
			`workload_name=~"$workload", queue=~"$queue"`,
		"<of pods of workloads>", `cluster=~"$cluster", node=~"$node", namespace=~"$namespace", workload_kind=~"$kind", ` +
			`workload_name=~"$workload", queue=~"$queue"`,
		"<namespace>", "cluster, namespace",
	}, rules.LabelWords()...)
}

// Catalog adds Prometheus's own metrics of alerts to the rules' catalog, which gives the metrics
// that panels may use.
func Catalog(catalog query.Catalog) query.Catalog {
	labels := []string{
		"alertname", "alertstate", "severity", "action", "namespace", "resourceclaim_name", "pod", "driver", "pool",
		"device", "source", "reason", "kind", "code",
	}
	catalog.Add(query.Family{Name: "ALERTS", Labels: labels})
	catalog.Add(query.Family{Name: "ALERTS_FOR_STATE", Labels: labels})
	return catalog
}

// fact is a number.
func fact(width, height uint32, title, description, unit, noData, expr string, steps ...step) Panel {
	return Panel{
		Title: title, Description: description, Kind: Stat, Unit: unit, NoData: noData, Targets: []Target{{Expr: expr}},
		Width: width, Height: height, steps: steps,
	}
}

// line is a graph of half the width.
func line(title, description, unit, noData, legend, expr string) Panel {
	return Panel{
		Title: title, Description: description, Kind: Graph, Unit: unit, NoData: noData, Width: 12, Height: 8,
		Targets: []Target{{Expr: expr, Legend: legend}},
	}
}

func tableOf(title, description, noData string, width, height uint32, targets ...Target) Panel {
	return Panel{
		Title: title, Description: description, Kind: Table, NoData: noData, Width: width, Height: height, Targets: targets,
	}
}

// ranked is a table that is sorted by a column, the highest first, of some of its rows; 0: all.
func ranked(
	column string, limit int, title, description, noData string, width, height uint32, targets ...Target,
) Panel {
	p := tableOf(title, description, noData, width, height, targets...)
	p.sort, p.limit = column, limit
	return p
}

// columnOf is the query of a column of a table.
func columnOf(title, unit, expr string) Target { return Target{Expr: expr, Column: title, Unit: unit} }

// labelsOf is a query of which a table shows the labels.
func labelsOf(expr string) Target { return Target{Expr: expr} }

// total marks a panel whose values are of several devices.
func (p Panel) total() Panel {
	p.Total = true
	return p
}

// optional marks a panel that may be empty although nothing is wrong: NoData says what is right
// then.
func (p Panel) optional() Panel {
	p.MayBeEmpty = true
	return p
}

// linked returns the panel with the dashboard that a click opens.
func (p Panel) linked(uid string) Panel {
	p.link = uid
	return p
}

// precise returns the panel with a number of decimals.
func (p Panel) precise(decimals int) Panel {
	p.decimals = decimals
	return p
}

// ofOne returns the panel with an axis from 0 to 1.
func (p Panel) ofOne() Panel {
	p.max = 1
	return p
}

// from returns the panel with thresholds.
func (p Panel) from(steps ...step) Panel {
	p.steps = steps
	return p
}

// Check returns an error unless every panel has a title and a description, and every query uses
// existing metrics and labels.
func (b *Board) Check(catalog query.Catalog) error {
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
	expr := v.selector
	if v.rank != "" {
		expr = Expand(v.ranked())
	}
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

// checkable replaces the variables of an expression by values.
func checkable(expr string) string { return Fill(expr, nil, "1h", "5m", "1m") }

func legendLabels(legend string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`).FindAllStringSubmatch(legend, -1) {
		out = append(out, m[1])
	}
	return out
}
