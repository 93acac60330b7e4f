package grafana

import (
	"maps"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

type cogQuery = variants.Dataquery

// columns joins the queries of a table: one row for each set of labels, with a column for each
// value.
func (p *Panel) columns(panel *dashboard.Panel, b *Board, catalog query.Catalog) {
	hidden, names := map[string]bool{"Time": true, "__name__": true}, map[string]string{}
	for _, label := range p.hide {
		hidden[label] = true
	}
	titles := columnTitles()
	var labels, values []string
	// The text without data is that of the table, not of a cell.
	panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, overrideAll(property("noValue", "")))
	for i, t := range p.Targets {
		if answer, err := catalog.Check(checkable(Expand(t.Expr))); err == nil {
			for _, label := range answer.Labels {
				if title, ok := titles[label]; ok {
					names[label] = title
				}
				labels = append(labels, label)
			}
		}
		field := valueField(i, len(p.Targets))
		values = append(values, field)
		if t.Column == "" || t.Column == rank {
			hidden[field] = true
			continue
		}
		names[field] = t.Column
		panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, override(t.Column, p.valueColumn(t)...))
	}
	panel.Transformations = []dashboard.DataTransformerConfig{transformed("merge", map[string]any{})}
	if p.sort != "" {
		panel.Transformations = append(panel.Transformations, sorted(p.sortedBy(), true))
	}
	panel.Transformations = append(panel.Transformations, transformed("organize", map[string]any{
		"excludeByName": hidden, "renameByName": names, "indexByName": columnOrder(labels, values),
	}))
	if p.limit > 0 {
		panel.Transformations = append(panel.Transformations, transformed("limit", map[string]any{"limitField": p.limit}))
	}
	visible := func(label string) bool { return names[label] != "" && !hidden[label] }
	for _, o := range cells(b.pages(visible)) {
		if slices.Contains(slices.Collect(maps.Values(names)), o.Matcher.Options.(string)) {
			panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, o)
		}
	}
}

// valueColumn is how the column of a query's values is shown. It is wide enough for its title, and
// for a number with a unit: a number that is cut on its left is another one.
func (p *Panel) valueColumn(t Target) []dashboard.DynamicConfigValue {
	unit, width := t.Unit, titleColumn(t.Column)
	if unit != "none" {
		width = max(width, numberColumn)
	}
	out := []dashboard.DynamicConfigValue{property("unit", shownUnit(unit))}
	if decimals, fixed := p.decimalsOf(unit); fixed {
		out = append(out, property("decimals", decimals))
	}
	out = append(out, property("custom.minWidth", width))
	if unit == "percentunit" {
		out = append(out, property("max", 1), property("min", 0),
			property("custom.cellOptions", map[string]string{"type": "gauge", "mode": "basic"}))
	}
	return out
}

// columnOrder returns the place of each column: on a narrow screen only the first ones are seen.
// The labels that identify a row come first, then others, values, and labels that are mostly the
// same in all rows.
func columnOrder(labels, values []string) map[string]int {
	first := []string{
		"severity", "alertname", "state", "workload_kind", "workload_name", "namespace", "resourceclaim_name", "pod",
		"device", "node", "driver", "model",
	}
	last := []string{"cluster", "pool"}
	others := slices.DeleteFunc(labels, func(label string) bool { return slices.Contains(last, label) })
	out := map[string]int{}
	for _, name := range slices.Concat(first, others, values, last) {
		if _, ok := out[name]; !ok {
			out[name] = len(out)
		}
	}
	return out
}

// sortedBy returns Grafana's name of the values by which a table is sorted.
func (p *Panel) sortedBy() string {
	i := slices.IndexFunc(p.Targets, func(t Target) bool { return t.Column == p.sort })
	return valueField(i, len(p.Targets))
}

// valueField returns Grafana's name of the values of a query in a table.
func valueField(i, of int) string {
	if of == 1 {
		return "Value"
	}
	return "Value #" + refID(i)
}

