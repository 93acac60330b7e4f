// Package grafana defines the dashboards for the exporter's metrics. Queries and texts of panels
// are Go code, checked against the exporter's families and written as Grafana's JSON (schema v1).
package grafana

import (
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
type Panel struct {
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
