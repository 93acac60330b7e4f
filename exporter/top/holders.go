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
		return cmp.Or(reversed(order, reverse), present.CompareNames(a.String(), b.String()), present.CompareNames(a.Node, b.Node))
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
	state := Column[present.Holder]{Title: "STATE", cell: func(h *present.Holder) string { return known(string(h.State)) }}
	values := measured(wide, func(h *present.Holder) *present.Figures { return &h.Figures })
	if view == ViewNamespaces {
		count := func(title string, of func(*present.Holder) []string) Column[present.Holder] {
			return Column[present.Holder]{Title: title, Right: true, cell: func(h *present.Holder) string { return strconv.Itoa(len(of(h))) }}
		}
		return append([]Column[present.Holder]{
			{Title: "NAMESPACE", least: 12, cell: (*present.Holder).String},
			state,
			count("DEVICES", func(h *present.Holder) []string { return h.Devices }),
			count("CLAIMS", func(h *present.Holder) []string { return h.Claims }),
			count("PODS", func(h *present.Holder) []string { return h.Pods }),
		}, values...)
	}
	title, other := "CLAIM", Column[present.Holder]{
		Title: "PODS", least: 18, cell: func(h *present.Holder) string { return short(h.Pods, h.Namespace, wide) },
	}
	if view == ViewPods {
		title, other = "POD", Column[present.Holder]{
			Title: "CLAIMS", least: 14, drop: 6, cell: func(h *present.Holder) string { return short(h.Claims, h.Namespace, wide) },
		}
	}
	out := []Column[present.Holder]{{Title: title, least: 26, cell: (*present.Holder).String}}
	if nodes {
		out = append(out, Column[present.Holder]{Title: "NODE", least: 8, cell: func(h *present.Holder) string { return h.Node }})
	}
	out = append(append(out, state), values...)
	return append(out,
		Column[present.Holder]{Title: "HELD", Right: true, drop: 4, cell: func(h *present.Holder) string {
			return present.Duration(h.HeldSeconds)
		}},
		Column[present.Holder]{Title: "DEVICES", least: 10, drop: 5, cell: func(h *present.Holder) string {
			return list(h.DeviceNames(), wide)
		}}, other)
}

// short lists names. It omits the namespace if it is that of the row.
func short(names []string, namespace string, all bool) string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, strings.TrimPrefix(name, namespace+"/"))
	}
	return list(out, all)
}