// columnTitles are the titles of columns whose label is not a good title.
func columnTitles() map[string]string {
	return map[string]string{
		"cluster": "Cluster", "node": "Node", "namespace": "Namespace", "resourceclaim_name": "Claim", "pod": "Pod",
		"driver": "Driver", "pool": "Pool", "device": "Device", "model": "Model", "vendor": "Vendor", "request": "Request",
		"device_class": "Class", "attribution": "Divided", "share_id": "Share", "admin_access": "Admin",
		"container": "Container", "uuid": "UUID", "pci_bus_id": "PCI", "parent": "Part of", "driver_version": "Driver " +
			"version", "numa_node": "NUMA", "state": "State", "profile": "Profile", "serial": "Serial",
		"firmware_version": "Firmware", "cuda_version": "CUDA", "status": "Status", "type": "Condition",
		"reason": "Reason", "source": "Source", "quantity": "Quantity", "kind": "Kind", "code": "Code", "key": "Taint",
		"value": "Value of taint", "effect": "Effect", "interface": "Interface", "ip": "IP", "hardware_address": "Hardware " +
			"address", "alertname": "Alert", "severity": "Severity", "instance": "Instance", "version": "Version",
		"revision": "Revision", "goversion": "Go", "input": "Input", "resource": "Resource", "action": "Action",
		"listed": "Listed", "workload_kind": "Part of a", "workload_name": "Workload", "queue": "Queue",
		"closest": "Closest", "farthest": "Farthest", "cause": "Cause", "work": "Work", "node_local": "Node-local",
		"alternative": "Smallest that fits", "health": "Health", "link": "Link",
	}
}

// mappings are the texts and colors of values. A value without a text of its own is shown as it is.
func mappings(states []state) []dashboard.ValueMapping {
	options := map[string]dashboard.ValueMappingResult{}
	for i, s := range states {
		result := dashboard.ValueMappingResult{Color: new(s.color), Index: new(int32(i))}
		if s.text != s.value {
			result.Text = new(s.text)
		}
		options[s.value] = result
	}
	return []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: "value", Options: options}}}
}

// cellsOf shows the cells of a column with these texts as others, or in other colors.
func cellsOf(column string, states ...state) dashboard.DashboardFieldConfigSourceOverrides {
	return override(column, property("mappings", mappings(states)),
		property("custom.cellOptions", map[string]string{"type": "color-text"}))
}

func property(id string, value any) dashboard.DynamicConfigValue {
	return dashboard.DynamicConfigValue{Id: id, Value: value}
}

func override(column string, properties ...dashboard.DynamicConfigValue) dashboard.DashboardFieldConfigSourceOverrides {
	return overriding("byName", column, properties)
}

// overrideAll sets properties of all fields.
func overrideAll(properties ...dashboard.DynamicConfigValue) dashboard.DashboardFieldConfigSourceOverrides {
	return overriding("byRegexp", "/.*/", properties)
}

func overriding(
	matcher, of string, properties []dashboard.DynamicConfigValue,
) dashboard.DashboardFieldConfigSourceOverrides {
	return dashboard.DashboardFieldConfigSourceOverrides{
		Matcher: dashboard.MatcherConfig{Id: matcher, Options: of}, Properties: properties,
	}
}

// pages returns the addresses of the gateway's pages of the objects that cells name, by the title
// of the column. It is empty without a gateway.
func (b *Board) pages(visible func(label string) bool) map[string]string {
	out := map[string]string{}
	if b.Gateway == "" || !visible("node") {
		return out
	}
	const (
		value, onNode = "${__value.raw}", "?node=${__data.fields.Node}"
		ofNamespace   = "/${__data.fields.Namespace}/" + value + onNode
	)
	out["Node"] = b.Gateway + "/node/" + value + "/"
	out["Device"] = b.Gateway + "/node/${__data.fields.Node}/#device=" + value
	if visible("driver") && visible("pool") {
		out["Device"] = b.Gateway + "/device/${__data.fields.Driver}/${__data.fields.Pool}/" + value + onNode
	}
	if visible("namespace") {
		out["Claim"], out["Pod"] = b.Gateway+"/claim"+ofNamespace, b.Gateway+"/pod"+ofNamespace
	}
	return out
}

