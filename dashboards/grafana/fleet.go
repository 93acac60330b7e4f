package grafana

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/xychart"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// fleet is the overview of the cluster.
func fleet() Board {
	return Board{
		UID: "dra-fleet", Title: "DRA / Fleet", search: "namespace", recorded: true,
		uses: []string{"cluster", "driver", "model", "namespace"}, lists: []list{idleNodes()}, Description: "Claimed, " +
			"idle, free and unhealthy devices, and the waste by namespace.",
		Rows: []Row{
			{"Now", fleetNow()},
			{"What to act on", []Panel{firingAlerts(), idleClaims()}},
			{problemRow, []Panel{sickDevices(), incidentsTable()}},
			{stuckRow, stuckClaims()},
			{oversizedRow, []Panel{oversizedClaims()}},
			{failingRow, failing()},
		}, folded: []string{problemRow, stuckRow, oversizedRow, failingRow},
	}
}

// The rows whose panels are empty in most clusters.
const (
	problemRow   = "Devices with problems, and incidents"
	stuckRow     = "Claims that stall or wait for their driver"
	oversizedRow = "Claims that need less than they hold"
	failingRow   = "Hardware that fails more often"
)

// failing are the nodes and devices that fail more often than their cluster.
func failing() []Panel {
	failures := func(title, of, record, failed, by string) Panel {
		last := `max by (` + by + `) (last_over_time(` + record + `{` + of + `}[2h]))`
		shown := fmt.Sprintf(` and on (`+by+`) topk(%d, %s)`, shownAlerts, last)
		return ranked("At least × the cluster", shownAlerts, title, "At least how many times as often it failed as its "+
			"cluster within a week (at three standard deviations). A failure is an hour in which a device was lost or "+
			"unhealthy, or had a hardware error; one or two such hours are too few to be listed.",
			"no node or device stands out", 12, 7,
			columnOf("At least × the cluster", "none", fmt.Sprintf(`topk(%d, %s)`, shownAlerts, last)),
			columnOf("Hours with a failure", "none", `max by (`+by+`) (sum_over_time(`+failed+`{`+of+`}[7d]))`+shown)).optional()
	}
	return []Panel{
		failures("Nodes that fail more often", `cluster=~"$cluster", node=~"$node"`, rules.FailingNodes,
			"node:dra_failed:info1h", "<node>"),
		failures("Devices that fail more often", `<of devices>`, rules.FailingDevices, "device:dra_failed:info1h",
			"<device>"),
	}
}

// counted is the number of devices in a state, 0 if there are devices but none in that state.
func counted(state string) string {
	return `sum(` + devicesOf(`, state="`+state+`"`) + `) or 0 * sum(` + devicesOf("") + `)`
}

// devicesOf is the number of devices by model and state, of some states.
func devicesOf(states string) string {
	return `max by (cluster, driver, vendor, model, state) (cluster:dra_devices:count{<of models>` + states + `})`
}

// claimedDevices is the number of claimed devices by model.
const claimedDevices = `max by (cluster, driver, vendor, model) (cluster:dra_claimed_devices:count{<of models>})`

// utilization is the mean of the claimed devices that report it.
const utilization = `sum(max by (cluster, driver) (cluster:dra_utilization:sum{cluster=~"$cluster", ` +
	`driver=~"$driver"})) / sum(max by (cluster, driver) ` +
	`(cluster:dra_utilization:count{cluster=~"$cluster", driver=~"$driver"}))`

func number(title, description, expr string, steps ...step) Panel {
	return fact(3, 4, title, description, "none", "no exporter", expr, steps...).linked("dra-nodes")
}

