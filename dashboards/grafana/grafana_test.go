package grafana

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func newCatalog(t *testing.T) query.Catalog {
	t.Helper()
	c := query.NewCatalog()
	must.Get(rules.Groups(rules.Defaults(), c))(t)
	return Catalog(c)
}

func TestBoards(t *testing.T) {
	uids := map[string]bool{}
	for _, b := range Boards() {
		expect.OK(t, b.check(newCatalog(t)))
		expect.OK(t, b.Check(newCatalog(t)))
		expect.That(t, !uids[b.UID] && strings.HasPrefix(b.Title, "DRA / ") && b.Description != "", "%s: %q", b.UID, b.Title)
		uids[b.UID] = true
	}
	expect.Is(t, len(uids), 7, "dashboards")
}

func TestMistakes(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*Panel)
		want  string
	}{
		{"none", func(*Panel) {}, ""},
		{"broken query", func(p *Panel) { p.Targets[0].Expr = "sum by (node" }, "parse"},
		{"removed metric", func(p *Panel) { p.Targets[0].Expr = "max by (<device>) (dra_device_gone)" }, "no metric"},
		{"a record that has no sums of hours", func(p *Panel) {
			p.Targets[0].Expr = "max by (<device>) (device:dra_state:info$hours)"
		}, "over a long time"},
		{"no unit", func(p *Panel) { p.Unit = "" }, "no unit"},
		{"no title", func(p *Panel) { p.Title = "" }, "title"},
		{"no description", func(p *Panel) { p.Description = "" }, "description"},
		{"no sentence", func(p *Panel) { p.Description = "power" }, "not a sentence"},
		{"no text if empty", func(p *Panel) { p.NoData = "" }, "without data"},
		{"no legend", func(p *Panel) { p.Targets[0].Legend = "" }, "no legend"},
		{"legend of no label", func(p *Panel) { p.Targets[0].Legend = "{{pod}}" }, `"pod"`},
		{
			"fixed window", func(p *Panel) {
				p.Targets[0].Expr = "max by (<device>) " +
					"(rate(dra_device_energy_joules_total[5m]))"
			},
			"$__rate_interval",
		},
		{"two nodes in one", func(p *Panel) {
			p.Targets[0].Expr, p.Targets[0].Legend = "max by (device) (dra_device_power_watts)", "{{device}}"
		}, "not marked as a total"},
		{"a total that is not marked", func(p *Panel) {
			p.Targets[0].Expr, p.Targets[0].Legend = "max by (driver) (dra_device_power_watts)", "{{driver}}"
		}, "not marked as a total"},
		{"a mark without a total", func(p *Panel) { p.Total = true }, "no query is one"},
		{"legend without the node", func(p *Panel) { p.Targets[0].Legend = "{{device}}" }, "does not name the node"},
		{"a heat map without an axis", func(p *Panel) { p.Kind = Heatmap }, "axis"},
		{"no queries", func(p *Panel) { p.Targets = nil }, "no query"},
		{"too wide", func(p *Panel) { p.Width = 25 }, "size"},
		{"a column without a title", func(p *Panel) {
			p.Kind = Table
			p.Targets = []Target{{Expr: "max by (<device>, sensor) (dra_device_temperature_celsius)", Unit: "celsius"}}
		}, `the column "sensor" has no title`},
		{"states of a graph", func(p *Panel) { p.states = []state{{"1", "on", green}} }, "states"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := line("Power", "Power of each node.", "watt", "none", "{{node}} {{device}}",
				"max by (<device>) (dra_device_power_watts{<of devices>})")
			tt.spoil(&p)
			b := Board{UID: "x", Rows: []Row{{"Row", []Panel{p}}}}
			err := b.check(newCatalog(t))
			expect.That(t, (err == nil) == (tt.want == "") && (err == nil || strings.Contains(err.Error(), tt.want)),
				"got %v, want %q", err, tt.want)
		})
	}
	twice := line("Power", "Power.", "watt", "none", "{{node}} {{device}}", "max by (<device>) (dra_device_power_watts)")
	b := Board{UID: "x", Rows: []Row{{"Row", []Panel{twice, twice}}}}
	if err := b.check(newCatalog(t)); err == nil || !strings.Contains(err.Error(), "two panels") {
		t.Errorf("got %v", err)
	}
}

// board is the part of Grafana's JSON that the tests read.
type board struct {
	UID           string
	SchemaVersion int
	Links         []link
	Tags          []string
	Templating    struct{ List []struct{ Name, Type string } }

	Annotations struct{ List []struct{ Name string } }
	Panels      []panelJSON
}

