package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/present"
)

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

// filterHolders returns the rows that contain all words of a text.
func filterHolders(rows []present.Holder, text string) []present.Holder {
	return slices.DeleteFunc(slices.Clone(rows), func(h present.Holder) bool {
		return !hasWords(text, slices.Concat(
			[]string{h.Node, h.String(), string(h.State)}, h.Devices, h.Claims, h.Pods,
		))
	})
}

// holderColumns returns the columns of claims, pods or namespaces.
func holderColumns(view View, nodes, wide bool) []Column[present.Holder] {
	type row = present.Holder
	state := text("STATE", 0, 0, func(h *row) string { return known(string(h.State)) })
	values := measured(wide, func(h *row) *present.Figures { return &h.Figures })
	if view == ViewNamespaces {
		count := func(title string, of func(*row) []string) Column[row] {
			return number(title, 0, func(h *row) string { return strconv.Itoa(len(of(h))) })
		}
		return append([]Column[row]{
			text("NAMESPACE", 12, 0, (*row).String),
			state,
			count("DEVICES", func(h *row) []string { return h.Devices }),
			count("CLAIMS", func(h *row) []string { return h.Claims }),
			count("PODS", func(h *row) []string { return h.Pods }),
		}, values...)
	}
	title := "CLAIM"
	other := text("PODS", 18, 0, func(h *row) string { return short(h.Pods, h.Namespace, wide) })
	if view == ViewPods {
		title = "POD"
		other = text("CLAIMS", 14, 6, func(h *row) string { return short(h.Claims, h.Namespace, wide) })
	}
	out := []Column[row]{text(title, 26, 0, (*row).String)}
	if nodes {
		out = append(out, text("NODE", 8, 0, func(h *row) string { return h.Node }))
	}
	out = append(append(out, state), values...)
	return append(out, number("HELD", 4, func(h *row) string { return present.Duration(h.HeldSeconds) }),
		text("DEVICES", 10, 5, func(h *row) string { return list(h.DeviceNames(), wide) }), other)
}

// short lists names. It omits the namespace if it is that of the row.
func short(names []string, namespace string, all bool) string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, strings.TrimPrefix(name, namespace+"/"))
	}
	return list(out, all)
}
