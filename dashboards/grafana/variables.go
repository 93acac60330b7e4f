package grafana

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// MostOffered is the highest number of values that a ranked variable offers.
const MostOffered = 20

// variable is a variable whose values are those of a label.
type variable struct {
	name, label string
	of          string // the label
	selector    string // the series that have it, if all values are offered
	// rank gives each value a number, by which the highest are offered, if there may be thousands.
	rank string
}

// list is a hidden variable with all values of a label in the result of a query: those few of many
// that a panel shows.
type list struct {
	name, label string
	of          string // the label
	expr        string
}

// query is Grafana's query for the values.
func (v *variable) query() string {
	if v.rank == "" {
		return "label_values(" + v.selector + ", " + v.of + ")"
	}
	return "query_result(" + v.expr() + ")"
}

// expr is the expression that has all values, or that offers those with the highest ranks, in that
// order.
func (v *variable) expr() string {
	if v.rank == "" {
		return v.selector
	}
	return fmt.Sprintf("sort_desc(topk(%d, %s))", MostOffered, v.rank)
}

// choices are the variables for labels, each restricted by those before it. All dashboards have the
// same ones.
func (b *Board) choices() []variable {
	const workloads = `workload:dra_devices:count{cluster=~"$cluster", namespace=~"$namespace"}`
	clusters, devices := `dra_exporter_build_info`, `dra_device_info{cluster=~"$cluster", node=~"$node"`
	if b.recorded {
		clusters, devices = `cluster:dra_devices:count`, `cluster:dra_devices:count{cluster=~"$cluster"`
	}
	return []variable{
		{name: "cluster", label: "Cluster", of: "cluster", selector: clusters},
		{name: "node", label: "Node", of: "node", rank: b.rankOfNodes()},
		{name: "driver", label: "Driver", of: "driver", selector: devices + `}`},
		{name: "model", label: "Model", of: "model", selector: devices + `, driver=~"$driver"}`},
		{
			name: "device", label: "Device", of: "device",
			selector: `dra_device_info{cluster=~"$cluster", node=~"$node", driver=~"$driver", model=~"$model"}`,
		},
		{name: "namespace", label: "Namespace", of: "namespace", rank: b.rankOfNamespaces()},
		{
			name: "claim", label: "Claim", of: "resourceclaim_name",
			rank: b.rankOfClaims("cluster, namespace, resourceclaim_name", `, node=~"$node", namespace=~"$namespace"`),
		},
		{
			name: "pod", label: "Pod", of: "pod",
			selector: `dra_pod_claim_info{cluster=~"$cluster", node=~"$node", namespace=~"$namespace", ` +
				`resourceclaim_name=~"$claim"}`,
		},
		{name: "kind", label: "Kind", of: "workload_kind", selector: workloads},
		{name: "queue", label: "Queue", of: "queue", rank: rankOfWorkloads("queue", "")},
		{
			name: "workload", label: "Workload", of: "workload_name",
			rank: rankOfWorkloads("cluster, namespace, workload_kind, workload_name",
				`, workload_kind=~"$kind", queue=~"$queue"`+b.found("workload", "workload_name")),
		},
	}
}

// found restricts a selector to the values that match the text box, if the text box is for this
// variable.
func (b *Board) found(name, label string) string {
	if b.search != name {
		return ""
	}
	return `, ` + label + `=~".*$` + searchName + `.*"`
}

// rankOfNodes ranks those with unhealthy devices first, then those whose devices were held for the
// longest, on the dashboard of claims by those that match, or on that of networks, those with the
// most traffic. Nodes without records come last.
func (b *Board) rankOfNodes() string {
	found := `cluster=~"$cluster"` + b.found("node", "node")
	known := `
		or 0 * group by (<node>) (dra_exporter_build_info{` + found + `})`
	switch b.UID {
	case "dra-claim":
		return b.heldByClaims("<node>", "") + known
	case "dra-network":
		return `sum by (<node>) (max by (<node>, namespace, driver, model) ` +
			`(sum_over_time(node_namespace:dra_network_bytes:rate{` + found + `}[$__range])))
			or 0 * sum by (<node>) (max by (<device>, link, direction) (` + `rate(dra_device_io_bytes_total{` + found + `, ` +
			`link=~"network|rdma"}[$__rate_interval])))`
	default:
		return `1e9 + sum by (<node>) (max by (<device>) (count_over_time(device:dra_state:info{` +
			found + `, state="unhealthy"}[$__range])))
		or sum by (<node>) (max by (<node>, namespace, driver) (` +
			`sum_over_time(node_namespace:dra_devices:count{` + found + `}[$__range])))` + known
	}
}

// rankOfNamespaces ranks those first that held devices for the longest.
func (b *Board) rankOfNamespaces() string {
	if !b.recorded {
		return b.rankOfClaims("<namespace>", `, node=~"$node"`)
	}
	return `sum by (<namespace>) (max by (<namespace>, driver, model) ` +
		`(sum_over_time(namespace:dra_allocated_share_seconds:increase$hours{cluster=~"$cluster"` +
		b.found("namespace", "namespace") + `}[$__range])))`
}

