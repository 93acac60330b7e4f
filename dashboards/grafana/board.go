// Package grafana is the dashboards for the exporter's metrics: what each panel asks and says is Go, checked
// against the exporter's families, and written as Grafana's JSON (schema v1).
package grafana

import (
	"github.com/dra-exporter/dra-exporter/dashboards/query"
)

// Board is a dashboard.
type Board struct {
	UID         string
	Title       string
	Description string
	Rows        []Row

	uses   []string // the variables that it shows; it carries the others hidden, so that links keep them
	prices bool     // it has variables for prices
}

// Row is a titled row of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is a panel, and what it must say of itself.
type Panel struct {
	Title       string
	Description string
	Kind        Kind
	Unit        string // of Grafana's; of tables, each target has its own
	NoData      string // what it shows without data
	Targets     []Target
	Width       uint32 // of 24
	Height      uint32

	steps    []step // thresholds; none: one neutral color
	states   []state
	colors   []colored // of a graph's series; the others have the palette's
	stacked  bool
	max      float64 // of the axis; 0: by the data
	decimals int     // more than 0: so many
	sort     string  // the column of a table by which it is sorted, highest first
	limit    int     // of a table's rows
	// MayBeEmpty says why the panel may have no data where all is well.
	MayBeEmpty string
}

// Target is one query of a panel.
type Target struct {
	Expr   string
	Legend string // of a graph: the text of a series, with {{label}}
	Column string // of a table: the title of the value's column; empty hides it
	Unit   string // of a table's column
}

// Kind is the kind of a panel, as Grafana's plugins are named.
type Kind string

// The kinds that the dashboards use.
const (
	Stat     Kind = "stat"
	Graph    Kind = "timeseries"
	Table    Kind = "table"
	Bars     Kind = "bargauge"
	Heatmap  Kind = "heatmap"
	Timeline Kind = "state-timeline"
)

// step is a threshold: from value on, color.
type step struct {
	value float64
	color string
}

// state gives a value of a timeline a text and a color.
type state struct {
	value, text, color string
}

// colored gives a series of a graph a color, that it has elsewhere too.
type colored struct{ series, color string }

const (
	green  = "green"
	yellow = "yellow"
	orange = "orange"
	red    = "red"
	blue   = "blue"
	purple = "purple"
	grey   = "#808080"
)

// Boards returns all dashboards.
func Boards() []Board {
	return []Board{fleet(), claim(), namespaces(), nodes(), network(), exporter()}
}

// words are what expressions are abbreviated by: selectors of the variables, and lists of labels.
func words() []string {
	return []string{
		"<d>", `cluster=~"$cluster", node=~"$node", driver=~"$driver"`,
		"<c>", `cluster=~"$cluster", node=~"$node", driver=~"$driver", namespace=~"$namespace", resourceclaim_name=~"$claim"`,
		"<claim of node>", `cluster=~"$cluster", node=~"$node", namespace=~"$namespace", resourceclaim_name=~"$claim"`,
		"<m>", `cluster=~"$cluster", driver=~"$driver", model=~"$model"`,
		"<n>", `cluster=~"$cluster", driver=~"$driver", model=~"$model", namespace=~"$namespace"`,
		"<e>", `cluster=~"$cluster", node=~"$node"`,
		"<device>", "cluster, node, driver, pool, device",
		"<claim>", "cluster, node, namespace, resourceclaim_name",
		"<claim driver>", "cluster, node, namespace, resourceclaim_name, driver",
		"<claim device>", "cluster, node, namespace, resourceclaim_name, driver, pool, device",
		"<pod device>", "cluster, node, namespace, pod, driver, pool, device",
	}
}

// dashboardPrice is the metric that stands for a variable with a price, of a device-hour, where queries are checked.
func dashboardPrice() query.Family {
	return query.Family{Name: "dashboard_price", Unit: query.Unit{Money: 1, Seconds: -1, Scale: 1.0 / 3600}}
}

// Catalog returns the metrics that panels may name: those of the rules, whose catalog it is, and prices.
func Catalog(rules query.Catalog) query.Catalog {
	rules.Add(dashboardPrice())
	rules.Add(query.Family{
		Name: "ALERTS", Unit: query.Unit{Scale: 1},
		Labels: []string{"alertname", "alertstate", "severity", "action", "namespace", "resourceclaim_name", "driver", "device", "source", "reason"},
	})
	return rules
}