func fleetNow() []Panel {
	return []Panel{
		number("Claimed", "Devices that are held by a claim, or by a pod of a device plugin. Admin access does not count.",
			`sum(`+claimedDevices+`) or 0 * sum(`+devicesOf("")+`)`, step{0, blue}),
		number("Idle", "Claimed devices that were idle during the idle window. Devices without telemetry are not "+
			"included.", counted("idle"), step{0, green}, step{1, orange}).linked("dra-namespaces"),
		number("Free", "Healthy devices with telemetry that no claim holds and no taint keeps claims away from. Of a "+
			"partitioned device, the partitions count, not the device.", counted("free"), step{0, blue}),
		number("Unhealthy", "Devices that their driver reports as unhealthy, or whose telemetry can no longer be read.",
			counted("unhealthy"), step{0, green}, step{1, red}),
		number("Unmeasured", "Claimed devices without telemetry: whether they are idle is unknown.",
			counted("unmeasured"), step{0, green}, step{1, yellow}).linked("dra-exporter"),
		fact(3, 4, "Utilization", "Mean utilization of the claimed devices that report it.", "percentunit", "not measured",
			utilization, step{0, red}, step{0.2, orange}, step{0.5, green}).linked("dra-nodes"),
		fact(3, 4, "Power", "Total power of all devices that report it.", "watt", "not measured",
			`sum(max by (cluster, driver) (cluster:dra_power_watts:sum{cluster=~"$cluster", driver=~"$driver"}))`,
			step{0, blue}).linked("dra-nodes"),
		fact(3, 4, "Alerts", "Firing alerts of dra-exporter's rules.", "none", "none", `count(group by (`+alertLabels+
			`) (ALERTS{alertname=~"DRA.*", alertstate="firing", cluster=~"$cluster"}))`, step{0, green}, step{1, orange}).
			total().optional().linked("dra-fleet").alone(firingAlertsID),
		clusterMap(),
		devicesByState(),
		wasteOverTime("Waste by namespace", "Device-hours in which devices were idle", "idle_share_seconds", " / 3600",
			"h", "nothing is known to be idle"),
		wasteOverTime("Cost of waste by namespace", "What these hours cost at the prices of the rules", "idle_cost", "",
			"currency:¤", "nothing idle has a price"),
		freeByModel(),
	}
}

func devicesByState() Panel {
	p := line("Devices by state", "Devices by state. A device has one state, the first that applies: "+
		"unhealthy, stalled, unmeasured, idle, active, partitioned, tainted, free. A partitioned device counts beside "+
		"its partitions.", "none", noDevice, "{{state}}", `sum by (state) (`+devicesOf("")+`)`).sized(12, 9)
	p.stacked, p.colors = true, stateColors()
	return p
}

// wasteOverTime are bars of an increase of idle claims, by namespace: of the namespaces that wasted
// the most device-hours in the day before the end of the time range.
func wasteOverTime(title, what, record, scaled, unit, noData string) Panel {
	return namespaceBars(title, what+" while the namespace held them, for the ten namespaces that wasted the most "+
		"hours in the last day. Shared devices are divided among their holders.", unit, noData, record, scaled+" > 0",
		10, "idle_share_seconds", " > 0").sized(8, 8).optional()
}

func freeByModel() Panel {
	p := line("Free devices by model", "Devices that nobody holds, that can be read and are healthy and not tainted.",
		"none", "no device is known to be free", "{{model}} {{driver}}",
		`sum by (driver, model) (`+devicesOf(`, state="free"`)+`)`).sized(8, 8).optional()
	p.stacked, p.below = true, true
	return p
}

func oversizedClaims() Panel {
	const (
		unused = `max by (<claim device>, alternative) (dra_claim_fit_unused_ratio{cluster=~"$cluster", node=~"$node", ` +
			`driver=~"$driver", namespace=~"$namespace"})`
		hours = unused + ` * on (<claim device>) group_left () (max by (<claim device>) ` +
			`(dra_claim_allocated_share_seconds_total and on (<claim device>) dra_claim_fit_unused_ratio) / 3600 * on ` +
			`(<device>) group_left () max by (<device>) (device:dra_weight:ratio))`
	)
	return ranked("Wasted device-hours", 20, "Oversized claims", "The 20 claims with the most device-hours that others "+
		"could have used, because a smaller device on their node would have been enough for them. Wasted device-hours: "+
		"since the claim began, or since the exporter started. Click a claim to open its dashboard.",
		"no claim is oversized", 24, 7,
		columnOf("Unused", "percentunit", unused+` and on (<claim device>, alternative) topk(20, `+hours+`)`),
		columnOf("Wasted device-hours", "h", `topk(20, `+hours+`)`)).optional()
}

