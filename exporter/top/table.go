package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// Row is a device as top shows it. What is unknown is nil or empty.
type Row struct {
	Node           string       `json:"node"`
	Driver         string       `json:"driver"`
	Pool           string       `json:"pool"`
	Device         string       `json:"device"`
	Model          string       `json:"model,omitempty"`
	State          ledger.State `json:"state"`
	Unlisted       bool         `json:"unlisted,omitempty"` // it is in no ResourceSlice
	Why            string       `json:"gap,omitempty"`      // why there is no telemetry
	Utilization    *float64     `json:"utilizationRatio,omitempty"`
	MemoryUsed     *float64     `json:"memoryUsedBytes,omitempty"`
	MemoryCapacity *float64     `json:"memoryCapacityBytes,omitempty"`
	Power          *float64     `json:"powerWatts,omitempty"`
	Temperature    *float64     `json:"temperatureCelsius,omitempty"` // the highest
	Energy         *float64     `json:"energyJoules,omitempty"`
	QuietSeconds   *float64     `json:"quietSeconds,omitempty"` // since any holder was active
	Claims         []string     `json:"claims"`                 // NAMESPACE/NAME, without admin access
	Pods           []string     `json:"pods"`
}

// Rows returns a row for each device of a report.
func Rows(r *web.Report) []Row {
	active := map[[3]string]time.Time{}
	for _, holders := range [][]web.HolderReport{r.Claims, r.Plugins} {
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
			Node: r.Node, Driver: d.Driver, Pool: d.Pool, Device: d.Device, Model: d.Model, State: d.State,
			Unlisted: d.Unlisted, Why: string(d.Missing), Claims: []string{}, Pods: []string{},
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

func (r *Row) measure(values []web.ValueReport) {
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
	slices.SortFunc(names, web.CompareNames)
	return slices.Compact(names)
}

// Order is by what rows are sorted.
type Order string

// The orders. The largest number comes first, and what needs a look before what does not.
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

// Sort sorts rows. Rows that are equal by the order are sorted by node and device.
func Sort(rows []Row, by Order, reverse bool) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		order := 0
		switch by {
		case ByState:
			order = ledger.CompareAttention(a.State, b.State)
		case ByUtilization:
			order = compareNumbers(b.Utilization, a.Utilization)
		case ByMemory:
			order = compareNumbers(b.MemoryUsed, a.MemoryUsed)
		case ByPower:
			order = compareNumbers(b.Power, a.Power)
		case ByQuiet:
			order = compareNumbers(b.QuietSeconds, a.QuietSeconds)
		case ByClaim:
			order = web.CompareNames(strings.Join(a.Claims, " "), strings.Join(b.Claims, " "))
		case ByDevice:
		}
		if reverse {
			order = -order
		}
		return cmp.Or(
			order, web.CompareNames(a.Node, b.Node), web.CompareNames(a.Driver, b.Driver),
			web.CompareNames(a.Pool, b.Pool), web.CompareNames(a.Device, b.Device),
		)
	})
}

// compareNumbers compares numbers; unknown ones are the smallest.
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

// Filter returns the rows that have all words of a text somewhere: in a name, a model or the state.
func Filter(rows []Row, text string) []Row {
	words := strings.Fields(strings.ToLower(text))
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		all := strings.ToLower(strings.Join(slices.Concat(
			[]string{r.Node, r.Driver, r.Pool, r.Device, r.Model, string(r.State), r.Why}, r.Claims, r.Pods,
		), " "))
		return slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(all, word) })
	})
}

// Column is a column of the table.
type Column struct {
	Title string
	Right bool // numbers
	least int  // the width below which it is not cut; 0: it is never cut
	drop  int  // where lines do not fit, the lowest is left out first; 0: never
	cell  func(*Row) string
}

// Columns returns the columns: with nodes if there are several, and with all that is known if wide.
func Columns(nodes, wide bool) []Column {
	var out []Column
	if nodes {
		out = append(out, Column{Title: "NODE", least: 8, cell: func(r *Row) string { return r.Node }})
	}
	if wide {
		out = append(out,
			Column{Title: "DRIVER", least: 8, drop: 2, cell: func(r *Row) string { return r.Driver }},
			Column{Title: "POOL", least: 8, drop: 1, cell: func(r *Row) string { return r.Pool }})
	}
	out = append(out,
		Column{Title: "DEVICE", least: 12, cell: func(r *Row) string { return r.Device }},
		Column{Title: "STATE", cell: state},
		Column{Title: "UTIL", Right: true, cell: func(r *Row) string { return number(r.Utilization, 100, "%.1f %%") }},
		Column{Title: "MEMORY", Right: true, drop: 8, cell: memory},
		Column{Title: "POWER", Right: true, drop: 7, cell: func(r *Row) string { return number(r.Power, 1, "%.1f W") }})
	if wide {
		out = append(out,
			Column{
				Title: "TEMP", Right: true, drop: 5,
				cell: func(r *Row) string { return number(r.Temperature, 1, "%.0f °C") },
			},
			Column{
				Title: "ENERGY", Right: true, drop: 4,
				cell: func(r *Row) string { return number(r.Energy, 1e-3, "%.1f kJ") },
			},
			Column{Title: "MODEL", least: 8, drop: 3, cell: func(r *Row) string { return r.Model }})
	}
	return append(out,
		Column{Title: "QUIET", Right: true, cell: quiet},
		Column{Title: "CLAIM", least: 18, cell: func(r *Row) string { return list(r.Claims, wide) }},
		Column{Title: "PODS", least: 18, drop: 6, cell: func(r *Row) string { return list(r.Pods, wide) }})
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

func memory(r *Row) string {
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

func quiet(r *Row) string {
	if r.QuietSeconds == nil || *r.QuietSeconds < 1 {
		return "-"
	}
	return time.Duration(*r.QuietSeconds * float64(time.Second)).Truncate(time.Second).String()
}

// list joins names; the first three unless all are wanted.
func list(names []string, all bool) string {
	if len(names) == 0 {
		return "-"
	}
	if len(names) > 3 && !all {
		return strings.Join(names[:3], " ") + fmt.Sprintf(" and %d more", len(names)-3)
	}
	return strings.Join(names, " ")
}

// Summary says how many devices there are, and how many are in each state that somebody is in.
func Summary(rows []Row) string {
	held, counts := 0, map[ledger.State]int{}
	for i := range rows {
		counts[rows[i].State]++
		if len(rows[i].Pods) > 0 {
			held++
		}
	}
	out := []string{fmt.Sprintf("%d devices, %d held", len(rows), held)}
	for _, s := range []ledger.State{ledger.StateUnhealthy, ledger.StateUnmeasured, ledger.StateQuiet} {
		if n := counts[s]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(out, ", ")
}
