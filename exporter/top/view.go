package top

import "github.com/dra-exporter/dra-exporter/exporter/present"

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

// count returns how many rows a view has.
func (e *Everything) count(view View) int {
	return map[View]int{
		ViewDevices: len(e.Devices), ViewClaims: len(e.Claims), ViewPods: len(e.Pods),
		ViewNamespaces: len(e.Namespaces), ViewIncidents: len(e.Incidents),
	}[view]
}

// holders returns the rows of a view of holders.
func (e *Everything) holders(view View) []present.Holder {
	return map[View][]present.Holder{ViewClaims: e.Claims, ViewPods: e.Pods, ViewNamespaces: e.Namespaces}[view]
}

// table lays out a view.
func (e *Everything) table(view View, nodes, wide bool, width int, clean func(string) string) Table {
	switch view {
	case ViewIncidents:
		return layout(e.Incidents, incidentColumns(nodes, wide), width, clean)
	case ViewClaims, ViewPods, ViewNamespaces:
		return layout(e.holders(view), holderColumns(view, nodes, wide), width, clean)
	case ViewDevices:
	}
	return layout(e.Devices, deviceColumns(nodes, wide), width, clean)
}

// subject returns the subject of a row.
func (e *Everything) subject(view View, row int) Subject {
	switch view {
	case ViewIncidents:
		return Subject{view, e.Incidents[row].ID, e.Incidents[row].from}
	case ViewClaims, ViewPods, ViewNamespaces:
		return Subject{view, e.holders(view)[row].String(), e.holders(view)[row].From}
	case ViewDevices:
	}
	return Subject{ViewDevices, e.Devices[row].String(), e.Devices[row].From}
}
