package grafana

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
)

const (
	tag     = "dra"
	columns = 24 // columns of Grafana's grid

	// axisWidth is the width in pixels of the axes of panels whose times are in line.
	axisWidth = 110

	// Widths of a table's columns in pixels: the least one, the least one of a number with a unit,
	// and that of long names.
	narrowColumn, numberColumn, wideColumn = 80, 130, 175
)

// titleColumn is the least width of a column that shows all of its title.
func titleColumn(title string) int { return max(narrowColumn, 8*len(title)+24) }

// JSON returns the dashboard as Grafana's JSON. The columns of tables come from the catalog.
func (b *Board) JSON(catalog query.Catalog) ([]byte, error) {
	//nolint:staticcheck // schema v2 works only with Grafana 12 and newer
	builder := dashboard.NewDashboardBuilder(b.Title).Uid(b.UID).Description(b.Description).Tags([]string{tag}).
		Readonly().Timezone("browser").Time(cmp.Or(b.since, "now-1h"), "now").Refresh("1m").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Variables(b.variables()).Annotations(b.annotations()).Links(b.links())
	built, err := builder.Build()
	if err != nil {
		return nil, fmt.Errorf("build dashboard %s: %w", b.UID, err)
	}
	unset(&built)
	if built.Panels, err = b.layout(catalog); err != nil {
		return nil, fmt.Errorf("build dashboard %s: %w", b.UID, err)
	}
	out, err := json.MarshalIndent(built, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write dashboard %s: %w", b.UID, err)
	}
	return append(out, '\n'), nil
}

// unset removes defaults of the SDK that are not wanted: links and annotations hidden in a menu,
// and interval settings on variables of other kinds.
func unset(d *dashboard.Dashboard) { //nolint:staticcheck // as above
	for i := range d.Links {
		d.Links[i].Placement = nil
	}
	for i := range d.Annotations.List {
		d.Annotations.List[i].Placement = nil
	}
	for i := range d.Templating.List {
		v := &d.Templating.List[i]
		v.Auto, v.AutoMin, v.AutoCount = nil, nil, nil
	}
}

// layout places the rows from top to bottom and the panels of each row from left to right.
func (b *Board) layout(catalog query.Catalog) ([]dashboard.PanelOrRowPanel, error) {
	var out []dashboard.PanelOrRowPanel
	var errs []error
	id, y := uint32(0), uint32(0)
	for _, row := range b.Rows {
		id++
		heading := &dashboard.RowPanel{
			Type: "row", Title: new(row.Title), Id: id, Panels: []dashboard.Panel{},
			Collapsed: slices.Contains(b.folded, row.Title), GridPos: &dashboard.GridPos{H: 1, W: columns, Y: y},
		}
		out = append(out, dashboard.PanelOrRowPanel{RowPanel: heading})
		y++
		x, height, top := uint32(0), uint32(0), y
		for i := range row.Panels {
			p := &row.Panels[i]
			if x+p.Width > columns {
				x, y, height = 0, y+height, 0
			}
			id++
			panel, err := p.build(b, catalog)
			if err != nil {
				errs = append(errs, fmt.Errorf("panel %q: %w", p.Title, err))
			}
			panel.Id, panel.GridPos = new(id), &dashboard.GridPos{X: x, Y: y, W: p.Width, H: p.Height}
			if heading.Collapsed {
				heading.Panels = append(heading.Panels, panel)
			} else {
				out = append(out, dashboard.PanelOrRowPanel{Panel: &panel})
			}
			x, height = x+p.Width, max(height, p.Height)
		}
		if y += height; heading.Collapsed {
			y = top
		}
	}
	return out, errors.Join(errs...)
}