type target struct {
	Expr, RefID string
	Datasource  struct{ UID string }
}

type panelJSON struct {
	ID          int
	Type, Title string
	Collapsed   bool
	Panels      []panelJSON // of a collapsed row
	Datasource  struct{ UID string }
	GridPos     struct{ X, Y, W, H int }
	Targets     []target

	Transformations []transformation
	FieldConfig     struct {
		Defaults struct {
			NoValue    string
			Unit       string
			Decimals   *float64
			Thresholds struct{ Steps []json.RawMessage }
		}
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
}

// panels returns the panels of a dashboard, and those of its collapsed rows.
func (b *board) panels() []panelJSON {
	var out []panelJSON
	for _, p := range b.Panels {
		out = append(append(out, p), p.Panels...)
	}
	return out
}

type link struct {
	IncludeVars, KeepTime bool
	URL                   string
}

func decode(t *testing.T, b *Board) board {
	t.Helper()
	content := must.Get(b.JSON(newCatalog(t)))(t)
	var out board
	must.Do(t, json.Unmarshal(content, &out))
	return out
}

func TestJSON(t *testing.T) {
	for _, b := range Boards() {
		got := decode(t, &b)
		expect.That(t, got.SchemaVersion == 42 && got.UID == b.UID && len(got.Links) == len(Boards())-1,
			"%s: %+v", b.UID, got)
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range got.panels() {
			expect.That(t, p.ID != 0 && !ids[p.ID], "%s: the id of %q is not unique", b.UID, p.Title)
			ids[p.ID] = true
			inside := slices.ContainsFunc(got.Panels, func(row panelJSON) bool {
				return slices.ContainsFunc(row.Panels, func(of panelJSON) bool { return of.ID == p.ID })
			})
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W && !inside; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					other := cells[[2]int{x, y}]
					must.That(t, other == "" && x < columns, "%s: %q overlaps %q", b.UID, p.Title, other)
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.NoValue == "" ||
				len(p.FieldConfig.Defaults.Thresholds.Steps) == 0 {
				t.Errorf("%s: %q: %+v", b.UID, p.Title, p)
			}
			for _, target := range p.Targets {
				if target.Datasource.UID != "${datasource}" || target.RefID == "" || strings.Contains(target.Expr, "<c") ||
					strings.Contains(target.Expr, "<d") {
					t.Errorf("%s: %q has the targets %+v", b.UID, p.Title, target)
				}
			}
		}
	}
}

// TestSelection checks that links keep the selection: all dashboards have the same variables.
func TestSelection(t *testing.T) {
	want := []string{
		"datasource", "search", "cluster", "node", "driver", "model", "device", "namespace", "claim", "pod", "kind",
		"queue", "workload",
	}
	for _, b := range Boards() {
		var got []string
		hours := false
		for _, v := range decode(t, &b).Templating.List {
			if v.Name == hoursName { // the time range says what it is
				hours = true
				continue
			}
			if slices.ContainsFunc(b.lists, func(l list) bool { return l.name == v.Name }) { // others do not have it
				continue
			}
			got = append(got, v.Name)
		}
		expect.Is(t, hours, b.recorded, "%s: it chooses among the records of minutes and hours", b.UID)
		expect.Is(t, cmp.Diff(want, got), "", "%s", b.UID)
	}
}

// TestAnnotations checks that times, of which a fleet has too many, are marked on the dashboards of
// claims and of nodes alone, and that incidents are marked from their onset to their end.
func TestAnnotations(t *testing.T) {
	for _, b := range Boards() {
		var got []string
		for _, a := range decode(t, &b).Annotations.List {
			got = append(got, a.Name)
		}
		var want []string
		switch b.UID {
		case "dra-claim":
			want = []string{"Incidents begin", "Incidents open", "Device errors", "Claims allocated"}
		case "dra-nodes":
			want = []string{"Incidents begin", "Incidents open"}
		}
		expect.Is(t, cmp.Diff(want, got), "", "%s", b.UID)
	}
}

// TestFleet checks that the eight numbers and the pictures come first, then what is wrong, critical
// alerts first, and that numbers link to dashboards that exist.
func TestFleet(t *testing.T) {
	b := fleet()
	got := decode(t, &b)
	for i, p := range got.Panels[1:9] {
		expect.That(t, p.Type == string(Stat) && p.GridPos.Y == 1,
			"panel %d is %q: a %s at %d", i, p.Title, p.Type, p.GridPos.Y)
	}
	for _, p := range got.Panels[9:14] {
		expect.That(t, p.Type != string(Table) && p.GridPos.Y+p.GridPos.H <= 22,
			"%q is a %s that ends at %d: people look first, on one screen", p.Title, p.Type, p.GridPos.Y+p.GridPos.H)
	}
	first := got.Panels[15]
	if first.Title != "Firing alerts" || first.ID != firingAlertsID ||
		len(first.Transformations) != 4 || first.Transformations[1].ID != "sortBy" ||
		first.Transformations[1].Options.Sort[0].Field != "Value" {
		t.Errorf("the panel after the numbers is %+v", first)
	}
	uids := map[string]bool{}
	for _, board := range Boards() {
		uids[board.UID] = true
	}
	linked := 0
	for _, p := range got.Panels {
		if p.Type != "stat" {
			continue
		}
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				_, rest, ok := strings.Cut(fmt.Sprint(property.Value), "url:/d/")
				uid, _, _ := strings.Cut(rest, "?")
				if property.ID == "links" && ok {
					linked++
					if p.Title == "Alerts" && !strings.Contains(rest, fmt.Sprintf("&viewPanel=%d]", first.ID)) {
						t.Errorf("the number of alerts links to %s", rest)
					}
					expect.That(t, uids[uid], "%s links to %q", p.Title, uid)
				}
			}
		}
	}
	expect.Is(t, linked, 8, "numbers are linked")
}

