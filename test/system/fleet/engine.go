package main

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

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
