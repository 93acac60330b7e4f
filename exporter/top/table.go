package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// View is a view of the table.
type View string

// The views, in the order of their keys: 1 to 5.
const (
	ViewDevices    View = "devices"
	ViewClaims     View = "claims"
	ViewPods       View = "pods"
	ViewNamespaces View = "namespaces"
	ViewIncidents  View = "incidents"
)

// Views returns all views.
func Views() []View {
	return []View{ViewDevices, ViewClaims, ViewPods, ViewNamespaces, ViewIncidents}
}

// table is a view as text. Columns without a value are left out.
type table struct {
	titles []string
	rows   []row
}

// row is a line of a table.
type row struct {
	cells   []string
	class   string // of its state, as [present.StateClass] has it
	subject Subject
}

// column is a column of a table.
type column[T any] struct {
	title string
	cell  func(*T) string
}

// cellsOf returns a row in columns.
func cellsOf[T any](of *T, columns []column[T]) []string {
	var out []string
	for _, c := range columns {
		out = append(out, cmp.Or(c.cell(of), "-"))
	}
	return out
}

// tabulate lays out rows. clean replaces characters that control a terminal.
func tabulate[T any](
	rows []T, columns []column[T], clean func(string) string, about func(*T) (of Subject, class string),
) table {
	var out table
	for i := range rows {
		subject, class := about(&rows[i])
		out.rows = append(out.rows, row{cellsOf(&rows[i], columns), class, subject})
	}
	for n := range slices.Backward(columns) {
		has := func(r row) bool { return r.cells[n] != "-" }
		if len(rows) == 0 || slices.ContainsFunc(out.rows, has) {
			out.titles = slices.Insert(out.titles, 0, columns[n].title)
			continue
		}
		for i := range out.rows {
			out.rows[i].cells = slices.Delete(out.rows[i].cells, n, n+1)
		}
	}
	for _, r := range out.rows {
		for i, text := range r.cells {
			r.cells[i] = clean(text)
		}
	}
	return out
}

// write writes the table with aligned columns.
func (t *table) write(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(out, strings.Join(t.titles, "\t")) // the error is Flush's
	for _, r := range t.rows {
		_, _ = fmt.Fprintln(out, strings.Join(r.cells, "\t"))
	}
	return out.Flush() //nolint:wrapcheck // it is w's
}

// choose returns the rows that contain all words of a text in any column.
func choose[T any](rows []T, columns []column[T], text string) []T {
	words := strings.Fields(strings.ToLower(text))
	return slices.DeleteFunc(slices.Clone(rows), func(of T) bool {
		all := strings.ToLower(strings.Join(cellsOf(&of, columns), " "))
		return slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(all, word) })
	})
}

// Filter returns the rows that contain all words of a text: in a name, a model or the state.
func Filter(rows []present.Device, text string) []present.Device {
	return choose(rows, deviceColumns(true, true), text)
}

// count returns how many rows a view has.
func (e *Everything) count(view View) int {
	return map[View]int{
		ViewDevices: len(e.Devices), ViewClaims: len(e.Claims), ViewPods: len(e.Pods),
		ViewNamespaces: len(e.Namespaces), ViewIncidents: len(e.Incidents),
	}[view]
}

// table lays out a view: with nodes for several nodes, and with everything if wide.
func (e *Everything) table(view View, nodes, wide bool, clean func(string) string) table {
	holders := map[View][]present.Holder{ViewClaims: e.Claims, ViewPods: e.Pods, ViewNamespaces: e.Namespaces}
	switch view {
	case ViewIncidents:
		return tabulate(e.Incidents, incidentColumns(nodes, wide), clean, func(i *Incident) (Subject, string) {
			_, class := present.StateOf(i.Incident)
			return Subject{view, i.ID, i.from}, class
		})
	case ViewClaims, ViewPods, ViewNamespaces:
		return tabulate(holders[view], holderColumns(view, nodes, wide), clean, func(h *present.Holder) (Subject, string) {
			return Subject{view, h.String(), h.From}, present.StateClass(h.State)
		})
	case ViewDevices:
	}
	return tabulate(e.Devices, deviceColumns(nodes, wide), clean, func(d *present.Device) (Subject, string) {
		return Subject{ViewDevices, d.String(), d.From}, present.StateClass(d.State)
	})
}

