package grafana

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/xychart"
)

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
func sorted(field string) dashboard.DataTransformerConfig {
	return transformed("sortBy", map[string]any{"sort": []map[string]any{{"field": field, "desc": false}}})
}

// stateColors are the colors of the states of devices, the same in all panels: what needs attention
// comes last.
func stateColors() []colored {
	return []colored{
		{"free", blue},
		{"tainted", purple},
		{"partitioned", grey},
		{"active", green},
		{"unmeasured", yellow},
		{"idle", orange},
		{"stalled", darkRed},
		{"unhealthy", red},
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
			fmt.Sprintf(`%d + group by (<device>) (device:dra_state:info{<of devices>, state=%q})`, i, s.series))
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
	mapping := map[string]dashboard.ValueMappingResult{
		"0": {Text: new(""), Color: new("transparent"), Index: new(int32(0))},
	}
	for i, s := range stateColors() {
		mapping[strconv.Itoa(i+1)] = dashboard.ValueMappingResult{
			Text: new(s.series), Color: new(s.color), Index: new(int32(i + 1)),
		}
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
			sorted("order"), sorted("node"), sorted("cluster"),
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
			override("Line", dashboard.DynamicConfigValue{Id: "links", Value: []map[string]any{{
				"title": "This device", "oneClick": true,
				"url": deviceURL("${__data.fields.node}", "${__data.fields.driver}", "${__data.fields.device}"),
			}}}),
			{
				Matcher:    dashboard.MatcherConfig{Id: "byRegexp", Options: "/.*/"},
				Properties: []dashboard.DynamicConfigValue{{Id: "noValue", Value: ""}},
			},
			override("Column", soft(-1, 12)...),
			override("Line", soft(-3, 1)...),
			override("State", dashboard.DynamicConfigValue{
				Id: "mappings", Value: []map[string]any{{"type": "value", "options": mapping}},
			}),
		},
	}
}

// soft is the least range of an axis.
func soft(least, most float64) []dashboard.DynamicConfigValue {
	return []dashboard.DynamicConfigValue{
		{Id: "custom.axisSoftMin", Value: least}, {Id: "custom.axisSoftMax", Value: most},
	}
}