// TestSickFirst checks that tables of devices begin with those that are unhealthy: by the values of
// a query that gives them the highest ones, and that is no column.
func TestSickFirst(t *testing.T) {
	found := 0
	for _, b := range []Board{fleet(), nodes()} {
		got := decode(t, &b)
		for _, p := range got.panels() {
			if p.Title != "Devices with problems" && p.Title != "Device list" {
				continue
			}
			found++
			by := p.Transformations[1].Options.Sort[0].Field
			i := slices.IndexFunc(p.Targets, func(t target) bool { return "Value #"+t.RefID == by })
			if i < 0 || !regexp.MustCompile(`^(1 \+ )?max by .*state`).MatchString(p.Targets[i].Expr) ||
				!p.Transformations[2].Options.ExcludeByName[by] {
				t.Errorf("%s: %q is sorted by %q", b.UID, p.Title, by)
			}
		}
	}
	expect.Is(t, found, 2, "tables of devices")
}

// TestTables checks what all tables share: no text without data in cells, what a row is about
// first, and the mark of devices that are in no slice.
func TestTables(t *testing.T) {
	tables := 0
	for _, b := range Boards() {
		content := must.Get(b.JSON(newCatalog(t)))(t)
		got := decode(t, &b)
		for _, p := range got.panels() {
			if p.Type != "table" {
				continue
			}
			tables++
			o := p.FieldConfig.Overrides[0]
			expect.That(t, o.Matcher.ID == "byRegexp" && o.Properties[0].ID == "noValue" && o.Properties[0].Value == "",
				"%s: cells of %q without a value have a text", b.UID, p.Title)
			organize := p.Transformations[slices.IndexFunc(p.Transformations, func(t transformation) bool {
				return t.ID == "organize"
			})].Options
			at := organize.IndexByName
			expect.That(t, at["node"] <= at["cluster"] && at["device"] <= at["cluster"] && at["state"] <= at["cluster"],
				"%s: the columns of %q have the order %v", b.UID, p.Title, at)
			if p.Title == "Device list" && (organize.RenameByName["listed"] != "Listed" ||
				!strings.Contains(string(content), `"in no slice"`)) {
				t.Errorf("nothing marks the devices that are in no slice: %v", organize.RenameByName)
			}
			if p.Title == "Device list" && (organize.RenameByName["node_local"] != "Node-local" ||
				!strings.Contains(string(content), `"several nodes"`)) {
				t.Errorf("nothing marks the devices that several nodes can use: %v", organize.RenameByName)
			}
		}
	}
	expect.That(t, tables >= 15, "%d tables", tables)
}

type transformation struct {
	ID      string
	Options struct {
		IndexByName  map[string]int
		RenameByName map[string]string

		ExcludeByName map[string]bool
		Sort          []struct{ Field string }
	}
}

