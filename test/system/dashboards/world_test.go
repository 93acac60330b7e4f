package dashboards

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
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
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Functions of the minute that return values.

type course func(minute int) (float64, bool)

func always(v float64) course { return func(int) (float64, bool) { return v, true } }

// rising is a counter that increases by perMinute in each minute.
func rising(perMinute float64) course {
	return counting(func(int) float64 { return perMinute })
}

// counting is a counter that increases in each minute by the value of a function.
func counting(gain func(minute int) float64) course {
	return func(minute int) (float64, bool) {
		sum := 0.0
		for m := range minute {
			sum += gain(m)
		}
		return sum, true
	}
}

// between has the values within these minutes, and none otherwise.
func (c course) between(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute < from || minute >= to {
			return 0, false
		}
		return c(minute)
	}
}

// without has the values except within these minutes.
func (c course) without(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute >= from && minute < to {
			return 0, false
		}
		return c(minute)
	}
}

// from is a counter that starts at 0 in that minute, and is absent before.
func (c course) from(begin int) course {
	return func(minute int) (float64, bool) {
		if minute < begin {
			return 0, false
		}
		return c(minute - begin)
	}
}

// restarted is a counter of an exporter that is down within these minutes, and then counts from 0.
func (c course) restarted(down, up int) course {
	return func(minute int) (float64, bool) {
		switch {
		case minute < down:
			return c(minute)
		case minute < up:
			return 0, false
		default:
			v, ok := c(minute)
			before, _ := c(up)
			return v - before, ok
		}
	}
}

// above is the counter of the time in which the counter rises by more than perMinute, as the
// exporter counts used time. It restarts where the counter does.
func (c course) above(perMinute float64) course {
	if c == nil {
		return nil
	}
	return func(minute int) (float64, bool) {
		sum, before := 0.0, 0.0
		for m := range minute + 1 {
			v, ok := c(m)
			switch {
			case !ok || v < before:
				sum = 0
			case v-before > perMinute:
				sum += 60
			}
			before = v
		}
		_, ok := c(minute)
		return sum, ok
	}
}

// busyPerMinute is how many active seconds of a minute are a utilization of --idle.threshold.
const busyPerMinute = 0.6

// during is 1 within these minutes, otherwise 0.
func during(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute >= from && minute < to {
			return 1, true
		}
		return 0, true
	}
}

// not is 1 where the course is 0, and 0 where it is 1.
func not(c course) course {
	return func(minute int) (float64, bool) {
		v, ok := c(minute)
		return 1 - v, ok
	}
}

// device is a device of the driver gpu.x on a node.
type device struct {
	name   string
	active course // active seconds; nil: not measured
	held   course // allocated seconds
	claims float64
}

// claimed is a device held by a claim.
type claimed struct {
	namespace, claim, device string
	attribution              string
	active, held             course
	used                     course // nil: that of active
	info                     course // whether the claim holds the device
	memory                   float64
}

const target = `node="n1", instance="n1", job="dra-exporter"`

func deviceLabels(name string) string {
	return fmt.Sprintf(`driver="gpu.x", pool="n1", device=%q, %s`, name, target)
}

func claimLabels(namespace, claim, device string) string {
	return fmt.Sprintf(`namespace=%q, resourceclaim_name=%q, %s`, namespace, claim, deviceLabels(device))
}

func (d *device) series() []series {
	of := deviceLabels(d.name)
	out := []series{
		{"dra_device_allocations", of, always(d.claims)},
		{"dra_device_allocated_seconds_total", of, d.held},
		{"dra_device_info", of + `, vendor="x", model="X1", parent=""`, always(1)},
	}
	if d.active != nil {
		out = append(out, series{"dra_device_active_seconds_total", of, d.active},
			series{"dra_device_up", of, always(1)})
	}
	if d.claims > 0 {
		return append(out, inState("held", "", d.name, always(1)))
	}
	return append(out, inState("free", "", d.name, always(1)))
}

// inState is the state of a device, with its reason, while the course has a value.
func inState(state, reason, device string, while course) series {
	return series{"dra_device_state", deviceLabels(device) + fmt.Sprintf(`, state=%q, reason=%q`, state, reason), while}
}

func (c *claimed) series() []series {
	of := claimLabels(c.namespace, c.claim, c.device)
	info := c.info
	if info == nil {
		info = always(1)
	}
	admin := "false"
	if c.attribution == "" {
		admin = "true"
	}
	out := []series{
		{
			"dra_claim_device_info",
			of + fmt.Sprintf(`, share_id="", admin_access=%q, attribution=%q, state="prepared"`, admin, c.attribution), info,
		},
		{"dra_claim_allocated_seconds_total", of, c.held},
	}
	if c.active != nil {
		out = append(out, series{"dra_claim_active_seconds_total", of, c.active})
	}
	used := c.used
	if used == nil {
		used = c.active.above(busyPerMinute)
	}
	if used != nil {
		out = append(out, series{"dra_claim_used_seconds_total", of, used})
	}
	if c.memory > 0 {
		out = append(out, series{"dra_claim_memory_used_bytes", of, always(c.memory)})
	}
	return out
}

// alone returns a device that one claim holds all the time.
func alone(namespace, claim, name string, active course, change func(*device, *claimed)) []series {
	d := device{name: name, active: active, held: rising(60), claims: 1}
	c := claimed{
		namespace: namespace, claim: claim, device: name, attribution: "exclusive", active: active,
		held: rising(60),
	}
	if change != nil {
		change(&d, &c)
	}
	return append(d.series(), c.series()...)
}

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

// TestMain lets all tests run at the same time, also on few cores: most of them wait for programs.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// server is the Prometheus of the test.
type server struct{ live.Prometheus }

// query evaluates an expression at the present time, or over a span before it in steps of two
// seconds.
func (s server) query(expr string, span time.Duration) ([]live.Series, error) {
	now := time.Now()
	if span > 0 {
		return s.QueryRange(context.Background(), expr, now.Add(-span), now, 2*time.Second)
	}
	return s.Query(context.Background(), expr, now)
}

// firing returns the firing alerts of one cluster, as NAME NAMESPACE/CLAIM, with their annotations.
func (s server) firing(t *testing.T, cluster string) map[string]map[string]string {
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	must.Do(t, s.Get(t.Context(), "/api/v1/alerts", nil, &data))
	out := map[string]map[string]string{}
	for _, a := range data.Alerts {
		if a.State == "firing" && a.Labels["cluster"] == cluster {
			out[strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["namespace"]+"/"+
				cmp.Or(a.Labels["resourceclaim_name"], a.Labels["pod"]))] = a.Annotations
		}
	}
	return out
}
