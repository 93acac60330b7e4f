package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// board has the requests that Grafana sends when a user opens a dashboard.
type board struct {
	UID        string
	content    []byte // as JSON
	Panels     []panel
	Templating struct {
		List []variable
	}
	Annotations struct {
		List []struct {
			Name   string
			Enable bool
			Target struct{ Expr string }
			Step   string
		}
	}
}

type panel struct {
	ID          int
	Type, Title string
	Interval    string // the least step; empty: as the data are scraped
	Targets     []struct {
		Expr          string
		Instant, Hide bool
	}
	Panels []panel // of a collapsed row
	folded bool    // it is in one
}

// variable is a variable of a dashboard with its default.
type variable struct {
	Name, Type, Regex string
	Query             json.RawMessage
	Current           struct{ Value json.RawMessage }
	IncludeAll, Multi bool
	AllValue          string
}

func loadBoards(checkout string) ([]board, error) {
	paths, err := filepath.Glob(filepath.Join(checkout, "dashboards", "out", "grafana", "*.json"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("find dashboards of %s: %d, %w", checkout, len(paths), err)
	}
	boards := make([]board, len(paths))
	for i, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &boards[i])
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		boards[i].content = content
		for _, row := range boards[i].Panels {
			for j := range row.Panels {
				row.Panels[j].folded = true
			}
			boards[i].Panels = append(boards[i].Panels, row.Panels...)
		}
	}
	return boards, nil
}

// view is the state of an open dashboard: its time range, and the values of its variables.
type view struct {
	engine
	from, to time.Time
	step     time.Duration
	values   [][2]string // $name and value, longest names first
	// limits divides the limits of queries, so that a small fleet reaches them like a large one.
	limits int
	chosen map[string]string // see options
	drawn  answers
}

// answers are what Grafana draws of a dashboard, in the form that command screenshots reads.
type answers struct {
	Dashboard json.RawMessage           `json:"dashboard"`
	Answers   map[int][]json.RawMessage `json:"answers"` // by the panel's identifier
	Marks     []json.RawMessage         `json:"marks"`   // of annotations
	From      int64                     `json:"from"`    // milliseconds since 1970
	To        int64                     `json:"to"`
	Chosen    map[string]string         `json:"chosen"` // values of variables
}

// limit matches the choice of the highest or the lowest values.
var limit = regexp.MustCompile(`(topk|bottomk)\((\d+),`)

// newView returns a view of the time before to. The step is that of a panel of 1000 points, and at
// least the scrape interval.
func newView(e engine, to time.Time, span time.Duration) *view {
	const points = 1000
	v := &view{engine: e, from: to.Add(-span), to: to, drawn: answers{Chosen: map[string]string{}}}
	v.setStep(max(scrape, (span / points).Truncate(time.Minute)))
	v.set("__range", seconds(span))
	v.set("__range_s", strconv.Itoa(int(span.Seconds())))
	return v
}

func (v *view) setStep(step time.Duration) {
	v.step = step
	v.set("__interval", seconds(step))
	v.set("__rate_interval", seconds(max(step+scrape, 4*scrape)))
}

// at returns the view with the step of a panel.
func (v *view) at(p *panel) *view {
	out := *v
	out.values = slices.Clone(v.values)
	if least, err := time.ParseDuration(p.Interval); err == nil {
		out.setStep(max(least, v.step))
	}
	return &out
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) + "s" }

