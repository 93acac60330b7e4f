package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// scrape is the scrape interval.
const scrape = 15 * time.Second

// open opens an empty database without log in a folder. Its head holds all samples.
func open(dir string) (*tsdb.DB, error) {
	options := tsdb.DefaultOptions()
	options.WALSegmentSize = -1
	options.MinBlockDuration = (90 * 24 * time.Hour).Milliseconds()
	options.MaxBlockDuration = options.MinBlockDuration
	options.RetentionDuration = 0
	db, err := tsdb.Open(dir, nil, nil, options, nil)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	db.DisableCompactions()
	return db, nil
}

// writer writes the samples of a range of nodes.
type writer struct {
	fleet    *fleet
	from, to int // nodes
	refs     []reference
	builder  *labels.Builder
}

// reference is a series of a node in the database.
type reference struct {
	ref        storage.SeriesRef
	generation int64
}

func newWriter(f *fleet, from, to int) *writer {
	return &writer{
		fleet: f, from: from, to: to, refs: make([]reference, (to-from)*len(f.series)),
		builder: labels.NewBuilder(labels.EmptyLabels()),
	}
}

// nodeHistory writes the samples of a node after one time and until another. It writes series by
// series, since the database is much faster that way than time by time.
func (w *writer) nodeHistory(ctx context.Context, db *tsdb.DB, node int, after, until time.Time) error {
	lives := make([][]life, w.fleet.units+1) // by unit, of which the first is -1, and time
	for unit := range lives {
		for at := after.Add(scrape); !at.After(until); at = at.Add(scrape) {
			number, since := w.fleet.generation(node, unit-1, at)
			lives[unit] = append(lives[unit], life{at, since, number})
		}
	}
	app := db.Appender(ctx)
	for i := range w.fleet.series {
		for _, l := range lives[w.fleet.series[i].unit+1] {
			if err := w.sample(app, node, i, l); err != nil {
				return errors.Join(fmt.Errorf("append to %s of node %d: %w", w.fleet.series[i].labels, node, err), app.Rollback())
			}
		}
	}
	return app.Commit()
}

// life identifies the pods and claims that a unit has at a time, and has the time since which it
// has them.
type life struct {
	at, since  time.Time
	generation int64
}

// sample writes a sample of a series. The series of pods and claims that have ended get the marker
// of an end.
func (w *writer) sample(app storage.Appender, node, i int, l life) (err error) {
	s, r := &w.fleet.series[i], &w.refs[(node-w.from)*len(w.fleet.series)+i]
	lset, ms := labels.EmptyLabels(), l.at.UnixMilli()
	if r.ref != 0 && r.generation != l.generation {
		if _, err := app.Append(r.ref, lset, ms, math.Float64frombits(value.StaleNaN)); err != nil {
			return err
		}
		r.ref = 0
	}
	if r.ref == 0 {
		r.generation = l.generation
		lset = w.fleet.labelsOf(w.builder, s, node, l.generation)
	}
	r.ref, err = app.Append(r.ref, lset, ms, w.fleet.value(s, node, l.since, l.at))
	return err
}

