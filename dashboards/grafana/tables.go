package grafana

import (
	"maps"
	"slices"

	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

type cogQuery = variants.Dataquery

// columns joins the queries of a table: one row for each set of labels, with a column for each
// value.
func (p *Panel) columns(panel *dashboard.Panel, catalog query.Catalog) {
	hidden, names := map[string]bool{"Time": true, "__name__": true}, map[string]string{}
	titles := columnTitles()
	for i, t := range p.Targets {
		if answer, err := catalog.Check(checkable(Expand(t.Expr))); err == nil {
			for _, label := range answer.Labels {
				if title, ok := titles[label]; ok {
					names[label] = title
				}
			}
		}
		field := valueField(i, len(p.Targets))
		if t.Column == "" {
			hidden[field] = true
			continue
		}
		names[field] = t.Column
		properties := []dashboard.DynamicConfigValue{{Id: "unit", Value: t.Unit}}
		if t.Unit == "percentunit" {
			properties = append(properties, dashboard.DynamicConfigValue{Id: "max", Value: 1},
				dashboard.DynamicConfigValue{Id: "min", Value: 0},
				dashboard.DynamicConfigValue{Id: "custom.cellOptions", Value: map[string]string{"type": "gauge", "mode": "basic"}})
		}
		panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, override(t.Column, properties...))
	}
	panel.Transformations = append(panel.Transformations,
		dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}})
	if p.sort != "" {
		sort := []map[string]any{{"field": p.sortedBy(), "desc": true}}
		panel.Transformations = append(panel.Transformations,
			dashboard.DataTransformerConfig{Id: "sortBy", Options: map[string]any{"sort": sort}})
	}
	panel.Transformations = append(panel.Transformations, dashboard.DataTransformerConfig{
		Id:      "organize",
		Options: map[string]any{"excludeByName": hidden, "renameByName": names, "indexByName": map[string]int{}},
	})
	if p.limit > 0 {
		panel.Transformations = append(panel.Transformations,
			dashboard.DataTransformerConfig{Id: "limit", Options: map[string]any{"limitField": p.limit}})
	}
	panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, jumps()...)
}

// sortedBy returns Grafana's name of the values by which a table is sorted.
func (p *Panel) sortedBy() string {
	i := slices.IndexFunc(p.Targets, func(t Target) bool { return t.Column == p.sort })
	return valueField(max(i, 0), len(p.Targets)) // hiddenValue is the first one
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
		"driver": "Driver",
		"pool":   "Pool", "device": "Device", "model": "Model", "vendor": "Vendor", "request": "Request",
		"device_class": "Class",
		"attribution":  "Divided", "share_id": "Share", "admin_access": "Admin", "container": "Container", "uuid": "UUID",
		"pci_bus_id": "PCI", "parent": "Part of", "driver_version": "Driver version", "numa_node": "NUMA", "state": "State",
		"status": "Status", "type": "Condition", "reason": "Reason", "source": "Source", "quantity": "Quantity",
		"kind": "Kind",
		"code": "Code", "key": "Taint", "value": "Value of taint", "effect": "Effect", "interface": "Interface", "ip": "IP",
		"hardware_address": "Hardware address", "alertname": "Alert", "severity": "Severity", "instance": "Instance",
		"version":  "Version",
		"revision": "Revision", "goversion": "Go", "input": "Input", "resource": "Resource", "action": "Action",
	}
}

// colors are the colors of the cells with these texts.
func colors(of map[string]string) []dashboard.DynamicConfigValue {
	options := map[string]dashboard.ValueMappingResult{}
	for i, text := range slices.Sorted(maps.Keys(of)) {
		options[text] = dashboard.ValueMappingResult{Color: new(of[text]), Index: new(int32(i))}
	}
	return []dashboard.DynamicConfigValue{
		{Id: "mappings", Value: []map[string]any{{"type": "value", "options": options}}},
		{Id: "custom.cellOptions", Value: map[string]string{"type": "color-text"}},
	}
}

func override(column string, properties ...dashboard.DynamicConfigValue) dashboard.DashboardFieldConfigSourceOverrides {
	return dashboard.DashboardFieldConfigSourceOverrides{
		Matcher: dashboard.MatcherConfig{Id: "byName", Options: column}, Properties: properties,
	}
}

// selection are the parameters of a link to another dashboard, which keep what is selected.
const selection = "?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}&${node:queryparam}" +
	"&${driver:queryparam}&${model:queryparam}&${namespace:queryparam}"

// jumps are links from a cell to the dashboard of the object that it names. They keep the data
// source and the time range.
func jumps() []dashboard.DashboardFieldConfigSourceOverrides {
	const carry = "?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
	link := func(title, uid, selection string) dashboard.DynamicConfigValue {
		return dashboard.DynamicConfigValue{
			Id:    "links",
			Value: []map[string]any{{"title": title, "url": "/d/" + uid + carry + selection}},
		}
	}
	return []dashboard.DashboardFieldConfigSourceOverrides{
		override("Claim",
			link("This claim", "dra-claim",
				"&${node:queryparam}&var-namespace=${__data.fields.Namespace}&var-claim=${__value.raw}")),
		override("Pod",
			link("This pod", "dra-claim", "&${node:queryparam}&${claim:queryparam}"+
				"&var-namespace=${__data.fields.Namespace}&var-pod=${__value.raw}")),
		override("Namespace", link("This namespace", "dra-namespaces", "&var-namespace=${__value.raw}")),
		override("Node", link("This node", "dra-nodes", "&var-node=${__value.raw}")),
		override("Device",
			link("This device", "dra-nodes", "&var-node=${__data.fields.Node}&var-driver=${__data.fields.Driver}"+
				"&var-device=${__value.raw}")),
		override("Alert", dashboard.DynamicConfigValue{Id: "links", Value: []map[string]any{{
			"title": "Runbook", "url": rules.RunbookURL + "#${__value.raw}", "targetBlank": true,
		}}}),
		override("Severity", colors(map[string]string{"critical": red, "warning": orange, "info": blue})...),
		override("State", colors(map[string]string{
			"unhealthy": red, "unmeasured": yellow, "idle": orange, "active": green, "tainted": purple, "partitioned": grey,
			"free": blue, "allocated": yellow, "prepared": green,
		})...),
	}
}
