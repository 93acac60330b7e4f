package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// Measures are the state and values of a row. Unknown values are nil.
type Measures struct {
	State          ledger.State `json:"state"`
	Utilization    *float64     `json:"utilizationRatio,omitempty"`
	MemoryUsed     *float64     `json:"memoryUsedBytes,omitempty"`
	MemoryCapacity *float64     `json:"memoryCapacityBytes,omitempty"`
	Power          *float64     `json:"powerWatts,omitempty"`
	Temperature    *float64     `json:"temperatureCelsius,omitempty"` // the highest
	Energy         *float64     `json:"energyJoules,omitempty"`
	QuietSeconds   *float64     `json:"quietSeconds,omitempty"` // since a holder was last active
}

// Row is a device, as top shows it. Unknown values are nil or empty.
type Row struct {
	Node     string `json:"node"`
	Driver   string `json:"driver"`
	Pool     string `json:"pool"`
	Device   string `json:"device"`
	Model    string `json:"model,omitempty"`
	Unlisted bool   `json:"unlisted,omitempty"` // no ResourceSlice has it
	Why      string `json:"gap,omitempty"`      // why there is no telemetry
	Measures
	Claims []string              `json:"claims"` // NAMESPACE/NAME, without admin access
	Pods   []string              `json:"pods"`
	Report *present.DeviceReport `json:"report"` // everything that the exporter reports about it

	from string // the exporter
}

func (r *Row) id() string { return r.Driver + "/" + r.Pool + "/" + r.Device }

// Rows returns a row for each device of a report.
func Rows(r *present.Report) []Row {
	active := map[[3]string]time.Time{}
	for _, holders := range [][]present.HolderReport{r.Claims, r.Plugins} {
		for i := range holders {
			h := &holders[i]
			key := [3]string{h.Driver, h.Pool, h.Device}
			if h.Ended == nil && h.LastActive != nil && h.LastActive.After(active[key]) {
				active[key] = *h.LastActive
			}
		}
	}
	rows := make([]Row, 0, len(r.Devices))
	for i := range r.Devices {
		d := &r.Devices[i]
		row := Row{
			Node: r.Node, Driver: d.Driver, Pool: d.Pool, Device: d.Device, Model: d.Model, Unlisted: d.Unlisted,
			Why: string(d.Missing), Measures: Measures{State: d.State}, Claims: []string{}, Pods: []string{}, Report: d,
		}
		row.measure(d.Values)
		if last, ok := active[[3]string{d.Driver, d.Pool, d.Device}]; ok {
			quiet := max(0, r.Time.Sub(last).Seconds())
			row.QuietSeconds = &quiet
		}
		for _, s := range d.Shares {
			if s.Admin {
				continue
			}
			if s.Claim != "" {
				row.Claims = append(row.Claims, s.Namespace+"/"+s.Claim)
			}
			row.Pods = append(row.Pods, s.Pods...)
		}
		row.Claims, row.Pods = distinct(row.Claims), distinct(row.Pods)
		rows = append(rows, row)
	}
	return rows
}

func (r *Measures) measure(values []present.ValueReport) {
	for _, v := range values {
		switch v.Quantity {
		case "utilization":
			r.Utilization = &v.Value
		case "memory_used":
			r.MemoryUsed = &v.Value
		case "memory_capacity":
			r.MemoryCapacity = &v.Value
		case "power":
			r.Power = &v.Value
		case "energy":
			r.Energy = &v.Value
		case "temperature":
			if r.Temperature == nil || v.Value > *r.Temperature {
				r.Temperature = &v.Value
			}
		}
	}
}

func distinct(names []string) []string {
	slices.SortFunc(names, present.CompareNames)
	return slices.Compact(names)
}

// Order is a criterion for sorting rows.
type Order string

// The orders. The largest number comes first, and states that need attention come first.
const (
	ByState       Order = "state"
	ByDevice      Order = "device"
	ByUtilization Order = "utilization"
	ByMemory      Order = "memory"
	ByPower       Order = "power"
	ByQuiet       Order = "quiet"
	ByClaim       Order = "claim"
)

// Orders returns all orders.
func Orders() []Order {
	return []Order{ByState, ByDevice, ByUtilization, ByMemory, ByPower, ByQuiet, ByClaim}
}

// sortRows sorts rows by an order, then by node and device.
func sortRows(rows []Row, by Order, reverse bool) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		order := a.compare(&b.Measures, by)
		if by == ByClaim {
			order = present.CompareNames(strings.Join(a.Claims, " "), strings.Join(b.Claims, " "))
		}
		return cmp.Or(
			reversed(order, reverse), present.CompareNames(a.Node, b.Node), present.CompareNames(a.Driver, b.Driver),
			present.CompareNames(a.Pool, b.Pool), present.CompareNames(a.Device, b.Device),
		)
	})
}

// compare compares by an order. By names, all are equal.
func (r *Measures) compare(b *Measures, by Order) int {
	switch by {
	case ByState:
		return ledger.CompareAttention(r.State, b.State)
	case ByUtilization:
		return compareNumbers(b.Utilization, r.Utilization)
	case ByMemory:
		return compareNumbers(b.MemoryUsed, r.MemoryUsed)
	case ByPower:
		return compareNumbers(b.Power, r.Power)
	case ByQuiet:
		return compareNumbers(b.QuietSeconds, r.QuietSeconds)
	case ByClaim, ByDevice:
	}
	return 0
}

