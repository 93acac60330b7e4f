// Package grafana defines the dashboards for the exporter's metrics. Queries and texts of panels
// are Go code, checked against the exporter's families and written as Grafana's JSON (schema v1).
package grafana

import (
	"errors"
	"fmt"
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
	colors   []state // of series of a graph, by name; other series use the palette
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

// state is the text and color of a value: of a timeline or a cell, or a series of a graph.
type state struct {
	value, text, color string
}

// same is a value that is shown as it is, in a color.
func same(value, color string) state { return state{value, value, color} }

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

// perDevice is a graph of a value of devices: a line for each of them and of its labels.
func perDevice(title, description, unit, noData, value string, labels ...string) Panel {
	by, legend := "<device>", "{{device}} {{node}}"
	for _, label := range labels {
		by, legend = by+", "+label, legend+" {{"+label+"}}"
	}
	return line(title, description, unit, noData, legend, "max by ("+by+") ("+value+")")
}

// timeline shows when something was in a state: while the expression has the value 1. It is empty
// where nothing was.
func timeline(title, description, noData string, height uint32, stateName, legend, expr string) Panel {
	p := line(title, description, "", noData, legend, expr).sized(12, height).optional()
	p.Kind, p.states = Timeline, []state{{"1", stateName, red}}
	return p
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

// alone returns the panel with the id of the only panel that its link opens.
func (p Panel) alone(id int) Panel {
	p.view = id
	return p
}

// sized returns the panel with another size.
func (p Panel) sized(width, height uint32) Panel {
	p.Width, p.Height = width, height
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

// Check returns an error unless every query uses existing metrics and labels.
func (b *Board) Check(catalog query.Catalog) error {
	var errs []error
	check := func(of, expr string) {
		for _, hours := range []string{"", rules.Hourly} {
			if _, err := catalog.Check(checkable(strings.ReplaceAll(Expand(expr), "$"+hoursName, hours))); err != nil {
				errs = append(errs, fmt.Errorf("dashboard %s: %s: %w", b.UID, of, err))
			}
		}
	}
	for _, row := range b.Rows {
		for _, p := range row.Panels {
			for _, t := range p.Targets {
				check(fmt.Sprintf("panel %q", p.Title), t.Expr)
			}
		}
	}
	for _, v := range b.choices() {
		check("variable "+v.name, v.expr())
	}
	for _, a := range Annotations() {
		check("annotation "+a.Name, a.Expr)
	}
	return errors.Join(errs...)
}

// checkable replaces the variables of an expression by values.
func checkable(expr string) string { return Fill(expr, nil, "1h", "5m", "1m") }
