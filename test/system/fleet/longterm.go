package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

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
