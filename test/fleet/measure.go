package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"time"
)

// options say what is measured.
type options struct {
	checkout      string
	boards        string // a regular expression
	history, span time.Duration
	lasting       time.Duration
	long          time.Duration // 0: the dashboards are not opened over a long time
}

// result is what a fleet takes.
type result struct {
	tree             string
	nodes            int
	scraped, head    int     // series in a scrape of all nodes, and in the database
	samplesPerSecond float64 // scraped
	headBytes        uint64
	written          time.Duration
	groups           []section
	boards           []section
}

// section is a group of rules or a dashboard.
type section struct {
	name string
	rows []row
}

func (s *section) total() cost {
	var sum cost
	for _, r := range s.rows {
		sum = sum.add(r.cost)
	}
	return sum
}

// row is a rule, or what a dashboard asks for.
type row struct {
	kind rowKind
	name string
	cost
}

type rowKind int

const (
	ruleRow rowKind = iota
	variableRow
	annotationRow
	panelRow
)

// rulesEvery is how often the rules are evaluated while the history is written.
const rulesEvery = 10 * time.Minute

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
		tree: o.checkout, nodes: nodes, scraped: nodes * len(t.series),
		samplesPerSecond: float64(nodes*len(t.series)) / scrape.Seconds(),
	}
	memory := heap()
	e := newEngine(db)
	end := t.at.Truncate(rulesEvery)
	f := &fleet{template: t, begin: end.Add(-o.history), churn: 20 * time.Minute}
	writers := f.writers(nodes)
	began := time.Now()
	var costs [][]cost
	for at := f.begin; at.Before(end); at = at.Add(rulesEvery) {
		if err := history(ctx, db, writers, at, at.Add(rulesEvery)); err != nil {
			return nil, err
		}
		runtime.GC()
		if costs, err = evaluate(ctx, e, db, groups, at, at.Add(rulesEvery)); err != nil {
			return nil, err
		}
	}
	r.written, r.head, r.headBytes = time.Since(began), int(db.Head().NumSeries()), heap()-memory
	for i, group := range groups {
		s := section{name: group.Name}
		for j, rule := range group.Rules {
			s.rows = append(s.rows, row{ruleRow, ruleName(rule), costs[i][j]})
		}
		r.groups = append(r.groups, s)
	}
	if err := o.open(ctx, e, end, r); err != nil || o.long == 0 {
		return r, err
	}
	return r, o.openLong(ctx, e, end, r)
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
	for i := range boards {
		if !wanted.MatchString(boards[i].UID) {
			continue
		}
		runtime.GC()
		rows, err := newView(e, end, o.span).look(ctx, &boards[i])
		if err != nil {
			return err
		}
		r.boards = append(r.boards, section{boards[i].UID, rows})
	}
	return nil
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