// history writes the samples of several writers in parallel, after one time and until another.
func history(ctx context.Context, db *tsdb.DB, writers []*writer, after, until time.Time) error {
	errs := make([]error, len(writers))
	var all sync.WaitGroup
	for i, w := range writers {
		all.Go(func() {
			for node := w.from; node < w.to && errs[i] == nil; node++ {
				errs[i] = errors.Join(ctx.Err(), w.nodeHistory(ctx, db, node, after, until))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// cost is the cost of an expression.
type cost struct {
	Seconds float64 // of processor time
	Samples int64   // that the engine reads, as Prometheus counts them for a query's statistics
	Series  int     // of the result
	Bytes   int64   // of the result as JSON
	Refused string  // why the engine gives no result
}

func (c cost) add(other cost) cost {
	c.Seconds += other.Seconds
	c.Samples += other.Samples
	c.Series += other.Series
	c.Bytes += other.Bytes
	if c.Refused == "" {
		c.Refused = other.Refused
	}
	return c
}

// engine evaluates expressions as Prometheus does with its default flags.
type engine struct {
	*promql.Engine
	store storage.Queryable
}

func newEngine(store storage.Queryable) engine {
	return engine{store: store, Engine: promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: 10 * time.Minute, LookbackDelta: 5 * time.Minute,
		EnableAtModifier: true, EnableNegativeOffset: true, Parser: parser.NewParser(parser.Options{}),
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
	})}
}

// instant evaluates an expression at a time.
func (e engine) instant(ctx context.Context, expr string, at time.Time) (promql.Vector, cost, error) {
	query, err := e.NewInstantQuery(ctx, e.store, nil, expr, at)
	if err != nil {
		return nil, cost{}, fmt.Errorf("parse %s: %w", expr, err)
	}
	defer query.Close()
	result, c := measure(ctx, query)
	if result.Err != nil {
		c.Refused = result.Err.Error()
		return nil, c, nil
	}
	switch v := result.Value.(type) {
	case promql.Vector:
		c.Series = len(v)
		for _, s := range v {
			c.Bytes += size(s)
		}
		return append(promql.Vector{}, v...), c, nil
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V}}, c, nil
	default:
		return nil, c, fmt.Errorf("%s is a %s", expr, result.Value.Type())
	}
}

// over evaluates an expression over a time range. It returns the result as JSON, too.
func (e engine) over(
	ctx context.Context, expr string, from, to time.Time, step time.Duration,
) (json.RawMessage, cost, error) {
	query, err := e.NewRangeQuery(ctx, e.store, nil, expr, from, to, step)
	if err != nil {
		return nil, cost{}, fmt.Errorf("parse %s: %w", expr, err)
	}
	defer query.Close()
	result, c := measure(ctx, query)
	if result.Err != nil {
		c.Refused = result.Err.Error()
		return nil, c, nil
	}
	matrix, err := result.Matrix()
	if err != nil {
		return nil, c, fmt.Errorf("evaluate %s: %w", expr, err)
	}
	answer, err := json.Marshal(append(promql.Matrix{}, matrix...)) // [] and not null
	c.Series, c.Bytes = len(matrix), int64(len(answer))
	return answer, c, err
}

func measure(ctx context.Context, query promql.Query) (*promql.Result, cost) {
	began := processorTime()
	result := query.Exec(ctx)
	return result, cost{
		Seconds: (processorTime() - began).Seconds(), Samples: query.Stats().Samples.TotalSamples,
	}
}

// size returns the length of a series of a result in Prometheus's answer.
func size(series any) int64 {
	text, err := json.Marshal(series)
	if err != nil {
		return 0
	}
	return int64(len(text)) + 1
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The records that are kept for a long time, and the dashboards that show them: all records by
// cluster, namespace and workload. With many nodes, since all samples are in memory, only those by
// cluster and namespace, and those of hours by workload.
const (
	fewNodes      = 100
	fleetRecords  = `{__name__=~"(cluster|namespace|workload):.+"}`
	fleetBoards   = "fleet|namespaces|workloads"
	recordsOfMany = `{__name__=~"(cluster|namespace):.+|workload:.+1h"}`
	boardsOfMany  = "fleet|namespaces"
)

// openLong opens the dashboards over a long time, from records alone.
func (o options) openLong(ctx context.Context, e engine, end time.Time, r *result) (err error) {
	left, boards := fleetRecords, fleetBoards
	if r.Nodes > fewNodes {
		left, boards = recordsOfMany, boardsOfMany
	}
	records, _, err := e.instant(ctx, left, end)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	groups, err := loadRules(o.checkout)
	if err != nil {
		return err
	}
	if err := fillRecords(ctx, db, records, intervals(groups), end.Add(-o.long), end); err != nil {
		return err
	}
	before := len(r.Boards)
	o.span, o.boards = o.long, boards
	if err := o.open(ctx, newEngine(db), end, r); err != nil {
		return err
	}
	for i := range r.Boards[before:] {
		r.Boards[before+i].Name += fmt.Sprintf(" over %v", o.long)
	}
	return nil
}

// intervals returns how often each record is evaluated.
func intervals(groups []rulefmt.RuleGroup) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, group := range groups {
		for _, rule := range group.Rules {
			out[rule.Record] = intervalOf(group)
		}
	}
	return out
}

// fillRecords writes a sample of each record for each of its evaluations, in whole minutes. Its
// value varies by a tenth.
func fillRecords(ctx context.Context, db storage.Appendable, records promql.Vector, often map[string]time.Duration,
	from, to time.Time,
) error {
	const perCommit = 1000
	refs := make([]storage.SeriesRef, len(records))
	app := db.Appender(ctx)
	for at, n := from, 1; !at.After(to); at, n = at.Add(every), n+1 {
		factor := 1 + math.Sin(float64(n)/100)/10
		for i, s := range records {
			if interval := often[s.Metric.Get(model.MetricNameLabel)]; interval > every && at.Sub(from)%interval != 0 {
				continue
			}
			ref, err := app.Append(refs[i], s.Metric, at.UnixMilli(), s.F*factor)
			if err != nil {
				return errors.Join(fmt.Errorf("write %s: %w", s.Metric, err), app.Rollback())
			}
			refs[i] = ref
		}
		if n%perCommit == 0 {
			if err := app.Commit(); err != nil {
				return err
			}
			app = db.Appender(ctx)
		}
	}
	return app.Commit()
}

// loadRules reads the groups of the shipped rules of a checkout.
func loadRules(checkout string) ([]rulefmt.RuleGroup, error) {
	content, err := os.ReadFile(filepath.Join(checkout, "dashboards", "out", "rules.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	file, errs := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}),
		promslog.NewNopLogger())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return file.Groups, nil
}

// ruleName returns the name of a rule: its record or alert, and its labels.
func ruleName(r rulefmt.Rule) string {
	name := r.Record + r.Alert
	var parts []string
	for _, label := range slices.Sorted(maps.Keys(r.Labels)) {
		parts = append(parts, label+"="+r.Labels[label])
	}
	if len(parts) > 0 {
		name += "{" + strings.Join(parts, ",") + "}"
	}
	return name
}

// every is the interval of rules without one.
const every = time.Minute

// evaluate evaluates all groups at a time. It writes their records and the firing alerts as if each
// group had been evaluated regularly since the previous time, with the same result. It returns the
// cost of each rule, in order.
func evaluate(ctx context.Context, e engine, db *tsdb.DB, groups []rulefmt.RuleGroup, before, at time.Time,
) ([][]cost, error) {
	costs := make([][]cost, len(groups))
	for i, group := range groups {
		for _, rule := range group.Rules {
			result, c, err := e.instant(ctx, rule.Expr, at)
			if err == nil {
				err = writeResult(ctx, db, rule, result, before, at, intervalOf(group))
			}
			if err != nil {
				return nil, fmt.Errorf("rule %s: %w", ruleName(rule), err)
			}
			costs[i] = append(costs[i], c)
		}
	}
	return costs, nil
}

// again evaluates all groups at a time without writing. The cost of a rule becomes the lower
// processor time.
func again(ctx context.Context, e engine, groups []rulefmt.RuleGroup, at time.Time, costs [][]cost) error {
	for range repeated - 1 {
		for i, group := range groups {
			for j, rule := range group.Rules {
				_, c, err := e.instant(ctx, rule.Expr, at)
				if err != nil {
					return fmt.Errorf("rule %s: %w", ruleName(rule), err)
				}
				costs[i][j].Seconds = min(costs[i][j].Seconds, c.Seconds)
			}
		}
	}
	return nil
}

// intervalOf returns the interval of a group.
func intervalOf(group rulefmt.RuleGroup) time.Duration {
	if group.Interval > 0 {
		return time.Duration(group.Interval)
	}
	return every
}

// writeResult writes the samples of a rule after one time and until another.
func writeResult(ctx context.Context, db *tsdb.DB, rule rulefmt.Rule, result promql.Vector, after, until time.Time,
	interval time.Duration,
) error {
	app := db.Appender(ctx)
	builder := labels.NewBuilder(labels.EmptyLabels())
	for _, s := range result {
		builder.Reset(s.Metric)
		builder.Del(model.MetricNameLabel)
		if rule.Alert != "" {
			builder.Set(model.MetricNameLabel, "ALERTS").Set("alertname", rule.Alert).Set("alertstate", "firing")
			s.F = 1
		} else {
			builder.Set(model.MetricNameLabel, rule.Record)
		}
		for name, text := range rule.Labels {
			builder.Set(name, text)
		}
		lset := builder.Labels()
		at := until
		for at.Add(-interval).After(after) {
			at = at.Add(-interval)
		}
		for ; !at.After(until); at = at.Add(interval) {
			if _, err := app.Append(0, lset, at.UnixMilli(), s.F); err != nil {
				return errors.Join(fmt.Errorf("write %s: %w", lset, err), app.Rollback())
			}
		}
	}
	return app.Commit()
}
