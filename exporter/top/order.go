package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
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
		return cmp.Or(reversed(order, reverse), present.CompareNames(a.Node, b.Node),
			present.CompareNames(a.String(), b.String()))
	})
}

// sortHolders sorts rows by an order, then by name.
func sortHolders(rows []present.Holder, by Order, reverse bool) {
	slices.SortStableFunc(rows, func(a, b present.Holder) int {
		order := compare(&a.Figures, &b.Figures, by)
		if by == ByDevice {
			order = present.CompareNames(strings.Join(a.Devices, " "), strings.Join(b.Devices, " "))
		}
		return cmp.Or(reversed(order, reverse), present.CompareNames(a.String(), b.String()),
			present.CompareNames(a.Node, b.Node))
	})
}

// sortIncidents sorts incidents: open ones first, then by the last occurrence, then by node.
func sortIncidents(all []Incident) {
	slices.SortStableFunc(all, func(a, b Incident) int {
		return cmp.Or(a.Compare(b.Incident), present.CompareNames(a.Node, b.Node))
	})
}

// compare compares by an order. By names, all are equal.
func compare(a, b *present.Figures, by Order) int {
	switch by {
	case ByState:
		return book.CompareAttention(a.State, b.State)
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