// build returns the panel of a dashboard without its position.
func (p *Panel) build(b *Board, catalog query.Catalog) (dashboard.Panel, error) {
	panel, err := p.kind().Build()
	if err != nil {
		return panel, fmt.Errorf("build: %w", err)
	}
	panel.Title, panel.Description, panel.Datasource = new(p.Title), new(p.Description), new(source())
	switch {
	case p.bars:
		panel.Interval, panel.MaxDataPoints = new(barEvery), new(float64(mostBars))
	case p.recorded(catalog):
		panel.Interval = new(recordedEvery)
	}
	if panel.FieldConfig == nil {
		panel.FieldConfig = dashboard.NewFieldConfigSource()
	}
	defaults := &panel.FieldConfig.Defaults
	defaults.NoValue, defaults.Thresholds = new(p.NoData), p.thresholds()
	if p.Unit != "" {
		defaults.Unit = new(shownUnit(p.Unit))
	}
	if p.max > 0 {
		defaults.Min, defaults.Max = new(0.0), new(p.max)
	}
	if p.stacked || p.bars {
		defaults.Min = new(0.0) // stacked values need an axis that starts at 0
	}
	if decimals, fixed := p.decimalsOf(p.Unit); fixed {
		defaults.Decimals = new(float64(decimals))
	}
	defaults.Color = &dashboard.FieldColor{Mode: p.colorMode()}
	if len(p.states) > 0 {
		defaults.Mappings = mappings(p.states)
	}
	if p.link != "" {
		url := "/d/" + p.link + "?${__url_time_range}&" + b.selection(p.link)
		if p.view > 0 {
			url += fmt.Sprintf("&viewPanel=%d", p.view)
		}
		link := property("links", []map[string]any{{"title": "Show them", "url": url}})
		panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides,
			overriding("byType", "number", []dashboard.DynamicConfigValue{link}))
	}
	for i := range p.Targets {
		target, err := p.target(i)
		if err != nil {
			return panel, err
		}
		panel.Targets = append(panel.Targets, target)
	}
	for _, c := range p.colors {
		fixed := property("color", map[string]string{"mode": "fixed", "fixedColor": c.color})
		panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, override(c.value, fixed))
	}
	if p.Kind == Table {
		p.columns(&panel, b, catalog)
	}
	panel.Transformations = append(panel.Transformations, p.reshape...)
	panel.FieldConfig.Overrides = append(panel.FieldConfig.Overrides, p.fields...)
	return panel, nil
}

// colorMode is what the colors of values or series follow. Thresholds would give all lines of a
// graph the same color; adjacent areas need different ones, and a color by name may occur twice.
func (p *Panel) colorMode() dashboard.FieldColorModeId {
	switch {
	case p.Kind != Graph && !p.aligned:
		return dashboard.FieldColorModeIdThresholds
	case p.stacked || p.bars:
		return dashboard.FieldColorModeIdPaletteClassic
	default:
		return dashboard.FieldColorModeIdPaletteClassicByName
	}
}

// shownUnit returns the unit in the panel's JSON. Grafana scales its own units of hours and energy,
// so that a column has "68 s" beside "2.4 weeks": those of sums are fixed.
func shownUnit(unit string) string {
	switch unit {
	case "h":
		return "suffix:h"
	case "kwatth":
		return "suffix:kWh"
	default:
		return unit
	}
}

// decimalsOf returns how many decimals values of a unit have, false if Grafana chooses. Counts have
// none: increase() makes 2.01 of two events.
func (p *Panel) decimalsOf(unit string) (decimals int, fixed bool) {
	switch {
	case p.decimals > 0:
		return p.decimals, true
	case p.Kind != Graph && (unit == "h" || unit == "kwatth" || strings.HasPrefix(unit, "currency:")):
		return 2, true
	default:
		axes := []Kind{Graph, Heatmap, Points, Timeline} // which need decimals
		return 0, unit == "none" && !slices.Contains(axes, p.Kind)
	}
}

// target returns the query with index i; queries are named A, B, ….
func (p *Panel) target(i int) (cogQuery, error) {
	t := p.Targets[i]
	q := prometheus.NewDataqueryBuilder().Datasource(source()).RefId(refID(i)).Expr(Expand(t.Expr)).
		EditorMode(prometheus.QueryEditorModeCode).LegendFormat(t.Legend)
	switch p.Kind {
	case Table, Points:
		q.Instant().Format(prometheus.PromQueryFormatTable)
	case Stat:
		if strings.Contains(t.Expr, "$__range") {
			q.Instant()
		} else {
			q.Range()
		}
		q.Format(prometheus.PromQueryFormatTimeSeries)
	default:
		q.Range().Format(prometheus.PromQueryFormatTimeSeries)
	}
	out, err := q.Build()
	if err != nil {
		return nil, fmt.Errorf("build query: %w", err)
	}
	return out, nil
}

// recordedEvery is the smallest step of panels that show records: between two evaluations nothing
// changes.
const recordedEvery = "1m"

// barEvery is the smallest step of bars: a multiple of the time between two evaluations of
// increases, so that each bar has as many. A month has about mostBars days.
const (
	barEvery = "4m"
	mostBars = 28
)

// recorded reports whether all queries of the panel read records.
func (p *Panel) recorded(catalog query.Catalog) bool {
	return !slices.ContainsFunc(p.Targets, func(t Target) bool {
		answer, err := catalog.Check(checkable(Expand(t.Expr)))
		return err == nil && !answer.Records // the check of expressions reports the error
	})
}

