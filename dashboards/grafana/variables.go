package grafana

import (
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// variable is a variable whose values are those of a label.
type variable struct {
	name, label  string
	selector, of string // the series and the label that give the values
}

// query is Grafana's query for the values.
func (v *variable) query() string { return "label_values(" + v.selector + ", " + v.of + ")" }

// choices are the variables for labels, each restricted by those before it. All dashboards have the
// same ones.
func choices() []variable {
	return []variable{
		{"cluster", "Cluster", `dra_exporter_build_info`, "cluster"},
		{"node", "Node", `dra_exporter_build_info{cluster=~"$cluster"}`, "node"},
		{"driver", "Driver", `dra_device_info{cluster=~"$cluster", node=~"$node"}`, "driver"},
		{"model", "Model", `dra_device_info{cluster=~"$cluster", node=~"$node", driver=~"$driver"}`, "model"},
		{
			"device", "Device", `dra_device_info{cluster=~"$cluster", node=~"$node", driver=~"$driver", model=~"$model"}`,
			"device",
		},
		{"namespace", "Namespace", `dra_claim_info{cluster=~"$cluster", node=~"$node"}`, "namespace"},
		{
			"claim", "Claim", `dra_claim_info{cluster=~"$cluster", node=~"$node", namespace=~"$namespace"}`,
			"resourceclaim_name",
		},
		{
			"pod", "Pod", `dra_pod_claim_info{cluster=~"$cluster", node=~"$node", namespace=~"$namespace", ` +
				`resourceclaim_name=~"$claim"}`,
			"pod",
		},
		{"kind", "Kind", `pod:dra_workload:info{cluster=~"$cluster", namespace=~"$namespace"}`, "workload_kind"},
		{"queue", "Queue", `pod:dra_workload:info{cluster=~"$cluster", namespace=~"$namespace"}`, "queue"},
		{
			"workload", "Workload",
			`pod:dra_workload:info{cluster=~"$cluster", namespace=~"$namespace", workload_kind=~"$kind", queue=~"$queue"}`,
			"workload_name",
		},
	}
}

func source() common.DataSourceRef {
	return common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

func (b *Board) variables() []cog.Builder[dashboard.VariableModel] {
	out := []cog.Builder[dashboard.VariableModel]{
		dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus").
			AllowCustomValue(false).Hide(dashboard.VariableHideDontHide),
	}
	all := dashboard.VariableOption{
		Selected: new(true),
		Text:     dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
		Value:    dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
	}
	for _, v := range choices() {
		hide := dashboard.VariableHideHideVariable
		if slices.Contains(b.uses, v.name) {
			hide = dashboard.VariableHideDontHide
		}
		choice := dashboard.NewQueryVariableBuilder(v.name).Label(v.label).Hide(hide).Datasource(source()).
			Query(dashboard.StringOrMap{String: new(v.query())}).Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Sort(dashboard.VariableSortNaturalAsc).Multi(true)
		if !slices.Contains(b.one, v.name) {
			choice.IncludeAll(true).AllValue(".*").Current(all)
		}
		out = append(out, choice)
	}
	return out
}

// Fill replaces the variables of an expression: those for labels by the value of that name, All if
// there is none; Grafana's own range, rate interval and step by the durations.
func Fill(expr string, values map[string]string, span, rate, step string) string {
	pairs := []string{"$__rate_interval", rate, "$__range", span, "$__interval", step}
	for _, v := range choices() {
		value, ok := values[v.name]
		if !ok {
			value = ".*"
		}
		pairs = append(pairs, "$"+v.name, value)
	}
	return strings.NewReplacer(pairs...).Replace(expr)
}

// VariableQueries returns the query of each variable, with the variables before it set to All: a
// selector and the label that gives the values.
func VariableQueries() map[string][2]string {
	out := map[string][2]string{}
	for _, v := range choices() {
		out[v.name] = [2]string{Fill(v.selector, nil, "1h", "5m", "1m"), v.of}
	}
	return out
}

// links are the links of every dashboard to all the others. They keep the selection and the time
// range.
func links() []cog.Builder[dashboard.DashboardLink] {
	return []cog.Builder[dashboard.DashboardLink]{
		dashboard.NewDashboardLinkBuilder("DRA dashboards").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{tag}).
			AsDropdown(false).IncludeVars(true).KeepTime(true).TargetBlank(false).Icon("external link").
			Tooltip("The other DRA dashboards, with the same selection and time range"),
	}
}

// annotations mark the times of device errors and allocations, on the dashboard of claims: of a
// whole fleet they would be thousands.
func (b *Board) annotations() []cog.Builder[dashboard.AnnotationQuery] {
	var out []cog.Builder[dashboard.AnnotationQuery]
	for _, a := range Annotations() {
		if a.of != b.UID {
			continue
		}
		out = append(out, dashboard.NewAnnotationQueryBuilder().Name(a.Name).Datasource(source()).Enable(true).Hide(false).
			IconColor(a.color).
			Target(prometheus.NewDataqueryBuilder().Datasource(source()).RefId("A").Expr(a.Expr)).
			TitleFormat(a.title).TextFormat(a.text).TagKeys(a.tags).UseValueForTime(true).Step("60s"))
	}
	return out
}

// Annotation is a query whose values are times in milliseconds, which graphs mark.
type Annotation struct {
	Name, Expr               string
	color, title, text, tags string
	of                       string // the UID of the dashboard that has it
}

// Annotations returns the annotations of all dashboards.
func Annotations() []Annotation {
	return []Annotation{
		{
			Name: "Device errors", color: red, title: "{{device}}: error", text: "{{driver}} on {{node}}", tags: "driver,node",
			of: "dra-claim",
			Expr: `max by (cluster, node, driver, pool, device) (dra_device_last_error_timestamp_seconds{cluster=~"$cluster", ` +
				`node=~"$node", driver=~"$driver"}) * 1000 and on (cluster, node, driver, pool, device) dra_claim_device_info{` +
				`namespace=~"$namespace", resourceclaim_name=~"$claim"}`,
		},
		{
			Name: "Claims allocated", color: blue, title: "{{namespace}}/{{resourceclaim_name}} allocated", text: "on {{node}}",
			tags: "namespace,node", of: "dra-claim",
			Expr: `max by (cluster, node, namespace, resourceclaim_name) (dra_claim_allocated_timestamp_seconds{` +
				`cluster=~"$cluster", node=~"$node", namespace=~"$namespace", resourceclaim_name=~"$claim"}) * 1000`,
		},
	}
}
