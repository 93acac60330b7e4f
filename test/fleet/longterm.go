package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// fleetRecords matches the records that do not grow with the nodes.
const fleetRecords = `{__name__=~"(cluster|namespace|workload):.+"}`

// openLong opens the dashboards over a long time, of which only the records by cluster, namespace
// and workload are left, with a sample a minute each.
func (o options) openLong(ctx context.Context, e engine, end time.Time, r *result) (err error) {
	records, _, err := e.instant(ctx, fleetRecords, end)
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
	if err := fillRecords(ctx, db, records, end.Add(-o.long), end); err != nil {
		return err
	}
	before := len(r.Boards)
	o.span, o.boards = o.long, "fleet|namespaces|workloads"
	if err := o.open(ctx, newEngine(db), end, r); err != nil {
		return err
	}
	for i := range r.Boards[before:] {
		r.Boards[before+i].Name += fmt.Sprintf(" over %v", o.long)
	}
	return nil
}

// fillRecords writes a sample of each record every minute, whose value swings by a tenth.
func fillRecords(ctx context.Context, db storage.Appendable, records promql.Vector, from, to time.Time) error {
	const perCommit = 1000
	refs := make([]storage.SeriesRef, len(records))
	app := db.Appender(ctx)
	for at, n := from, 1; !at.After(to); at, n = at.Add(every), n+1 {
		factor := 1 + math.Sin(float64(n)/100)/10
		for i, s := range records {
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