func (v *view) set(name, value string) {
	for _, key := range []string{"$" + name, "${" + name + "}"} {
		v.values = slices.DeleteFunc(v.values, func(pair [2]string) bool { return pair[0] == key })
		v.values = append(v.values, [2]string{key, value})
	}
	slices.SortStableFunc(v.values, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
}

// fill replaces the variables of an expression.
func (v *view) fill(expr string) string {
	var pairs []string
	for _, pair := range v.values {
		pairs = append(pairs, pair[0], pair[1])
	}
	return limit.ReplaceAllStringFunc(strings.NewReplacer(pairs...).Replace(expr), v.divide)
}

// divide divides a limit.
func (v *view) divide(text string) string {
	match := limit.FindStringSubmatch(text)
	most, err := strconv.Atoi(match[2])
	if err != nil || most < v.limits {
		return text
	}
	return fmt.Sprintf("%s(%d,", match[1], most/max(1, v.limits))
}

// limited reports whether an expression has limits that are divided.
func (v *view) limited(expr string) bool {
	return slices.ContainsFunc(limit.FindAllString(expr, -1), func(text string) bool { return v.divide(text) != text })
}

// choose sets a variable to its default, as Grafana does: All, the shipped value, or the first
// value of its query.
func (v *view) choose(ctx context.Context, b *board, of variable) (cost, error) {
	var c cost
	var options []string
	if of.Type == "query" {
		var err error
		if options, c, err = v.options(ctx, of); err != nil {
			return c, fmt.Errorf("variable %s: %w", of.Name, err)
		}
	}
	chosen := values(of.Current.Value)
	switch {
	case slices.Equal(chosen, []string{"$__all"}) && of.AllValue != "":
		v.set(of.Name, of.AllValue)
		return c, nil
	case slices.Equal(chosen, []string{"$__all"}):
		chosen = options
	case len(chosen) == 0 && len(options) > 0:
		chosen = []string{v.first(b.UID+" "+of.Name, options)}
	}
	for i, value := range chosen {
		if of.Multi || of.IncludeAll {
			value = strings.ReplaceAll(regexp.QuoteMeta(value), `\`, `\\`)
		}
		chosen[i] = value
	}
	text := strings.Join(chosen, "|")
	if len(chosen) > 1 {
		text = "(" + text + ")"
	} else {
		v.drawn.Chosen[of.Name] = text
	}
	v.set(of.Name, text)
	return c, nil
}

// first returns the first option, or the value that an earlier fleet chose.
func (v *view) first(variable string, options []string) string {
	if value, ok := v.chosen[variable]; ok {
		return value
	}
	if v.chosen != nil {
		v.chosen[variable] = options[0]
	}
	return options[0]
}

// values decodes the value of a variable, a string or a list of them. None is empty.
func values(raw json.RawMessage) []string {
	var one string
	var list []string
	if json.Unmarshal(raw, &list) != nil && json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	return list
}

// Grafana's queries of variables.
var (
	labelValues = regexp.MustCompile(`(?s)^label_values\((?:(.*), *)?([a-zA-Z_]+)\)$`)
	queryResult = regexp.MustCompile(`(?s)^query_result\((.*)\)$`)
)

// options returns the values that a variable offers.
func (v *view) options(ctx context.Context, of variable) ([]string, cost, error) {
	text := queryText(of.Query)
	if match := labelValues.FindStringSubmatch(text); match != nil {
		return v.labelValues(ctx, v.fill(match[1]), match[2])
	}
	match := queryResult.FindStringSubmatch(text)
	if match == nil {
		return nil, cost{}, fmt.Errorf("unknown query %q", text)
	}
	result, c, err := v.instant(ctx, v.fill(match[1]), v.to)
	if err != nil {
		return nil, c, err
	}
	pattern, err := regexp.Compile(strings.Trim(of.Regex, "/"))
	if err != nil {
		return nil, c, fmt.Errorf("its regular expression: %w", err)
	}
	var out []string
	for _, s := range result {
		row := fmt.Sprintf("%s %v %d", s.Metric, s.F, s.T)
		if found := pattern.FindStringSubmatch(row); len(found) > 1 {
			out = append(out, found[1])
		} else if of.Regex == "" {
			out = append(out, row)
		}
	}
	return out, c, nil
}

// queryText returns the query of a variable, which is a text or an object with a text.
func queryText(raw json.RawMessage) string {
	var text string
	var object struct{ Query string }
	if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &object) == nil {
		return object.Query
	}
	return text
}

func (v *view) labelValues(ctx context.Context, selector, label string) ([]string, cost, error) {
	querier, err := v.store.Querier(v.from.UnixMilli(), v.to.UnixMilli())
	if err != nil {
		return nil, cost{}, fmt.Errorf("open the database: %w", err)
	}
	defer func() { _ = querier.Close() }()
	matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(selector)
	if err != nil {
		return nil, cost{}, fmt.Errorf("parse %s: %w", selector, err)
	}
	began := processorTime()
	found, _, err := querier.LabelValues(ctx, label, nil, matchers...)
	c := cost{Seconds: (processorTime() - began).Seconds(), Series: len(found)}
	for _, text := range found {
		c.Bytes += size(text)
	}
	return slices.Clone(found), c, err
}

// look opens the dashboard. It returns the costs of its variables, annotations and panels, by name.
func (v *view) look(ctx context.Context, b *board) ([]row, error) {
	v.drawn = answers{
		Dashboard: b.content, Answers: map[int][]json.RawMessage{}, Chosen: map[string]string{},
		From: v.from.UnixMilli(), To: v.to.UnixMilli(),
	}
	var rows []row
	for _, of := range b.Templating.List {
		c, err := v.choose(ctx, b, of)
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", b.UID, err)
		}
		if of.Type == "query" {
			rows = append(rows, row{Kind: variableRow, Name: "$" + of.Name, cost: c, limited: v.limited(queryText(of.Query))})
		}
	}
	for _, a := range b.Annotations.List {
		if !a.Enable {
			continue
		}
		step, _ := time.ParseDuration(a.Step)
		marks, c, err := v.over(ctx, v.fill(a.Target.Expr), v.from, v.to, max(step, v.step))
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: annotation %s: %w", b.UID, a.Name, err)
		}
		v.drawn.Marks = append(v.drawn.Marks, marks)
		rows = append(rows, row{
			Kind: annotationRow, Name: "annotation " + a.Name, cost: c, limited: v.limited(a.Target.Expr),
		})
	}
	for i := range b.Panels {
		p := &b.Panels[i]
		r, err := v.at(p).panel(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: panel %s: %w", b.UID, p.Title, err)
		}
		if len(p.Targets) > 0 {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// panel evaluates the queries of a panel.
func (v *view) panel(ctx context.Context, p *panel) (row, error) {
	r := row{Kind: panelRow, Name: p.Title, folded: p.folded}
	for _, target := range p.Targets {
		if target.Hide {
			continue
		}
		answer, c, err := v.ask(ctx, target.Expr, target.Instant)
		if err != nil {
			return r, err
		}
		v.drawn.Answers[p.ID] = append(v.drawn.Answers[p.ID], answer)
		if p.Type == "table" || p.Type == "xychart" { // its queries are columns
			c.Series = max(c.Series, r.Series) - r.Series
		}
		r.cost, r.limited = r.add(c), r.limited || v.limited(target.Expr)
	}
	return r, nil
}

func (v *view) ask(ctx context.Context, expr string, instant bool) (json.RawMessage, cost, error) {
	if instant {
		result, c, err := v.instant(ctx, v.fill(expr), v.to)
		if err != nil {
			return nil, c, err
		}
		answer, err := json.Marshal(result)
		return answer, c, err
	}
	return v.over(ctx, v.fill(expr), v.from, v.to, v.step)
}