func refID(i int) string { return string(rune('A' + i)) }

// Expand replaces the abbreviations in an expression.
func Expand(expr string) string {
	lines := strings.Split(strings.TrimSpace(expr), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.NewReplacer(words()...).Replace(strings.Join(lines, "\n"))
}

func (p *Panel) thresholds() *dashboard.ThresholdsConfig {
	base := green
	if p.Kind == Table {
		base = blue
	}
	if len(p.steps) > 0 && p.steps[0].value == 0 {
		base = p.steps[0].color
	}
	out := &dashboard.ThresholdsConfig{Mode: dashboard.ThresholdsModeAbsolute, Steps: []dashboard.Threshold{{Color: base}}}
	for _, s := range p.steps {
		if s.value != 0 {
			out.Steps = append(out.Steps, dashboard.Threshold{Value: new(s.value), Color: s.color})
		}
	}
	return out
}

// kind returns the builder for the panel's kind with the settings that all panels of the kind have.
func (p *Panel) kind() cog.Builder[dashboard.Panel] {
	tooltip := common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)
	last := common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}).Values(false)
	switch p.Kind {
	case Stat:
		mode := common.BigValueGraphModeArea
		if strings.Contains(p.Targets[0].Expr, "$__range") || strings.HasPrefix(p.Unit, "dateTime") {
			mode = common.BigValueGraphModeNone
		}
		return stat.NewPanelBuilder().ReduceOptions(last).GraphMode(mode).ColorMode(common.BigValueColorModeValue).
			TextMode(common.BigValueTextModeAuto).Orientation(common.VizOrientationAuto)
	case Table:
		return table.NewPanelBuilder().ShowHeader(true).CellHeight(common.TableCellHeightSm).Filterable(true).
			MinWidth(narrowColumn)
	case Heatmap:
		axis := heatmap.NewYAxisConfigBuilder().Unit(p.axis).AxisPlacement(common.AxisPlacementLeft)
		if p.axisMin > 0 {
			axis.Min(p.axisMin)
		}
		return heatmap.NewPanelBuilder().Calculate(false).CellGap(1).
			CellValues(heatmap.NewCellValuesBuilder().Unit(p.Unit)).
			Color(heatmap.NewHeatmapColorOptionsBuilder().Mode(heatmap.HeatmapColorModeScheme).Scheme("Oranges").
				Scale(heatmap.HeatmapColorScaleExponential).Exponent(0.5).Steps(64).Fill("dark-orange")).
			YAxis(axis)
	case Timeline:
		list := common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).
			Placement(common.LegendPlacementBottom).ShowLegend(!p.aligned).Calcs([]string{})
		timeline := statetimeline.NewPanelBuilder().ShowValue(common.VisibilityModeNever).MergeValues(true).RowHeight(0.8).
			FillOpacity(80).LineWidth(0).Legend(list).Tooltip(tooltip)
		if p.aligned {
			timeline.ShowValue(common.VisibilityModeAuto).AlwaysInsertNulls().AxisWidth(axisWidth)
		}
		return timeline
	case Points:
		return p.points.panel()
	default:
		return p.graph(tooltip)
	}
}

// graph returns the builder of a graph of lines, areas or bars.
func (p *Panel) graph(tooltip cog.Builder[common.VizTooltipOptions]) cog.Builder[dashboard.Panel] {
	legend := common.NewVizLegendOptionsBuilder().ShowLegend(true).
		DisplayMode(common.LegendDisplayModeTable).Placement(common.LegendPlacementRight).
		Calcs([]string{"lastNotNull", "max"}).SortBy("Last *").SortDesc(true)
	graph := timeseries.NewPanelBuilder().Legend(legend).Tooltip(tooltip).LineWidth(1).FillOpacity(10).
		ShowPoints(common.VisibilityModeNever).SpanNulls(common.BoolOrFloat64{Bool: new(false)})
	if p.stacked || p.bars {
		graph.FillOpacity(60).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	if p.bars {
		graph.DrawStyle(common.GraphDrawStyleBars).FillOpacity(80).LineWidth(0)
	}
	if p.aligned {
		graph.AxisWidth(axisWidth).FillOpacity(0)
	}
	if p.aligned || p.bars || p.below {
		graph.Legend(legend.DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).
			Calcs([]string{}).ShowLegend(!p.aligned))
	}
	if p.Unit == "none" || p.Unit == "cps" || p.Unit == "pps" {
		graph.AxisSoftMax(1) // not 100 if all values are 0
	}
	if len(p.steps) > 0 {
		graph.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	return graph
}