// rankOfClaims ranks, by labels, the claims that match the text box: those first that held devices
// for the longest. Claims without recorded series come last.
func (b *Board) rankOfClaims(by, selected string) string {
	return b.heldByClaims(by, selected) + `
		or 0 * group by (` + by + `) (dra_claim_info{cluster=~"$cluster"` + selected +
		b.found("claim", "resourceclaim_name") + `})`
}

// heldByClaims is for how long the claims that match held devices. Pods without a claim have no
// name of one: a list of such names does not offer them.
func (b *Board) heldByClaims(by, selected string) string {
	if !strings.Contains(by, "resourceclaim_name") {
		selected += `, resourceclaim_name!=""`
	}
	return `sum by (` + by + `) (max by (<claim driver>) (sum_over_time(claim:dra_devices:count{cluster=~"$cluster"` +
		selected + b.found("claim", "resourceclaim_name") + `}[$__range])))`
}

// rankOfWorkloads ranks workloads by labels: those first that held devices for the longest.
func rankOfWorkloads(by, selected string) string {
	return `sum by (` + by + `) (max by (<workload>) (sum_over_time(workload:dra_allocated_share_seconds:increase$hours{` +
		`cluster=~"$cluster", namespace=~"$namespace"` + selected + `}[$__range])))`
}