// idleCost is the cost per day of each holder all of whose devices are idle.
func idleCost(selected string) string {
	return `max by (<holder>) (claim:dra_idle_cost:per_day{cluster=~"$cluster", node=~"$node", namespace=~"$namespace"` +
		selected + `})`
}

// topIdle are the holders of the table "Top ten of waste", claims and pods without a claim, by
// driver: idle is how many idle devices they hold, price what they cost per day, and listed has the
// ten with the highest price, and the ten with the most idle devices in case few have a price.
func topIdle(selected string) (idle, price, listed string) {
	idle = `max by (<holder driver>) (claim:dra_idle_devices:count{cluster=~"$cluster", node=~"$node", ` +
		`driver=~"$driver", namespace=~"$namespace"` + selected + `} > 0)`
	price = `topk(10, group by (<holder driver>) (` + idle + `) * on (<holder>) group_left () (` +
		idleCost(selected) + `))`
	listed = `(group by (<holder driver>) (` + price + `) or on (<holder driver>) group by (<holder driver>) (topk(10, ` +
		idle + `)))`
	return idle, price, listed
}

// idleNodes is the list of the nodes of the holders that are listed. The table reads the series of
// these alone: a large fleet has tens of thousands, which each of its queries would read.
func idleNodes() list {
	_, _, listed := topIdle("")
	return list{name: "idle_nodes", label: "Nodes of idle claims", of: "node", expr: `group by (<node>) (` + listed + `)`}
}

func idleClaims() Panel {
	on := `node=~"$` + idleNodes().name + `"`
	idle, price, listed := topIdle(", " + on)
	// Rows that are not listed are removed before sums are computed, since there may be many.
	of := func(metric string) string { return metric + `{` + on + `} and on (<holder driver>) ` + listed }
	// A value of each device of each holder.
	parts := func(metric string) string {
		return `((max by (<claim device>) (dra_claim_` + metric + `{` + on + `}) or max by (<pod device>) ` +
			`(dra_pod_unclaimed_` + metric + `{` + on + `})) and on (<holder driver>) ` + listed + `)`
	}
	// The part of each idle device that the holder has.
	idleShares := `(` + parts("allocated_share_seconds_total") + ` / on (<holder device>) (` +
		parts("allocated_seconds_total") + ` > 0) and on (<holder device>) (claim_device:dra_idle:bool{` + on +
		`} == 1)) * on (<device>) group_left () max by (<device>) (device:dra_weight:ratio{` + on + `})`
	active := `max by (<holder driver>) (` + parts("last_active_timestamp_seconds") + `)`
	return ranked("Wasted per day", 10, "Top ten of waste", "The ten claims, and pods with devices of a device "+
		"plugin, that hold idle devices and cost the most, by driver. Device-hours are those of the idle devices since "+
		"one of the driver was last active; shared devices and partitions count by their part. The price is that of all "+
		"of the holder's devices, and there is none while one of them is used. Click a claim to open its dashboard.",
		"nothing is known to be idle", 24, 7, columnOf("Idle devices", "none", idle+` and on (<holder driver>) `+listed),
		columnOf("Devices", "none", `max by (<holder driver>) (`+of("claim:dra_devices:count")+`)`),
		columnOf("Wasted per day", "currency:¤", price),
		columnOf("Idle device-hours", "h",
			`(time() - `+active+`) / 3600 * on (<holder driver>) sum by (<holder driver>) (`+idleShares+`)`),
		columnOf("Last active", "dateTimeFromNow", active+` * 1000`),
		columnOf("Memory held", "bytes", `sum by (<claim driver>) (max by (<claim device>) (dra_claim_memory_used_bytes{`+
			on+`} and on (<claim driver>) `+listed+`))`),
		columnOf("Power", "watt", `sum by (<holder driver>) (`+parts("power_watts")+`)`)).total()
}

