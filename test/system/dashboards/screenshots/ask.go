package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// board is a dashboard's JSON, and the results of the queries of each panel, by its id.
type board struct {
	Dashboard json.RawMessage           `json:"dashboard"`
	Answers   map[int][]json.RawMessage `json:"answers"`
	Marks     []json.RawMessage         `json:"marks"` // the results of the annotations' queries
	From      int64                     `json:"from"`  // milliseconds since 1970
	To        int64                     `json:"to"`
	Chosen    map[string]string         `json:"chosen"` // values of variables

	took time.Duration // of the slowest query
}

// shipped is the part of a dashboard's JSON that is used: of panels that are open at first.
type shipped struct {
	Annotations struct {
		List []struct{ Target struct{ Expr string } }
	}
	Panels []struct {
		ID      int
		Title   string
		Targets []struct {
			Expr    string
			Instant bool
		}
	}
}

// asker sends the queries of dashboards to Prometheus.
type asker struct {
	prometheus       live.Prometheus
	span, rate, step time.Duration
	now              time.Time
	waits            string // for values of this over the time range
}

// wait waits until there are values for the complete time range.
func (a *asker) wait(ctx context.Context) error {
	expr := "count_over_time((" + a.waits + ")[" + seconds(2*a.span) + ":" + seconds(a.step) + "]) * " +
		strconv.FormatFloat(a.step.Seconds(), 'f', -1, 64) + " >= " + strconv.FormatFloat(a.span.Seconds(), 'f', -1, 64)
	ctx, cancel := context.WithTimeout(ctx, a.span+time.Minute)
	defer cancel()
	for {
		a.now = time.Now()
		answer, err := a.ask(ctx, expr, true)
		if err == nil && string(answer) != "[]" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %v of data: %w", a.span, errors.Join(ctx.Err(), err))
		case <-time.After(time.Second):
		}
	}
}

// chosen returns the values of variables, by dashboard: of one claim and of one node. Without data,
// a list of values is empty, and so is its value.
func chosen(world string) map[string]map[string]string {
	node := map[string]string{"node": "demo-node"}
	claim := map[string]string{"namespace": "team-nlp", "claim": "llm-pretrain-0-gpus"}
	switch world {
	case "empty":
		node, claim = map[string]string{"node": ""}, map[string]string{"namespace": "", "claim": ""}
	case "nvidia.com":
		claim = map[string]string{"namespace": "", "claim": ""}
	case "dra.net":
		claim["claim"] = "llm-pretrain-0-nic"
	}
	return map[string]map[string]string{"dra-claim": claim, "dra-nodes": node, "dra-network": node}
}

// boards returns all dashboards, or only one, by UID.
func (a *asker) boards(
	ctx context.Context, only string, chosen map[string]map[string]string,
) (map[string]board, error) {
	out := map[string]board{}
	for _, b := range grafana.Boards() {
		if only != "" && b.UID != only {
			continue
		}
		content, err := os.ReadFile("../../../dashboards/out/grafana/" + b.UID + ".json")
		if err != nil {
			return nil, fmt.Errorf("read dashboard: %w", err)
		}
		var dashboard shipped
		if err := json.Unmarshal(content, &dashboard); err != nil {
			return nil, fmt.Errorf("decode dashboard %s: %w", b.UID, err)
		}
		drawn := board{
			Dashboard: content, Answers: map[int][]json.RawMessage{},
			From: a.now.Add(-a.span).UnixMilli(), To: a.now.UnixMilli(),
			Chosen: chosen[b.UID],
		}
		if err := a.answer(ctx, &drawn, dashboard, chosen[b.UID]); err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", b.UID, err)
		}
		out[b.UID] = drawn
		fmt.Printf("%s: the slowest query takes %v\n", b.UID, drawn.took.Round(time.Millisecond))
	}
	return out, nil
}

// answer adds the answers to all queries of a dashboard.
func (a *asker) answer(ctx context.Context, drawn *board, of shipped, chosen map[string]string) error {
	ask := func(to *[]json.RawMessage, expr string, instant bool) error {
		expr = grafana.Fill(expr, chosen, seconds(a.span), seconds(a.rate), seconds(a.step))
		began := time.Now()
		answer, err := a.ask(ctx, expr, instant)
		*to, drawn.took = append(*to, answer), max(drawn.took, time.Since(began))
		return err
	}
	for _, annotation := range of.Annotations.List {
		if err := ask(&drawn.Marks, annotation.Target.Expr, false); err != nil {
			return err
		}
	}
	for _, p := range of.Panels {
		answers := drawn.Answers[p.ID]
		for _, target := range p.Targets {
			if err := ask(&answers, target.Expr, target.Instant); err != nil {
				return fmt.Errorf("panel %q: %w", p.Title, err)
			}
		}
		drawn.Answers[p.ID] = answers
	}
	return nil
}

// ask returns the data of Prometheus's response, for the time range or for its end.
func (a *asker) ask(ctx context.Context, expr string, instant bool) (json.RawMessage, error) {
	unix := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	path, parameters := "/api/v1/query", url.Values{"query": {expr}, "time": {unix(a.now)}}
	if !instant {
		path = "/api/v1/query_range"
		parameters = url.Values{
			"query": {expr}, "start": {unix(a.now.Add(-a.span))}, "end": {unix(a.now)}, "step": {seconds(a.step)},
		}
	}
	var data struct{ Result json.RawMessage }
	if err := a.prometheus.Get(ctx, path, parameters, &data); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	return data.Result, nil
}
