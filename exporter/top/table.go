package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

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

// sortRows sorts rows by an order, then by node and device.
func sortRows(rows []present.Device, by Order, reverse bool) {
	slices.SortStableFunc(rows, func(a, b present.Device) int {
		order := compare(&a.Figures, &b.Figures, by)
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
func compare(a, b *present.Figures, by Order) int {
	switch by {
	case ByState:
		return ledger.CompareAttention(a.State, b.State)
	case ByUtilization:
		return compareNumbers(b.Utilization, a.Utilization)
	case ByMemory:
		return compareNumbers(b.MemoryUsed, a.MemoryUsed)
	case ByPower:
		return compareNumbers(b.Power, a.Power)
	case ByTraffic:
		return compareNumbers(b.Traffic, a.Traffic)
	case ByQuiet:
		return compareNumbers(b.QuietSeconds, a.QuietSeconds)
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

// Filter returns the rows that contain all words of a text: in a name, a model or the state.
func Filter(rows []present.Device, text string) []present.Device {
	return slices.DeleteFunc(slices.Clone(rows), func(r present.Device) bool {
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
	spare bool // it is omitted if no row has a value
	cell  func(*T) string
}

// text returns a column of texts.
func text[T any](title string, least, drop int, cell func(*T) string) Column[T] {
	return Column[T]{Title: title, least: least, drop: drop, cell: cell}
}

// number returns a column of numbers.
func number[T any](title string, drop int, cell func(*T) string) Column[T] {
	return Column[T]{Title: title, Right: true, drop: drop, cell: cell}
}

// deviceColumns returns the columns: with nodes for several nodes, and with everything if wide. On
// a narrow terminal, the claim is omitted first, then memory; power and pods stay.
func deviceColumns(nodes, wide bool) []Column[present.Device] {
	type row = present.Device
	var out []Column[row]
	if nodes {
		out = append(out, text("NODE", 8, 0, func(r *row) string { return r.Node }))
	}
	if wide {
		out = append(out, text("DRIVER", 8, 2, func(r *row) string { return r.Driver }),
			text("POOL", 8, 1, func(r *row) string { return r.Pool }))
	}
	out = append(out, text("DEVICE", 12, 0, func(r *row) string { return r.Device }),
		text("STATE", 0, 0, (*row).StateText))
	out = append(out, measured(wide, func(r *row) *present.Figures { return &r.Figures })...)
	if wide {
		out = append(out, text("MODEL", 8, 3, func(r *row) string { return r.Model }))
	}
	return append(out, text("CLAIM", 18, 6, func(r *row) string { return list(r.Claims, wide) }),
		text("PODS", 18, 0, func(r *row) string { return list(r.Pods, wide) }))
}

// measured returns the columns of values, including those of the wide table.
func measured[T any](wide bool, of func(*T) *present.Figures) []Column[T] {
	figure := func(title string, q driver.Quantity, drop int) Column[T] {
		return number(title, drop, func(r *T) string { return known(of(r).Text(q)) })
	}
	out := []Column[T]{
		figure("UTIL", driver.Utilization, 0), figure("MEMORY", driver.MemoryUsed, 7), figure("POWER", driver.Power, 0),
	}
	if wide {
		out = append(out, figure("TEMP", driver.Temperature, 5), figure("ENERGY", driver.Energy, 4))
	}
	traffic := number("TRAFFIC", 9, func(r *T) string { return known(of(r).TrafficText()) })
	traffic.spare = true
	return append(out, traffic, number("QUIET", 8, func(r *T) string { return known(of(r).Quiet()) }))
}

// known returns a text, or a dash for an unknown one.
func known(text string) string { return cmp.Or(text, "-") }

// list joins names: all, or the first three.
func list(names []string, all bool) string {
	if all {
		return known(strings.Join(names, " "))
	}
	return known(present.First(names, " "))
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