// TestFolded checks that rows whose panels are empty in most clusters are collapsed, in place, and
// that the panels which are open at first fit on two screens.
func TestFolded(t *testing.T) {
	for _, tt := range []struct {
		board  Board
		height int
		empty  []string // these may be, and say what is right then
	}{
		{fleet(), 42, []string{
			"Alerts", "Firing alerts", "Waste by namespace", "Cost of waste by namespace", "Free devices by model",
		}},
		{nodes(), 38, nil},
	} {
		got, height := decode(t, &tt.board), 0
		titles := map[string]bool{}
		for i, p := range got.Panels {
			if p.Type == "row" && p.Collapsed != (len(p.Panels) > 0) {
				t.Errorf("%s: row %q: collapsed %t with %d panels", got.UID, p.Title, p.Collapsed, len(p.Panels))
			}
			expect.That(t, i <= 0 || p.GridPos.Y >= got.Panels[i-1].GridPos.Y, "%s: %q is at %d", got.UID, p.Title, p.GridPos.Y)
			height, titles[p.Title] = max(height, p.GridPos.Y+p.GridPos.H), true
		}
		expect.That(t, height <= tt.height, "%s has %d rows of the grid, want at most %d", got.UID, height, tt.height)
		for _, row := range tt.board.Rows {
			for _, p := range row.Panels {
				if titles[p.Title] && p.MayBeEmpty && !slices.Contains(tt.empty, p.Title) {
					t.Errorf("%s: %q may be empty, and its row is open", got.UID, p.Title)
				}
			}
		}
	}
}

// TestNumbers checks that counts are shown without decimals, also those that increase() estimates,
// and hours and energy in one unit.
func TestNumbers(t *testing.T) {
	counts := 0
	check := func(of, unit string, decimals any) {
		switch unit {
		case "h", "kwatth":
			t.Errorf("%s is in %s, which Grafana scales", of, unit)
		case "none":
			counts++
			expect.Is(t, decimals, 0., "%s is a number with decimals", of)
		}
	}
	for _, b := range Boards() {
		got := decode(t, &b)
		for _, p := range got.panels() {
			if defaults := p.FieldConfig.Defaults; p.Type == string(Stat) {
				decimals := math.NaN()
				if defaults.Decimals != nil {
					decimals = *defaults.Decimals
				}
				check(p.Title, defaults.Unit, decimals)
			}
			for _, o := range p.FieldConfig.Overrides {
				properties := map[string]any{}
				for _, property := range o.Properties {
					properties[property.ID] = property.Value
				}
				unit, _ := properties["unit"].(string)
				check(p.Title+": "+o.Matcher.Options, unit, properties["decimals"])
			}
		}
	}
	expect.That(t, counts >= 20, "%d counts", counts)
}

// templating is the part of Grafana's JSON that says what can be chosen.
type templating struct {
	Templating struct {
		List []choice
	}
}

type choice struct {
	Name, Type, Query, Regex, AllValue string
	Hide, Refresh, Sort                int
	IncludeAll, Multi, SkipURLSync     bool
	Current                            struct{ Value any }
}

// Grafana's numbers of settings of variables.
const (
	shown, hidden                   = 0, 2
	whenOpened, whenTheRangeChanges = 1, 2
	unsorted, naturally             = 0, 7
)

// few are the variables of which a fleet has few values, or which those before them restrict to a
// node's or a claim's.
func few() []string { return []string{"cluster", "driver", "model", "device", "pod", "kind"} }