// alertLabels are the labels that distinguish alerts.
const alertLabels = "alertname, severity, cluster, node, namespace, resourceclaim_name, pod, driver, pool, " +
	"device, action, source, reason"

// firing are the firing alerts of a severity.
func firing(severity string) string {
	return `group by (` + alertLabels + `) (ALERTS{alertname=~"DRA.*", alertstate="firing", cluster=~"$cluster", ` +
		`node=~"$node|", ` + severity + `})`
}

// shownAlerts and shownSick are the largest numbers of alerts and of devices with problems in the
// tables.
const (
	shownAlerts = 50
	shownSick   = 20
)

// firingAlertsID is the id of the panel "Firing alerts", the first one after the pictures.
const firingAlertsID = 16

func firingAlerts() Panel {
	p := ranked(rank, shownAlerts, "Firing alerts", "Firing alerts of dra-exporter's rules, at most 50, critical ones "+
		"first. Click an alert for its section of the runbook, a claim, device or node for its dashboard.", "none", 24, 8,
		columnOf(rank, "none", fmt.Sprintf("topk(%d, 2 + ", shownAlerts)+firing(`severity="critical"`)+
			"\nor 1 + "+firing(`severity="warning"`)+"\nor "+firing(`severity!~"critical|warning"`)+")")).optional()
	p.hide = []string{"pool"}
	return p
}

func sickDevices() Panel {
	ofSick := ` and on (<device>) (` + sick() + `)`
	p := ranked(rank, 0, "Devices with problems", "Devices that are unhealthy, need attention, had an error in the last "+
		"day or are tainted, at most 20, in this order: why, what to do, how many hold them, the time and kind of their "+
		"last error, and since when an alert holds. Click a device for its dashboard.", "no device has a problem", 24, 6,
		// What may have several rows for a device comes first: Grafana adds the values of later
		// queries to all rows of the device.
		labelsOf(`max by (<device>, action, reason) (dra_device_needs_attention{<of devices>} == 1`+ofSick+`)`),
		labelsOf(`group by (<device>, key, effect) (dra_device_tainted{<of devices>, effect!="None"}`+ofSick+`)`),
		labelsOf(`max by (<device>, health) (label_replace(dra_device_health_reason_info{<of devices>}`+ofSick+`, `+
			`"health", "$1", "reason", "(.*)"))`),
		columnOf(rank, "none", `max by (<device>, state) (device:dra_state:info{<of devices>}) `+
			`* on (<device>) group_left () (`+sick()+`)`),
		columnOf("Holders", "none", `max by (<device>) (dra_device_allocations{<of devices>}`+ofSick+`) > 0`),
		// The kind of the last error.
		columnOf("", "dateTimeFromNow", `topk by (<device>) (1, max by (<device>, kind, code) `+
			`(last_over_time(device:dra_error:timestamp_seconds{<of devices>}[1d]))) * 1000`+ofSick),
		columnOf("Last error", "dateTimeFromNow",
			`max by (<device>) (dra_device_last_error_timestamp_seconds{<of devices>}`+ofSick+`) * 1000`),
		columnOf("Since", "dateTimeFromNow", `min by (<device>) (ALERTS_FOR_STATE{<of devices>, `+
			`alertname=~"DRADevice(Unhealthy|Down|Errors|NeedsAttention)|DRATaintedDeviceHeld"}) * 1000`+ofSick)).optional()
	p.hide = []string{"pool"}
	return p
}

// stuckClaims are the claims that wait or make no progress.
func stuckClaims() []Panel {
	return []Panel{
		stalledTable(),
		tableOf("Claims that wait for their driver", "Claims that hold devices which their driver has not "+
			"prepared, so that no pod can use them. If this lasts longer than some seconds, see DRAClaimNotPrepared in "+
			"the runbook.", "none", 12, 6,
			columnOf("Devices", "none", `topk(20, count by (<claim driver>) (group by (<claim device>) `+
				`(dra_claim_device_info{cluster=~"$cluster", node=~"$node", driver=~"$driver", namespace=~"$namespace", `+
				`state="allocated", admin_access="false"})))`)).total().optional(),
	}
}

