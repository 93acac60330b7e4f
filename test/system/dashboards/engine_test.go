package dashboards

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// engine is a database with Prometheus' query engine, in the process of the test.
type engine struct {
	db       *tsdb.DB
	ask      *promql.Engine
	recorded []point // what rules recorded
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	db := must.Get(tsdb.Open(t.TempDir(), promslog.NewNopLogger(), nil, tsdb.DefaultOptions(), nil))(t)
	e := &engine{db: db, ask: promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50e6, Timeout: time.Minute, EnableAtModifier: true,
	})}
	t.Cleanup(func() {
		expect.OK(t, e.ask.Close())
		expect.OK(t, db.Close())
	})
	return e
}

// point is a value of a series at a time: a number or a native histogram.
type point struct {
	labels    labels.Labels
	at        time.Time
	value     float64
	histogram *histogram.FloatHistogram
}

// add appends points, in the order of their times.
func (e *engine) add(t testing.TB, points ...point) {
	t.Helper()
	appender := e.db.Appender(context.Background())
	for _, p := range points {
		var err error
		if p.histogram != nil {
			_, err = appender.AppendHistogram(0, p.labels, p.at.UnixMilli(), nil, p.histogram)
		} else {
			_, err = appender.Append(0, p.labels, p.at.UnixMilli(), p.value)
		}
		must.That(t, err == nil, "append %v: %v", p.labels, err)
	}
	must.Do(t, appender.Commit())
}

// query evaluates an expression at one time.
func (e *engine) query(expr string, at time.Time) (promql.Vector, error) {
	q, err := e.ask.NewInstantQuery(context.Background(), storage.Queryable(e.db), nil, expr, at)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", expr, err)
	}
	defer q.Close()
	result := q.Exec(context.Background())
	if result.Err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", expr, result.Err)
	}
	if scalar, ok := result.Value.(promql.Scalar); ok {
		return promql.Vector{{T: scalar.T, F: scalar.V}}, nil
	}
	vector, err := result.Vector()
	return append(promql.Vector{}, vector...), err
}

// answers are the values of series, by their labels.
type answers map[string]float64

func (e *engine) answers(expr string, at time.Time) (answers, error) {
	vector, err := e.query(expr, at)
	if err != nil {
		return nil, err
	}
	out := answers{}
	for _, s := range vector {
		if s.H == nil {
			out[s.Metric.String()] = s.F
			continue
		}
		of := s.Metric.String() + " of a histogram: "
		out[of+"count"], out[of+"sum"] = s.H.Count, s.H.Sum
		for buckets := s.H.AllBucketIterator(); buckets.Next(); {
			b := buckets.At()
			out[of+fmt.Sprintf("up to %v", b.Upper)] = b.Count
		}
	}
	return out, nil
}

// differ describes the first difference of two answers, "" if there is none.
func (a answers) differ(other answers) string {
	for key, v := range a {
		w, ok := other[key]
		if !ok {
			return key + " is missing"
		}
		if math.Abs(v-w) > 1e-9*math.Max(math.Abs(v), 1) && !(math.IsNaN(v) && math.IsNaN(w)) {
			return fmt.Sprintf("%s is %v, want %v", key, w, v)
		}
	}
	for key := range other {
		if _, ok := a[key]; !ok {
			return key + " is too much"
		}
	}
	return ""
}

// ruleName identifies a rule in the results of [engine.evaluate].
func ruleName(group string, r *rules.Rule) string {
	return group + ": " + r.Record + r.Alert + fmt.Sprint(r.Labels)
}

// evaluate evaluates the groups once, rule after rule, as Prometheus does. It keeps the records and
// returns the answers by [ruleName]. The answer of an alert is that of its expression.
func (e *engine) evaluate(t testing.TB, groups []rules.Group, at time.Time) map[string]answers {
	t.Helper()
	out := map[string]answers{}
	for _, g := range groups {
		for i := range g.Rules {
			r := &g.Rules[i]
			vector, err := e.query(r.Expr, at)
			if err != nil {
				t.Errorf("%s: %s%s: %v", g.Name, r.Record, r.Alert, err)
				continue
			}
			got := answers{}
			var points []point
			for _, s := range vector {
				got[s.Metric.String()] = s.F
				if r.Record == "" {
					continue
				}
				name := labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, r.Record)
				for label, value := range r.Labels {
					name.Set(label, value)
				}
				points = append(points, point{labels: name.Labels(), at: at, value: s.F, histogram: s.H})
			}
			e.add(t, points...)
			e.recorded = append(e.recorded, points...)
			out[ruleName(g.Name, r)] = got
		}
	}
	return out
}

// parsed returns the labels of a series, given as in the exposition.
func parsed(series string) labels.Labels {
	name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	builder := labels.NewScratchBuilder(8)
	builder.Add(model.MetricNameLabel, name)
	for pair := range strings.SplitSeq(rest, ", ") {
		label, value, _ := strings.Cut(pair, "=")
		builder.Add(label, strings.Trim(value, `"`))
	}
	builder.Sort()
	return builder.Labels()
}