// TestChoices checks that a dashboard asks for the values of the variables that it shows and of no
// other; that it offers 20 of thousands, those that matter most first; and that the dashboards of
// claims, nodes and networks start with the first one: all of a fleet are more than a browser
// draws.
func TestChoices(t *testing.T) {
	first := map[string][]string{
		"dra-claim": {"namespace", "claim"}, "dra-nodes": {"node"}, "dra-network": {"node"},
	}
	for _, b := range Boards() {
		content := must.Get(b.JSON(newCatalog(t)))(t)
		var built templating
		must.Do(t, json.Unmarshal(content, &built))
		searches := false
		for _, v := range built.Templating.List[1:] {
			one := slices.Contains(first[b.UID], v.Name)
			searches = searches || strings.Contains(v.Query, `_name=~".*$search.*"`) ||
				strings.Contains(v.Query, v.Name+`=~".*$search.*"`)
			listed := slices.ContainsFunc(b.lists, func(l list) bool { return l.name == v.Name })
			expect.That(t, v.SkipURLSync == (v.Name == hoursName || listed),
				"%s: %s is part of the address: %v", b.UID, v.Name, !v.SkipURLSync)
			switch {
			case v.Name == "search":
				expect.That(t, v.Type == "textbox" && v.Hide == shown && v.Query == "", "%s: the text box is %+v", b.UID, v)
			case v.Name == hoursName:
				expect.That(t, v.Type == "query" && v.Hide == hidden && v.Refresh == whenTheRangeChanges && v.Query == hoursQuery,
					"%s: the records of hours are chosen by %+v", b.UID, v)
			case listed:
				if v.Type != "query" || v.Hide != hidden || v.Refresh != whenTheRangeChanges || !v.IncludeAll || !v.Multi ||
					v.AllValue != "" || !strings.HasPrefix(v.Query, "query_result(") || v.Regex == "" {
					t.Errorf("%s: the list is %+v", b.UID, v)
				}
			case !slices.Contains(b.uses, v.Name):
				expect.That(t, v.Type == "custom" && v.Hide == hidden && v.Query == "" && v.AllValue == ".*",
					"%s: %s, which is not shown, is %+v", b.UID, v.Name, v)
			case one == v.IncludeAll || one != (v.Current.Value == nil) || v.Type != "query" || v.Hide != shown:
				t.Errorf("%s: %s has all: %v, and starts with %v", b.UID, v.Name, v.IncludeAll, v.Current.Value)
			case slices.Contains(few(), v.Name):
				if !strings.HasPrefix(v.Query, "label_values(") || v.Refresh != whenTheRangeChanges || v.Sort != naturally {
					t.Errorf("%s: %s offers %+v", b.UID, v.Name, v)
				}
			case !strings.HasPrefix(v.Query, "query_result(sort_desc(topk(20, ") || v.Refresh != whenOpened ||
				v.Sort != unsorted || v.Regex == "":
				t.Errorf("%s: %s offers thousands: %+v", b.UID, v.Name, v)
			}
		}
		expect.That(t, searches, "%s: the text box restricts nothing", b.UID)
	}
}

// TestLinks checks that links keep the selection and the time range, and that All is not selected
// where a dashboard shows one of thousands.
func TestLinks(t *testing.T) {
	for from, want := range map[string]map[string][]string{
		"dra-fleet":   {"dra-claim": {"node", "driver"}, "dra-nodes": {"namespace", "claim"}},
		"dra-nodes":   {"dra-network": {"node", "namespace", "claim"}, "dra-claim": {"node", "pod"}},
		"dra-claim":   {"dra-namespaces": {"node", "namespace", "claim"}, "dra-network": {"namespace", "claim"}},
		"dra-network": {"dra-nodes": {"node"}, "dra-fleet": {"cluster", "node"}},
	} {
		boards := Boards()
		b := decode(t, &boards[slices.IndexFunc(boards, func(b Board) bool { return b.UID == from })])
		for to, kept := range want {
			at := slices.IndexFunc(b.Links, func(l link) bool { return strings.HasPrefix(l.URL, "/d/"+to+"?") })
			must.That(t, at >= 0 && b.Links[at].KeepTime && !b.Links[at].IncludeVars,
				"%s has no link to %s that keeps the time range: %+v", from, to, b.Links)
			for _, name := range kept {
				expect.That(t, strings.Contains(b.Links[at].URL, "${"+name+":queryparam}"),
					"the link from %s to %s does not keep %s: %s", from, to, name, b.Links[at].URL)
			}
		}
	}
	for _, from := range Boards() {
		content := must.Get(from.JSON(newCatalog(t)))(t)
		// Links of the dashboard, and of its numbers: those of tables name what they are about.
		urls := regexp.MustCompile(`"url": "/d/([a-z-]+)\?([^"]*)"`)
		for _, match := range urls.FindAllStringSubmatch(string(content), -1) {
			boards := Boards()
			to := boards[slices.IndexFunc(boards, func(b Board) bool { return b.UID == match[1] })]
			for _, name := range to.one {
				if strings.Contains(match[2], "{"+name+":queryparam}") && !slices.Contains(from.one, name) &&
					!strings.Contains(match[2], "var-pod=") {
					t.Errorf("a link from %s selects All of %s: %s", from.UID, name, match[0])
				}
			}
		}
	}
}

// TestTimelines checks that time lines show exceptions only: what is normal has no state, since a
// row for each node or device that is well would hide the others. test/system/dashboards checks
// that no value is without a state.
func TestTimelines(t *testing.T) {
	count := 0
	for _, b := range Boards() {
		for _, row := range b.Rows {
			for _, p := range row.Panels {
				if p.Kind != Timeline {
					continue
				}
				count++
				for _, s := range p.states {
					expect.That(t, s.value != "0" && s.color != green && s.color != grey, "%s: %q shows %s", b.UID, p.Title, s.text)
				}
			}
		}
	}
	expect.That(t, count >= 5, "%d time lines", count)
}
