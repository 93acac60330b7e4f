package top

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// View is a view of the table.
type View string

// The views, in the order of their keys: 1 to 4.
const (
	ViewDevices   View = "devices"
	ViewClaims    View = "claims"
	ViewPods      View = "pods"
	ViewIncidents View = "incidents"
)

// Views returns all views.
func Views() []View { return []View{ViewDevices, ViewClaims, ViewPods, ViewIncidents} }

// Order is a criterion for sorting rows.
type Order string

// The orders. The largest number comes first, and states that need attention come first.
const (
	ByState       Order = "state"
	ByDevice      Order = "device"
	ByUtilization Order = "utilization"
	ByMemory      Order = "memory"
	ByPower       Order = "power"
	ByTraffic     Order = "traffic"
	ByQuiet       Order = "quiet"
	ByClaim       Order = "claim"
)

// Orders returns all orders.
func Orders() []Order {
	return []Order{ByState, ByDevice, ByUtilization, ByMemory, ByPower, ByTraffic, ByQuiet, ByClaim}
}

// column is a column of a view.
type column struct {
	title string
	by    Order // which sorts by it; "": none
	wide  bool  // it is only in wide tables
	list  bool  // it is complete only in wide tables
}

// The column that is shown for several nodes, and what separates the elements of lists.
const (
	nodeTitle = "NODE"
	separator = "; "
)

// columns returns the columns of a view. The first ones are seen on a narrow terminal.
func (v View) columns() []column {
	node, state := column{title: nodeTitle}, column{title: "STATE", by: ByState}
	device, pods := column{title: "DEVICE", by: ByDevice}, column{title: "PODS", list: true}
	utilization, power := column{title: "UTIL", by: ByUtilization}, column{title: "POWER", by: ByPower}
	memory := column{title: "MEMORY", by: ByMemory}
	quiet, traffic := column{title: "QUIET", by: ByQuiet}, column{title: "TRAFFIC", by: ByTraffic}
	switch v {
	case ViewClaims, ViewPods:
		name := column{title: map[View]string{ViewClaims: "CLAIM", ViewPods: "POD"}[v], by: ByClaim}
		return []column{
			name, state, node, utilization, power, pods, device, memory, quiet, traffic, {title: "HELD"}, {title: "ACTIVE"},
		}
	case ViewIncidents:
		return []column{
			node, state,
			{title: "INCIDENT"},
			{title: "HIT"},
			{title: "BEGAN"},
			{title: "LASTS"},
			{title: "TIMES"},
			{title: "LAST"},
			{title: "ID", wide: true},
		}
	case ViewDevices:
	}
	return []column{
		node, device, state, utilization, power, pods, memory,
		{title: "TEMP", wide: true},
		quiet, traffic,
		{title: "CLAIM", by: ByClaim, list: true},
		{title: "MODEL", wide: true},
		{title: "DRIVER", wide: true},
		{title: "POOL", wide: true},
		{title: "WHY", wide: true},
	}
}

// table is a view.
type table struct {
	columns []column
	rows    []row
}

// row is a line of a table.
type row struct {
	cells   []present.Figure
	class   string // of its state, as [present.StateClass] has it
	subject Subject
}

// table lays out a view of all nodes: the rows that contain all words of a text in any column,
// sorted.
func (f *fleet) table(view View, filter string, by Order, reverse bool) table {
	out := table{columns: view.columns()}
	words := strings.Fields(strings.ToLower(filter))
	for from, a := range f.answers {
		if a.page == nil {
			continue
		}
		for _, r := range rowsOf(view, from, a.page) {
			var all strings.Builder
			for _, c := range r.cells {
				all.WriteString(strings.ToLower(c.Text) + " ")
			}
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(all.String(), word) }) {
				out.rows = append(out.rows, r)
			}
		}
	}
	out.sort(by, reverse)
	return out
}

func text(s string) present.Figure { return present.Figure{Text: s} }

