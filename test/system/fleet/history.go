package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
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
