package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// options are the options of a measurement.
type options struct {
	checkout      string
	boards        string // a regular expression
	answers       string // the file of what Grafana draws of them; empty: none
	history, span time.Duration
	lasting       time.Duration
	long          time.Duration // 0: the dashboards are not opened over a long time
	progress      io.Writer     // nil: no progress is printed
	began         time.Time
	limits        int // divides the limits of queries, see view
	// chosen are the values of variables that start with the first one that is offered, by
	// dashboard and name. Those that are missing are added: later fleets open the dashboard of the
	// same claim.
	chosen map[string]string
}

// result has the costs of a fleet.
type result struct {
	Tree             string
	Nodes            int
	Scraped, Head    int     // series in a scrape of all nodes, and in the database
	SamplesPerSecond float64 // scraped
	HeadBytes        uint64
	Written          float64 // seconds of processor time that writing the history took
	Groups           []section
	Boards           []section
}

// section is a group of rules or a dashboard.
type section struct {
	Name  string
	Every time.Duration // how often the rules of a group are evaluated
	Rows  []row
}

func (s *section) total() cost {
	var sum cost
	for _, r := range s.Rows {
		sum = sum.add(r.cost)
	}
	return sum
}

// row is a rule, or a query of a dashboard.
type row struct {
	Kind rowKind
	Name string
	cost
	limited bool // it would return more if its limits were not divided
	folded  bool // it is asked for when a collapsed row is opened
}

type rowKind int

const (
	ruleRow rowKind = iota
	variableRow
	annotationRow
	panelRow
)

const (
	// rulesEvery is how often the rules are evaluated while the history is written.
	rulesEvery = 20 * time.Minute
	// repeated is the number of evaluations of the rules at the end. The lowest cost of each
	// counts, since the garbage collector may run at any time.
	repeated = 3
)

// measure writes the history of a fleet, evaluates the rules, and opens the dashboards.
func (o options) measure(ctx context.Context, t *template, nodes int) (r *result, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	groups, err := loadRules(o.checkout)
	if err != nil {
		return nil, err
	}
	r = &result{
		Tree: o.checkout, Nodes: nodes, Scraped: nodes * len(t.series),
		SamplesPerSecond: float64(nodes*len(t.series)) / scrape.Seconds(),
	}
	memory, began := heap(), processorTime()
	e := newEngine(db)
	end := t.at.Truncate(rulesEvery)
	f := &fleet{template: t, begin: end.Add(-o.history), churn: 20 * time.Minute}
	writers := f.writers(nodes)
	var costs [][]cost
	for at := f.begin; at.Before(end); at = at.Add(rulesEvery) {
		next := driver.Earlier(at.Add(rulesEvery), end)
		if err := history(ctx, db, writers, at, next); err != nil {
			return nil, err
		}
		o.say("%s, %d nodes: %v of %v are written", o.checkout, nodes, next.Sub(f.begin), o.history)
		runtime.GC()
		if costs, err = evaluate(ctx, e, db, groups, at, next); err != nil {
			return nil, err
		}
	}
	r.Written = (processorTime() - began).Seconds()
	r.Head, r.HeadBytes = int(db.Head().NumSeries()), heap()-memory
	if err := again(ctx, e, groups, end, costs); err != nil {
		return nil, err
	}
	o.say("%s, %d nodes: the rules are evaluated", o.checkout, nodes)
	for i, group := range groups {
		s := section{Name: group.Name, Every: intervalOf(group)}
		for j, rule := range group.Rules {
			s.Rows = append(s.Rows, row{Kind: ruleRow, Name: ruleName(rule), cost: costs[i][j]})
		}
		r.Groups = append(r.Groups, s)
	}
	if err := o.open(ctx, e, end, r); err != nil || o.long == 0 {
		return r, err
	}
	return r, o.openLong(ctx, e, end, r)
}

// say prints the progress of the measurement, if requested.
func (o options) say(format string, args ...any) {
	if o.progress != nil {
		_, _ = fmt.Fprintf(o.progress, "fleet: %s, after %.0f s (%.0f s of processors)\n", fmt.Sprintf(format, args...),
			time.Since(o.began).Seconds(), processorTime().Seconds())
	}
}

// open opens the dashboards.
func (o options) open(ctx context.Context, e engine, end time.Time, r *result) error {
	boards, err := loadBoards(o.checkout)
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(o.boards)
	if err != nil {
		return fmt.Errorf("parse the names of dashboards: %w", err)
	}
	drawn := map[string]answers{}
	for i := range boards {
		if !wanted.MatchString(boards[i].UID) {
			continue
		}
		runtime.GC()
		v := newView(e, end, o.span)
		v.limits, v.chosen = o.limits, o.chosen
		rows, err := v.look(ctx, &boards[i])
		if err != nil {
			return err
		}
		r.Boards = append(r.Boards, section{Name: boards[i].UID, Rows: rows})
		drawn[boards[i].UID] = v.drawn
		o.say("dashboard %s is open", boards[i].UID)
	}
	if o.answers == "" {
		return nil
	}
	content, err := json.Marshal(drawn)
	if err != nil {
		return fmt.Errorf("encode answers: %w", err)
	}
	return os.WriteFile(o.answers, content, 0o644)
}

// writers divides the nodes among the processors.
func (f *fleet) writers(nodes int) []*writer {
	count := min(runtime.GOMAXPROCS(0), nodes)
	var out []*writer
	for i := range count {
		out = append(out, newWriter(f, nodes*i/count, nodes*(i+1)/count))
	}
	return out
}

// heap returns the bytes of all objects that are in use.
func heap() uint64 {
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