// rowsOf returns the rows of a node in a view, with a cell for each column.
func rowsOf(view View, from string, p *present.Page) (out []row) {
	attention := slices.SortedFunc(slices.Values(book.States()), book.CompareAttention)
	state := func(s book.State) present.Figure {
		return present.Figure{Text: string(s), Number: float64(slices.Index(attention, s))}
	}
	add := func(name, class string, cells ...present.Figure) {
		out = append(out, row{cells, class, Subject{view, name, from}})
	}
	podsOf := map[[2]string]string{} // by device and claim
	for i := range p.Devices {
		d := &p.Devices[i]
		var pods, claims []string
		for _, h := range d.Holders {
			podsOf[[2]string{d.Name, h.Claim}] = h.Pods
			pods, claims = append(pods, h.Pods), append(claims, h.Claim)
		}
		if view == ViewDevices {
			add(d.Name, d.Class, text(p.Node), text(d.Device), state(d.State), d.Utilization, d.Power, listOf(pods), d.Memory,
				d.Temperature, d.Quiet, d.Traffic, listOf(claims), text(d.Model), text(d.Driver), text(d.Pool), text(d.Why))
		}
	}
	for _, h := range map[View][]present.HolderRow{ViewClaims: p.Claims, ViewPods: p.Pods}[view] {
		name, pods := h.Namespace+"/"+h.Name, ""
		if view == ViewClaims {
			pods = podsOf[[2]string{h.String(), name}]
		}
		add(name, present.StateClass(h.State), text(name), state(h.State), text(p.Node), h.Utilization, h.Power, text(pods),
			text(h.Device), h.Memory, h.Quiet, h.Traffic, h.Held, h.Active)
	}
	if view == ViewIncidents {
		for _, i := range p.Incidents {
			// The exporter sorts them: open ones first, then by the last occurrence.
			s := present.Figure{Text: i.State, Number: -i.Last.Number}
			if !i.IsOpen() {
				s.Number += math.MaxUint32
			}
			add(i.ID, i.Class, text(p.Node), s, text(i.Text), text(i.Hit), i.Since, i.For, text(strconv.Itoa(i.Count)), i.Last,
				text(i.ID))
		}
	}
	return out
}

// listOf joins what is known of some names.
func listOf(names []string) present.Figure {
	slices.SortFunc(names, present.CompareNames)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	return text(strings.Join(names, separator))
}

// sort sorts rows by an order, or by the state if the view has no such column, then by all columns.
func (t *table) sort(by Order, reverse bool) {
	at := slices.IndexFunc(t.columns, func(c column) bool { return c.by == by })
	if at < 0 {
		at, by = slices.IndexFunc(t.columns, func(c column) bool { return c.by == ByState }), ByState
	}
	slices.SortFunc(t.rows, func(a, b row) int {
		order := compare(a.cells[at], b.cells[at], by)
		if reverse {
			order = -order
		}
		return cmp.Or(order, slices.CompareFunc(a.cells, b.cells, func(x, y present.Figure) int {
			return present.CompareNames(x.Text, y.Text)
		}))
	})
}

// compare compares cells by an order. Unknown numbers are the smallest.
func compare(a, b present.Figure, by Order) int {
	switch {
	case by == ByDevice, by == ByClaim:
		return present.CompareNames(a.Text, b.Text)
	case by == ByState:
		return cmp.Compare(a.Number, b.Number)
	case a.Text == "" || b.Text == "":
		return cmp.Compare(len(b.Text), len(a.Text))
	default:
		return cmp.Compare(b.Number, a.Number)
	}
}

// lay returns the titles and the texts of a table: with the node for several nodes, and with all
// columns if wide. Columns without a value are left out. clean replaces characters that control a
// terminal.
func (t *table) lay(nodes, wide bool, clean func(string) string) (titles []string, lines [][]string) {
	lines = make([][]string, len(t.rows))
	for n, c := range t.columns {
		has := func(r row) bool { return r.cells[n].Text != "" }
		if c.wide && !wide || c.title == nodeTitle && !nodes || len(t.rows) > 0 && !slices.ContainsFunc(t.rows, has) {
			continue
		}
		titles = append(titles, c.title)
		for i := range t.rows {
			shown := t.rows[i].cells[n].Text
			if c.list && !wide {
				shown = present.First(strings.Split(shown, separator), separator)
			}
			lines[i] = append(lines[i], clean(cmp.Or(shown, "-")))
		}
	}
	return titles, lines
}

// write writes titles and lines with aligned columns.
func write(w io.Writer, titles []string, lines [][]string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range slices.Insert(lines, 0, titles) {
		_, _ = fmt.Fprintln(out, strings.Join(line, "\t")) // the error is Flush's
	}
	return out.Flush() //nolint:wrapcheck // it is w's
}