func stalledTable() Panel {
	const of = `{<of devices>, namespace=~"$namespace", reason!=""}`
	return ranked("Power", 20, "Stalled claims", "Claims that keep a device busy without progress, as when a collective "+
		"operation hangs: the quantities that are far below their baseline, and the power of the claim. Click a claim "+
		"to open its dashboard. See DRAClaimStalled in the runbook.", "none", 12, 6,
		labelsOf(`max by (<claim device>, reason) (dra_claim_stalled`+of+` == 1) and on (<claim device>) topk(20, `+
			stalledPower+`)`), columnOf("Power", "watt", `topk(20, `+stalledPower+`)`)).optional()
}

// stalledPower is the power of the claims that are stalled.
const stalledPower = `max by (<claim device>) (dra_claim_power_watts{<of devices>, namespace=~"$namespace"} and ` +
	`on (<claim device>) (dra_claim_stalled{reason!=""} == 1))`

func incidentsTable() Panel {
	return ranked("Times", 20, "Incidents", "Incidents in the selected time range by node and kind: how often they "+
		"happened, and how many are open now, for the 20 most frequent. The page of the node's exporter shows the "+
		"course of each incident, what was recorded, and which claims it hit. Click a node for its devices.", "none", 24,
		5,
		columnOf("Times", "none",
			`topk(20, round(max by (<node>, kind) (sum_over_time(node:dra_incidents:increase{<of nodes>}[$__range]))) > 0)`),
		columnOf("Open", "none", `topk(20, max by (<node>, kind) (dra_exporter_incidents_open{<of nodes>}) > 0)`)).optional()
}

// sick selects the devices that are unhealthy, need attention, had an error in the last day or are
// tainted, the first shownSick in this order.
func sick() string {
	return fmt.Sprintf(
		`topk(%d,
	3 + group by (<device>) (device:dra_state:info{<of devices>, state="unhealthy"})
	  or on (<device>) 2 + group by (<device>) (dra_device_needs_attention{<of devices>} == 1)
	  or on (<device>) 1 + group by (<device>) (dra_device_last_error_timestamp_seconds{<of devices>} > time() - 86400)
	  or on (<device>) group by (<device>) (dra_device_tainted{<of devices>, effect!="None"}))`, shownSick)
}

// points names the fields of a chart of points.
type points struct {
	title       string // of what hovering over a point shows
	x, y, color string
	size        string // empty: all points have the size
	isMap       bool   // squares without axes
	least, most int32  // sizes in pixels
}

// built is a builder of what is there.
type built[T any] struct{ value T }

func (b built[T]) Build() (T, error) { return b.value, nil }

func byName(field string) xychart.MatcherConfig {
	return xychart.MatcherConfig{Id: "byName", Options: field}
}

// panel returns the builder of a chart of points.
func (p *points) panel() cog.Builder[dashboard.Panel] {
	series := xychart.XYSeriesConfig{
		Name:  &xychart.XychartXYSeriesConfigName{Fixed: &p.title},
		Frame: &xychart.XychartXYSeriesConfigFrame{Matcher: xychart.MatcherConfig{Id: "byIndex", Options: 0}},
		X:     &xychart.XychartXYSeriesConfigX{Matcher: byName(p.x)},
		Y:     &xychart.XychartXYSeriesConfigY{Matcher: byName(p.y)},
		Color: &xychart.XychartXYSeriesConfigColor{Matcher: byName(p.color)},
	}
	size := xychart.XychartFieldConfigPointSize{Fixed: &p.most, Min: &p.least, Max: &p.most}
	if p.size != "" {
		series.Size = &xychart.XychartXYSeriesConfigSize{Matcher: byName(p.size)}
	}
	out := xychart.NewPanelBuilder().Mapping(xychart.SeriesMappingManual).Show(xychart.XYShowModePoints).
		PointSize(built[xychart.XychartFieldConfigPointSize]{size}).PointStrokeWidth(1).FillOpacity(60).
		Series([]cog.Builder[xychart.XYSeriesConfig]{built[xychart.XYSeriesConfig]{series}}).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(false).DisplayMode(common.LegendDisplayModeHidden).
			Placement(common.LegendPlacementBottom).Calcs([]string{})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeSingle).Sort(common.SortOrderNone))
	if p.isMap {
		out.PointShape(xychart.PointShapeSquare).AxisPlacement(common.AxisPlacementHidden).AxisGridShow(false).
			PointStrokeWidth(0).FillOpacity(100)
	}
	return out
}