func reversed(order int, is bool) int {
	if is {
		return -order
	}
	return order
}

// compareNumbers compares numbers; unknown numbers are the smallest.
func compareNumbers(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	default:
		return cmp.Compare(*a, *b)
	}
}

// Filter returns the rows that contain all words of a text: in a name, a model or the state.
func Filter(rows []Row, text string) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		return !hasWords(text, slices.Concat(
			[]string{r.Node, r.Driver, r.Pool, r.Device, r.Model, string(r.State), r.Why}, r.Claims, r.Pods,
		))
	})
}

// Column is a column of a table.
type Column[T any] struct {
	Title string
	Right bool // numbers
	least int  // the smallest width to which it is cut; 0: never cut
	drop  int  // if lines do not fit, the lowest is omitted first; 0: never
	cell  func(*T) string
}

// deviceColumns returns the columns: with nodes for several nodes, and with everything if wide. On
// a narrow terminal, the claim is omitted first, then memory; power and pods stay.
func deviceColumns(nodes, wide bool) []Column[Row] {
	var out []Column[Row]
	if nodes {
		out = append(out, Column[Row]{Title: "NODE", least: 8, cell: func(r *Row) string { return r.Node }})
	}
	if wide {
		out = append(out,
			Column[Row]{Title: "DRIVER", least: 8, drop: 2, cell: func(r *Row) string { return r.Driver }},
			Column[Row]{Title: "POOL", least: 8, drop: 1, cell: func(r *Row) string { return r.Pool }})
	}
	out = append(out,
		Column[Row]{Title: "DEVICE", least: 12, cell: func(r *Row) string { return r.Device }},
		Column[Row]{Title: "STATE", cell: state})
	out = append(out, measured(wide, func(r *Row) *Measures { return &r.Measures })...)
	if wide {
		out = append(out, Column[Row]{Title: "MODEL", least: 8, drop: 3, cell: func(r *Row) string { return r.Model }})
	}
	return append(out,
		Column[Row]{Title: "CLAIM", least: 18, drop: 6, cell: func(r *Row) string { return list(r.Claims, wide) }},
		Column[Row]{Title: "PODS", least: 18, cell: func(r *Row) string { return list(r.Pods, wide) }})
}

// measured returns the columns of values, including those of the wide table.
func measured[T any](wide bool, of func(*T) *Measures) []Column[T] {
	cell := func(format func(*Measures) string) func(*T) string {
		return func(r *T) string { return format(of(r)) }
	}
	out := []Column[T]{
		{Title: "UTIL", Right: true, cell: cell(func(m *Measures) string { return number(m.Utilization, 100, "%.1f %%") })},
		{Title: "MEMORY", Right: true, drop: 7, cell: cell(memory)},
		{Title: "POWER", Right: true, cell: cell(func(m *Measures) string { return number(m.Power, 1, "%.1f W") })},
	}
	if wide {
		out = append(out,
			Column[T]{
				Title: "TEMP", Right: true, drop: 5,
				cell: cell(func(m *Measures) string { return number(m.Temperature, 1, "%.0f °C") }),
			},
			Column[T]{
				Title: "ENERGY", Right: true, drop: 4,
				cell: cell(func(m *Measures) string { return number(m.Energy, 1e-3, "%.1f kJ") }),
			})
	}
	return append(out, Column[T]{Title: "QUIET", Right: true, drop: 8, cell: cell(quiet)})
}

func state(r *Row) string {
	if r.State == ledger.StateUnmeasured && r.Why != "" {
		return string(r.State) + " (" + r.Why + ")"
	}
	return string(r.State)
}

func number(v *float64, scale float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*scale)
}

func memory(r *Measures) string {
	const gib = 1 << 30
	switch {
	case r.MemoryUsed == nil:
		return "-"
	case r.MemoryCapacity == nil:
		return fmt.Sprintf("%.1f GiB", *r.MemoryUsed/gib)
	default:
		return fmt.Sprintf("%.1f/%.1f GiB", *r.MemoryUsed/gib, *r.MemoryCapacity/gib)
	}
}

func quiet(r *Measures) string {
	if r.QuietSeconds == nil || *r.QuietSeconds < 1 {
		return "-"
	}
	return time.Duration(*r.QuietSeconds * float64(time.Second)).Truncate(time.Second).String()
}

// list joins names: all, or the first three.
func list(names []string, all bool) string {
	if len(names) == 0 {
		return "-"
	}
	if len(names) > 3 && !all {
		return strings.Join(names[:3], " ") + fmt.Sprintf(" and %d more", len(names)-3)
	}
	return strings.Join(names, " ")
}

// countStates returns the number of devices, and of those in each state.
func countStates(rows []Row) string {
	held, counts := 0, map[ledger.State]int{}
	for i := range rows {
		counts[rows[i].State]++
		if len(rows[i].Pods) > 0 {
			held++
		}
	}
	out := []string{fmt.Sprintf("%d devices, %d held", len(rows), held)}
	for _, s := range []ledger.State{
		ledger.StateUnhealthy, ledger.StateStalled, ledger.StateUnmeasured, ledger.StateQuiet,
	} {
		if n := counts[s]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(out, ", ")
}