func source() common.DataSourceRef {
	return common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

// searchName is the name of the text box that restricts what the variables offer.
const searchName = "search"

// hoursName is the name of the hidden variable that is the end of the names of recorded increases:
// empty or, for long time ranges, [rules.Hourly], which has fewer samples.
const hoursName = "hours"

// hoursQuery has a result while the selected time range is longer than two days.
const hoursQuery = `query_result(label_replace(vector($__range_s) > 2 * 86400, "of", "` + rules.Hourly + `", "", ""))`

// notOfAddress is a variable that is not in the dashboard's address. Grafana would use the value of
// the address instead of the query's result, although the time range may have changed since, such
// as that of "this week".
type notOfAddress struct {
	cog.Builder[dashboard.VariableModel]
}

func (v notOfAddress) Build() (dashboard.VariableModel, error) {
	built, err := v.Builder.Build()
	built.SkipUrlSync = new(true)
	return built, err
}

// variables are the same on all dashboards, so that links keep their values. Those that a dashboard
// does not show have no query.
func (b *Board) variables() []cog.Builder[dashboard.VariableModel] {
	out := []cog.Builder[dashboard.VariableModel]{
		dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus").
			AllowCustomValue(false).Hide(dashboard.VariableHideDontHide),
		dashboard.NewTextBoxVariableBuilder(searchName).Label("Search " + b.search + "s").
			Description("Part of a name, or a regular expression. The lists offer the " + strconv.Itoa(MostOffered) +
				" most important matches.").
			DefaultValue(dashboard.StringOrMap{String: new("")}).Hide(dashboard.VariableHideDontHide),
	}
	if b.recorded {
		out = append(out, notOfAddress{dashboard.NewQueryVariableBuilder(hoursName).Label("Hours").Datasource(source()).
			Hide(dashboard.VariableHideHideVariable).Query(dashboard.StringOrMap{String: new(hoursQuery)}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Regex(`/of="([^"]+)"/`)})
	}
	all := dashboard.VariableOption{
		Selected: new(true), Text: dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
		Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
	}
	for _, v := range b.choices() {
		if !slices.Contains(b.uses, v.name) {
			out = append(out, dashboard.NewCustomVariableBuilder(v.name).Label(v.label).Hide(dashboard.VariableHideHideVariable).
				Values(dashboard.StringOrMap{String: new("")}).Multi(true).IncludeAll(true).AllValue(".*").Current(all))
			continue
		}
		choice := dashboard.NewQueryVariableBuilder(v.name).Label(v.label).Datasource(source()).
			Hide(dashboard.VariableHideDontHide).
			Query(dashboard.StringOrMap{String: new(Expand(v.query()))}).Multi(true)
		if v.rank == "" {
			choice.Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortNaturalAsc)
		} else {
			// Grafana takes back a value that is no longer offered: not each minute, when ranks change.
			choice.Refresh(dashboard.VariableRefreshOnDashboardLoad).Sort(dashboard.VariableSortDisabled).
				Regex(`/` + v.of + `="([^"]+)"/`)
		}
		if !slices.Contains(b.one, v.name) {
			choice.IncludeAll(true).AllValue(".*").Current(all)
		}
		out = append(out, choice)
	}
	for _, l := range b.lists { // after those that their queries have
		out = append(out, notOfAddress{dashboard.NewQueryVariableBuilder(l.name).Label(l.label).Datasource(source()).
			Hide(dashboard.VariableHideHideVariable).
			Query(dashboard.StringOrMap{String: new("query_result(" + Expand(l.expr) + ")")}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Regex(`/` + l.of + `="([^"]+)"/`).
			Multi(true).IncludeAll(true).Current(all)})
	}
	return out
}

// Fill replaces the variables of an expression: those for labels by the value of that name, All if
// there is none, as for lists; the text box by nothing; Grafana's own range, rate interval and step
// by the durations.
func Fill(expr string, values map[string]string, span, rate, step string) string {
	pairs := []string{
		"$__rate_interval", rate, "$__range", span, "$__interval", step, "$" + searchName, "", "$" + hoursName, "",
	}
	for _, l := range []list{idleNodes(), claimNodes(), heldLongest()} {
		pairs = append(pairs, "$"+l.name, ".*")
	}
	for _, v := range new(Board).choices() {
		value, ok := values[v.name]
		if !ok {
			value = ".*"
		}
		pairs = append(pairs, "$"+v.name, value)
	}
	return strings.NewReplacer(pairs...).Replace(expr)
}

// links are links to the other dashboards. They keep the selection and the time range.
func (b *Board) links() []cog.Builder[dashboard.DashboardLink] {
	var out []cog.Builder[dashboard.DashboardLink]
	for _, to := range Boards() {
		if to.UID == b.UID {
			continue
		}
		out = append(out, dashboard.NewDashboardLinkBuilder(strings.TrimPrefix(to.Title, "DRA / ")).
			Type(dashboard.DashboardLinkTypeLink).Url("/d/"+to.UID+"?"+b.selection(to.UID)).AsDropdown(false).
			IncludeVars(false).KeepTime(true).TargetBlank(false).Icon("dashboard").
			Tooltip("With the same selection and time range"))
	}
	if b.Gateway != "" {
		out = append(out, dashboard.NewDashboardLinkBuilder("Pages").Type(dashboard.DashboardLinkTypeLink).
			Url(b.Gateway+"/").AsDropdown(false).IncludeVars(false).KeepTime(false).TargetBlank(true).
			Icon("external link").Tooltip("The pages of all nodes, as they are now"))
	}
	return out
}

// selection returns the parameters of a link to another dashboard, which keep the selected values.
// It omits a variable that starts with one value there and with All here.
func (b *Board) selection(uid string) string {
	kept := []string{"${datasource:queryparam}"}
	boards := Boards()
	to := boards[slices.IndexFunc(boards, func(other Board) bool { return other.UID == uid })]
	for _, v := range b.choices() {
		if slices.Contains(b.one, v.name) || !slices.Contains(to.one, v.name) {
			kept = append(kept, "${"+v.name+":queryparam}")
		}
	}
	return strings.Join(kept, "&")
}

// annotations mark the times of incidents, device errors and allocations on the dashboards of
// claims and of nodes, but not on those of a whole fleet, where they would be too many.
func (b *Board) annotations() []cog.Builder[dashboard.AnnotationQuery] {
	var out []cog.Builder[dashboard.AnnotationQuery]
	for _, a := range Annotations() {
		if a.of != b.UID {
			continue
		}
		out = append(out, dashboard.NewAnnotationQueryBuilder().Name(a.Name).Datasource(source()).Enable(true).Hide(false).
			IconColor(a.color).
			Target(prometheus.NewDataqueryBuilder().Datasource(source()).RefId("A").Expr(a.Expr)).
			TitleFormat(a.title).TextFormat(a.text).TagKeys(a.tags).UseValueForTime(!a.Spans).Step("60s"))
	}
	return out
}

// Annotation is a query whose values are times in milliseconds, which graphs mark, or which has
// values during the times that they mark.
type Annotation struct {
	Name, Expr               string
	Spans                    bool
	color, title, text, tags string
	of                       string // the UID of the dashboard that has it
}

// Annotations returns the annotations of all dashboards.
func Annotations() []Annotation {
	const (
		hit = `{cluster=~"$cluster", node=~"$node", driver=~"$driver", namespace=~"$namespace", ` +
			`resourceclaim_name=~"$claim"}`
		ofClaim = `max by (cluster, node, driver, pool, device, kind) (`
		ofNode  = `max by (cluster, node, kind) (`
		onNode  = `{cluster=~"$cluster", node=~"$node"}`
	)
	return []Annotation{
		{
			Name: "Incidents begin", color: red, title: "{{kind}} begins", text: "{{device}} on {{node}}", tags: "kind,device",
			of: "dra-claim", Expr: ofClaim + `dra_claim_incident_onset_timestamp_seconds` + hit + `) * 1000`,
		},
		{
			Name: "Incidents open", color: orange, title: "{{kind}}: from its detection to its end",
			text: "{{device}} on {{node}}", tags: "kind,device", of: "dra-claim", Spans: true,
			Expr: ofClaim + `dra_claim_incident_open` + hit + `) > 0`,
		},
		{
			Name: "Incidents begin", color: red, title: "{{kind}} begins", text: "on {{node}}", tags: "kind,node",
			of: "dra-nodes", Expr: ofNode + `dra_exporter_incident_onset_timestamp_seconds` + onNode + `) * 1000`,
		},
		{
			Name: "Incidents open", color: orange, title: "{{kind}}: from its detection to its end", text: "on {{node}}",
			tags: "kind,node", of: "dra-nodes", Spans: true, Expr: ofNode + `dra_exporter_incidents_open` + onNode + `) > 0`,
		},
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