// widths are the widths of columns of labels, in pixels, by title, chosen for the longest usual
// texts. All other columns share the remaining width.
func widths() map[string]int {
	return map[string]int{
		"Alert": 250, "Claim": wideColumn, "Pod": wideColumn, "Model": wideColumn, "Workload": wideColumn, "Driver": 140,
		"Class": 140, "Kind": 150, "Taint": 200, "Effect": 110, "Device": 140, "State": 95, "Severity": 90, "Namespace": 120,
		"Part of a": 105, "PCI": 115, "UUID": 345, "Serial": 130, "Driver version": 130, "Node-local": 105,
	}
}

// carry is the part of links that keeps the data source and the time range.
const carry = "?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"

// deviceURL is the dashboard of a device.
func deviceURL(node, driver, device string) string {
	return "/d/dra-nodes" + carry + "&var-node=" + node + "&var-driver=" + driver + "&var-device=" + device
}

// cells are links from a cell to the dashboard of the object that it names, which keep the data
// source and the time range, and to its page, if there is one; and the widths and colors of cells.
func cells(pages map[string]string) []dashboard.DashboardFieldConfigSourceOverrides {
	link := func(column, uid, selection string) dashboard.DashboardFieldConfigSourceOverrides {
		title, url := "This "+strings.ToLower(column), "/d/"+uid+carry+selection
		if column == "Device" {
			url = deviceURL("${__data.fields.Node}", "${__data.fields.Driver}", "${__value.raw}")
		}
		links := []map[string]any{{"title": title, "url": url}}
		if page := pages[column]; page != "" {
			links = append(links, map[string]any{"title": title + " on the page of its node", "url": page, "targetBlank": true})
		}
		return override(column, property("links", links))
	}
	var out []dashboard.DashboardFieldConfigSourceOverrides
	widths := widths()
	for _, title := range slices.Sorted(maps.Keys(widths)) {
		out = append(out, override(title, property("custom.width", widths[title])))
	}
	out = append(out, override("Node", property("custom.minWidth", numberColumn)))
	return append(out, []dashboard.DashboardFieldConfigSourceOverrides{
		link("Claim", "dra-claim", "&${node:queryparam}&var-namespace=${__data.fields.Namespace}&var-claim=${__value.raw}"),
		link("Pod", "dra-claim", "&${node:queryparam}&${claim:queryparam}"+
			"&var-namespace=${__data.fields.Namespace}&var-pod=${__value.raw}"),
		link("Workload", "dra-workloads", "&var-namespace=${__data.fields.Namespace}&var-kind=${__data.fields[\"Part of "+
			"a\"]}&var-workload=${__value.raw}"),
		link("Namespace", "dra-namespaces", "&var-namespace=${__value.raw}"),
		link("Node", "dra-nodes", "&var-node=${__value.raw}"),
		link("Device", "", ""),
		override("Alert", property("links", []map[string]any{{
			"title": "Runbook", "url": rules.RunbookURL + "#${__value.raw}", "targetBlank": true,
		}})),
		cellsOf("Severity", same("critical", red), same("info", blue), same("warning", orange)),
		cellsOf("State", append(stateColors(), same("allocated", yellow), same("prepared", green))...),
		cellsOf("Listed", state{"true", "yes", "text"}, state{"false", "in no slice", blue}),
		cellsOf("Node-local", state{"true", "yes", "text"}, state{"false", "several nodes", blue}),
	}...)
}