// deviceColumns returns the columns of devices. The first ones are seen on a narrow terminal.
func deviceColumns(nodes, wide bool) []column[present.Device] {
	type of = present.Device
	var out []column[of]
	if nodes {
		out = append(out, column[of]{"NODE", func(d *of) string { return d.Node }})
	}
	out = append(out, column[of]{"DEVICE", func(d *of) string { return d.Device }},
		column[of]{"STATE", (*of).StateText})
	out = append(out, measured(wide, func(d *of) *present.Figures { return &d.Figures },
		column[of]{"PODS", func(d *of) string { return list(d.Pods, wide) }})...)
	out = append(out, column[of]{"CLAIM", func(d *of) string { return list(d.Claims, wide) }})
	if wide {
		out = append(out, column[of]{"MODEL", func(d *of) string { return d.Model }},
			column[of]{"DRIVER", func(d *of) string { return d.Driver }},
			column[of]{"POOL", func(d *of) string { return d.Pool }})
	}
	return out
}

// measured returns the columns of values, with others after the most important ones.
func measured[T any](wide bool, of func(*T) *present.Figures, others ...column[T]) []column[T] {
	figure := func(title string, q driver.Quantity) column[T] {
		return column[T]{title, func(r *T) string { return of(r).Text(q) }}
	}
	out := []column[T]{figure("UTIL", driver.Utilization), figure("POWER", driver.Power)}
	out = append(append(out, others...), figure("MEMORY", driver.MemoryUsed))
	if wide {
		out = append(out, figure("TEMP", driver.Temperature), figure("ENERGY", driver.Energy))
	}
	return append(out, column[T]{"QUIET", func(r *T) string { return of(r).Quiet() }},
		column[T]{"TRAFFIC", func(r *T) string { return of(r).TrafficText() }})
}

// holderColumns returns the columns of claims, pods or namespaces.
func holderColumns(view View, nodes, wide bool) []column[present.Holder] {
	type of = present.Holder
	state := column[of]{"STATE", func(h *of) string { return string(h.State) }}
	figures := func(h *of) *present.Figures { return &h.Figures }
	if view == ViewNamespaces {
		count := func(title string, names func(*of) []string) column[of] {
			return column[of]{title, func(h *of) string { return strconv.Itoa(len(names(h))) }}
		}
		return append([]column[of]{
			{"NAMESPACE", (*of).String},
			state,
			count("DEVICES", func(h *of) []string { return h.Devices }),
			count("CLAIMS", func(h *of) []string { return h.Claims }),
			count("PODS", func(h *of) []string { return h.Pods }),
		}, measured(wide, figures)...)
	}
	title, other := "CLAIM", column[of]{"PODS", func(h *of) string { return short(h.Pods, h.Namespace, wide) }}
	if view == ViewPods {
		title, other = "POD", column[of]{"CLAIMS", func(h *of) string { return short(h.Claims, h.Namespace, wide) }}
	}
	out := []column[of]{{title, (*of).String}, state}
	if nodes {
		out = append(out, column[of]{"NODE", func(h *of) string { return h.Node }})
	}
	out = append(out, measured(wide, figures, other,
		column[of]{"DEVICES", func(h *of) string { return list(h.DeviceNames(), wide) }})...)
	return append(out, column[of]{"HELD", func(h *of) string { return present.Duration(h.HeldSeconds) }})
}

// incidentColumns returns the columns of incidents.
func incidentColumns(nodes, wide bool) []column[Incident] {
	type of = Incident
	var out []column[of]
	if nodes {
		out = append(out, column[of]{"NODE", func(i *of) string { return i.Node }})
	}
	out = append(out,
		column[of]{"STATE", func(i *of) string {
			word, _ := present.StateOf(i.Incident)
			return word
		}},
		column[of]{"INCIDENT", func(i *of) string { return i.Text }},
		column[of]{"HIT", func(i *of) string { return list(i.Pods(), wide) }},
		column[of]{"BEGAN", func(i *of) string { return present.ClockOfDay(i.Onset) }},
		column[of]{"LASTS", func(i *of) string { return present.Lasted(i.Incident, i.now) }},
		column[of]{"TIMES", func(i *of) string { return strconv.Itoa(i.Count) }},
		column[of]{"LAST", func(i *of) string { return present.ClockOfDay(i.Last) }})
	if wide {
		out = append(out, column[of]{"CLAIMS", func(i *of) string { return list(i.Claims(), wide) }},
			column[of]{"ID", func(i *of) string { return i.ID }})
	}
	return out
}

// list joins names: all, or the first three.
func list(names []string, all bool) string {
	if all {
		return strings.Join(names, " ")
	}
	return present.First(names, " ")
}

// short lists names. It omits the namespace if it is that of the row.
func short(names []string, namespace string, all bool) string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, strings.TrimPrefix(name, namespace+"/"))
	}
	return list(out, all)
}