// calculated adds a field to a table: an operation on one field, or on a field and a field or
// number.
func calculated(name, operator, left, right string) dashboard.DataTransformerConfig {
	unary := map[string]any{"operator": operator, "fieldName": left}
	options := map[string]any{"alias": name, "mode": "unary", "unary": unary}
	switch {
	case operator == "index":
		options = map[string]any{"alias": name, "mode": "index"}
	case right != "":
		operand := func(of string) map[string]any {
			if _, err := strconv.Atoi(of); err == nil {
				return map[string]any{"fixed": of}
			}
			return map[string]any{"matcher": map[string]any{"id": "byName", "options": of}}
		}
		options = map[string]any{"alias": name, "mode": "binary", "binary": map[string]any{
			"left": operand(left), "operator": operator, "right": operand(right),
		}}
	}
	return dashboard.DataTransformerConfig{Id: "calculateField", Options: options}
}

func transformed(id string, options map[string]any) dashboard.DataTransformerConfig {
	return dashboard.DataTransformerConfig{Id: id, Options: options}
}

// sorted sorts a table by a field. Rows with the same value keep their order.
func sorted(field string, descending bool) dashboard.DataTransformerConfig {
	return transformed("sortBy", map[string]any{"sort": []map[string]any{{"field": field, "desc": descending}}})
}

// stateColors are the colors of the states of devices, the same in all panels: what needs attention
// comes last.
func stateColors() []state {
	return []state{
		same("free", blue), same("tainted", purple), same("partitioned", grey), same("active", green),
		same("unmeasured", yellow), same("idle", orange), same("stalled", darkRed), same("unhealthy", red),
	}
}

// The map of the cluster: how many devices it shows, of how many it asks for holders, and the
// smallest and the widest cell in pixels.
const (
	shownOnMap            = 10_000
	askedOfMap            = 50_000
	leastCell, widestCell = 3, 28
)

// mapCells is the query of the cells of the map: the state of each device, with its model and the
// texts by which they are sorted, and the columns of the map.
func mapCells() string {
	var states []string
	for i, s := range stateColors() {
		states = append(states,
			fmt.Sprintf(`%d + group by (<device>) (device:dra_state:info{<of devices>, state=%q})`, i, s.value))
	}
	var (
		counted = `max by (<node>, driver) (node:dra_devices:count{cluster=~"$cluster", node=~"$node", driver=~"$driver"})`
		nodes   = `group by (<node>) (` + counted + `)`
		// line is the cells of a line: 2.6 is the width of the panel by its height.
		cells = fmt.Sprintf(`(clamp_max(sum(%s), %d) + count(%s))`, counted, shownOnMap, nodes)
		line  = `clamp_min(ceil(sqrt(2.6 * ` + cells + `)), 12)`
	)
	// The area of a cell as a share of that of the widest one.
	size := fmt.Sprintf(`(clamp(450 / %s, %d, %d) ^ 2 - %d) / %d`, line, leastCell, widestCell, leastCell*leastCell,
		widestCell*widestCell-leastCell*leastCell)
	// gpu-2 comes before gpu-10, what is last has the highest character, and the cell that is not
	// seen is the last.
	return fmt.Sprintf(`(
		topk(%d, label_replace(label_replace(
		    (`+strings.Join(states, "\nor ")+`)
		    * on (<device>) group_left (model)
		      max by (<device>, model) (device:dra_model:info{<of devices>, model=~"$model"}),
		    "order", "$1", "device", "(.*)"), "order", "${1}0$2", "device", "(.*[^0-9])([0-9])"
		  ))
		  * on () group_left (size) count_values("size", `+size+`)
		or label_replace(label_replace(clamp_max(`+nodes+`, 0), "order", "\uffff", "", ""), "size", "0", "", "")
		or label_replace(label_replace(clamp_max(sum(`+counted+`), 0), "size", "1", "", ""), "cluster", "\uffff", "", "")
		)
		* on () group_left (columns) count_values("columns", `+line+`)`, shownOnMap)
}

// clusterMap is a map of the devices, a cell for each, line by line like a text: devices of a node
// are side by side, with a gap before those of the next. The longer the text, the longer its lines,
// and the smaller its cells. Grafana scales the sizes of points from the smallest to the largest
// value: gaps are the former, and one cell that is not seen is the latter.
func clusterMap() Panel {
	cells := []state{{"0", "", "transparent"}}
	for i, s := range stateColors() {
		cells = append(cells, state{strconv.Itoa(i + 1), s.text, s.color})
	}
	return Panel{
		Title: "Map of the cluster",
		Description: "A cell for each device, those of a node side by side with a gap before the next, in lines like a " +
			"text; the colors are those of \"Devices by state\". Hover over a cell for its node, model and holder; click it " +
			"for its dashboard. Of more than 10 000 devices those that need attention are shown.",
		Kind: Points, Unit: "none", NoData: noDevice, Width: 12, Height: 9,
		Targets: []Target{
			{Expr: mapCells(), Unit: "none"},
			{Expr: fmt.Sprintf("topk(%d, %s)", askedOfMap, holders("<of devices>")), Unit: "none"},
		},
		points: &points{
			title: "Device", x: "Column", y: "Line", color: "State", size: "Size", isMap: true,
			least: leastCell, most: widestCell,
		},
		reshape: []dashboard.DataTransformerConfig{
			transformed("merge", map[string]any{}),
			transformed("filterByValue", map[string]any{ // holders of devices that are not shown
				"type": "exclude", "match": "any",
				"filters": []map[string]any{{"fieldName": "columns", "config": map[string]any{"id": "isNull"}}},
			}),
			sorted("order", false), sorted("node", false), sorted("cluster", false),
			transformed("convertFieldType", map[string]any{"fields": map[string]any{}, "conversions": []map[string]any{
				{"targetField": "columns", "destinationType": "number"}, {"targetField": "size", "destinationType": "number"},
			}}),
			calculated("row", "index", "", ""), calculated("part", "/", "row", "columns"),
			calculated("whole", "floor", "part", ""),
			calculated("before", "*", "whole", "columns"), calculated("Column", "-", "row", "before"),
			calculated("Line", "-", "0", "whole"),
			transformed("organize", map[string]any{
				"excludeByName": map[string]bool{
					"Time": true, "Value #B": true, "columns": true, "order": true, "row": true, "part": true, "whole": true,
					"before": true,
				},
				"renameByName": map[string]string{"Value #A": "State", "size": "Size"},
			}),
		},
		fields: []dashboard.DashboardFieldConfigSourceOverrides{
			override("Line", property("links", []map[string]any{{
				"title": "This device", "oneClick": true,
				"url": deviceURL("${__data.fields.node}", "${__data.fields.driver}", "${__data.fields.device}"),
			}})),
			overrideAll(property("noValue", "")),
			override("Column", soft(-1, 12)...),
			override("Line", soft(-3, 1)...),
			override("State", property("mappings", mappings(cells))),
		},
	}
}

// soft is the least range of an axis.
func soft(least, most float64) []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{property("custom.axisSoftMin", least), property("custom.axisSoftMax", most)}
}
