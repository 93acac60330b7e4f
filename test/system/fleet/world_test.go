package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	remotestorage "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The distributed world. Samples arrive later than they are taken, so rules are evaluated at times
// in the past.
const (
	shards, perShard = 2, 3
	interval         = 4 * time.Second // of rules
	shardOffset      = 5 * time.Second
	rulerOffset      = 20 * time.Second
)

// distributed is the two shards, Thanos, and one Prometheus with the same samples.
type distributed struct {
	tree        string // whose rules are evaluated
	node, fleet string // files of rules: of the shards, and of the ruler
	// one is one Prometheus: its database and its engine, in this process. It has the samples that
	// the shards scrape.
	one    engine
	db     *tsdb.DB
	thanos remote
}

func startDistributed(t *testing.T) *distributed {
	t.Helper()
	var recording sync.WaitGroup
	recording.Go(func() { _, _ = recorded() }) // meanwhile
	t.Cleanup(recording.Wait)
	db := must.Get(open(t.TempDir()))(t)
	t.Cleanup(func() { _ = db.Close() })
	d := &distributed{tree: generateRules(t), one: newEngine(db), db: db}
	d.node, d.fleet = ruleFile(t, d.tree, "rules-node.yaml"), ruleFile(t, d.tree, "rules-global.yaml")
	receive := d.startThanos(t)
	nodes := serveNodes(t)
	receiver := httptest.NewServer(remotestorage.NewWriteHandler(promslog.NewNopLogger(), prometheus.NewRegistry(), db,
		remoteapi.MessageTypes{remoteapi.WriteV1MessageType}, false, false, false))
	t.Cleanup(receiver.Close)
	for shard := range shards {
		startShard(t, shard, nodes, d.node, receiver.URL, receive)
	}
	return d
}

// serveNodes serves the exposition of each node under its number.
func serveNodes(t *testing.T) (address string) {
	t.Helper()
	nodes := must.Get(recorded())(t)
	f := &fleet{template: nodes, begin: time.Now(), churn: 30 * time.Second}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(f.exposition(node, time.Now()))
		_, _ = io.WriteString(w, clusterDevice(node, time.Since(f.begin)))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// clusterDevice returns the series of a device that all nodes can use, and of which each node has a
// claim.
func clusterDevice(node int, since time.Duration) string {
	const device = `driver="fabric.example.com",pool="rack",device="accelerator-0"`
	claim := fmt.Sprintf(`namespace="fabric",resourceclaim_name="claim-%d",%s`, node, device)
	return fmt.Sprintf(`dra_device_info{%[1]s,vendor="x",model="F",parent="",listed="true",node_local="false"} 1
dra_device_state{%[1]s,state="unmeasured",reason=""} 1
dra_device_allocations{%[1]s} 1
dra_claim_device_info{%[2]s,share_id="",request="r",device_class="c",admin_access="false",attribution="exclusive"} 1
dra_claim_allocated_share_seconds_total{%[2]s} %[3]v
`, device, claim, since.Seconds())
}

// exposition returns the exposition of a node at a time.
func (f *fleet) exposition(node int, at time.Time) []byte {
	var out bytes.Buffer
	b := labels.NewBuilder(labels.EmptyLabels())
	for i := range f.series {
		s := &f.series[i]
		name := s.labels.Get(model.MetricNameLabel)
		if name == "up" || strings.HasPrefix(name, "scrape_") {
			continue // Prometheus adds them
		}
		generation, since := f.generation(node, s.unit, at)
		f.expose(b, s, node, generation)
		b.Del(model.MetricNameLabel)
		_, _ = fmt.Fprintf(&out, "%s%s %v\n", name, b.Labels(), f.value(s, node, since, at))
	}
	return out.Bytes()
}

func shardName(shard int) string { return fmt.Sprintf("shard-%d", shard) }

// startShard starts the Prometheus of a shard. What it scrapes goes to both receivers, what it
// records to Thanos alone.
func startShard(t *testing.T, shard int, nodes, ruleFile, one, thanos string) {
	t.Helper()
	var config strings.Builder
	_, _ = fmt.Fprintf(&config, `
global:
  scrape_interval: 2s
  evaluation_interval: %v
  rule_query_offset: %v
  external_labels: {prometheus: %s}
remote_write:
- url: %s
  queue_config: {batch_send_deadline: 500ms}
  write_relabel_configs:
  - {source_labels: [__name__], regex: ".*:.*|ALERTS.*", action: drop}
  - {regex: prometheus, action: labeldrop}
- url: http://%s/api/v1/receive
  queue_config: {batch_send_deadline: 500ms}
scrape_configs:
- job_name: %s
  honor_labels: true
  static_configs:
`, interval, shardOffset, shardName(shard), one, thanos, job)
	for node := shard * perShard; node < (shard+1)*perShard; node++ {
		_, _ = fmt.Fprintf(&config, "  - targets: [%q]\n    labels: {__metrics_path__: /%d", nodes, node)
		for name, value := range target(node) {
			if name != "job" {
				_, _ = fmt.Fprintf(&config, ", %s: %s", name, value)
			}
		}
		config.WriteString("}\n")
	}
	_, _ = fmt.Fprintf(&config, "rule_files: [%q]\n", ruleFile)
	live.StartPrometheus(t, live.PrometheusOptions{Config: config.String()})
}

// startThanos starts two receivers that share the series, the ruler, and what answers queries. It
// returns the address to write to.
func (d *distributed) startThanos(t *testing.T) (write string) {
	t.Helper()
	const receivers = 2
	var grpc, writes, ring []string
	for range receivers {
		grpc, writes = append(grpc, live.FreeAddress(t)), append(writes, live.FreeAddress(t))
		ring = append(ring, strconv.Quote(grpc[len(grpc)-1]))
	}
	for i := range receivers {
		// A receiver of Thanos 0.42.4 with a retention looks at once, in the first minute of every
		// fourth hour, for tenants that are older, and crashes if it opens one at this time
		// (MultiTSDB.Prune).
		thanos(t, "receive", "--tsdb.retention=0d", "--tsdb.path="+t.TempDir(),
			"--grpc-address="+grpc[i], "--remote-write.address="+writes[i], "--receive.local-endpoint="+grpc[i],
			"--receive.capnproto-address="+live.FreeAddress(t),
			fmt.Sprintf(`--receive.hashrings=[{"endpoints":[%s]}]`, strings.Join(ring, ",")),
			fmt.Sprintf(`--label=receive="%d"`, i))
	}
	rulerGRPC := live.FreeAddress(t)
	args := []string{
		"query", "--no-query.partial-response", "--query.replica-label=receive", "--query.replica-label=tenant_id",
		"--query.replica-label=ruler", "--query.replica-label=prometheus", "--grpc-address=" + live.FreeAddress(t),
	}
	for _, address := range append(slices.Clone(grpc), rulerGRPC) {
		args = append(args, "--endpoint="+address)
	}
	address := thanos(t, args...)
	thanos(t, "rule", "--grpc-address="+rulerGRPC, "--data-dir="+t.TempDir(), "--rule-file="+d.fleet,
		"--query=http://"+address, `--label=ruler="0"`, "--eval-interval="+interval.String(),
		"--rule-query-offset="+rulerOffset.String())
	d.thanos = remote{live.At("http://" + address)}
	return writes[0]
}

// thanos starts the program $THANOS, and returns the address of its HTTP API.
func thanos(t *testing.T, args ...string) (address string) {
	t.Helper()
	program := os.Getenv("THANOS")
	if program == "" {
		t.Fatal("THANOS is not set: run this with make")
	}
	address = live.FreeAddress(t)
	args = append(args, "--http-address="+address, "--log.level=warn")
	live.Start(t, exec.CommandContext(context.WithoutCancel(t.Context()), program, args...), http.DefaultClient,
		"http://"+address+"/-/ready")
	return address
}

// awaitDelivery waits until both have all samples until a time, and the rules have been evaluated
// after it.
func (d *distributed) awaitDelivery(t *testing.T, at time.Time) {
	t.Helper()
	newer := func(where asker, selector string, want int) error {
		found, err := where.answer(t.Context(), selector+"[2m]", time.Now(), 0, 0)
		count := 0
		for _, series := range found {
			for sampled := range series.values {
				if sampled > at.Add(interval).UnixMilli() {
					count++
					break
				}
			}
		}
		if err == nil && count < want {
			err = fmt.Errorf("%d of %d series of %s are up to date", count, want, selector)
		}
		return err
	}
	live.Await(t, 3*time.Minute, "all samples arrive", func() error {
		err := errors.Join(newer(d.one, "up", shards*perShard), newer(d.thanos, "up", shards*perShard))
		for _, s := range d.servers(t) {
			err = errors.Join(err, newer(d.thanos, evaluated+"{"+s.matcher+"}", len(s.groups)*len(s.nodes)))
		}
		return err
	})
}

// asker evaluates queries.
type asker interface {
	answer(ctx context.Context, expr string, at time.Time, span, step time.Duration) (answer, error)
}

// evaluated is what each group records first, of each node, with the name of the group: it shows
// when the group was evaluated. It depends on no other record.
const evaluated = "node:rule_group_evaluated:info"

// server evaluates rules.
type server struct {
	groups  []*rules.Group
	matcher string // of what it records in Thanos
	offset  time.Duration
	nodes   map[string]bool // that it knows
}

// servers returns the shards and the ruler of Thanos. The alerts of their groups have no state yet.
func (d *distributed) servers(t *testing.T) []server {
	t.Helper()
	ruler := server{d.groups(t, d.fleet), `ruler="0"`, rulerOffset, map[string]bool{}}
	var all []server
	for shard := range shards {
		matcher := fmt.Sprintf(`ruler="", prometheus=%q`, shardName(shard))
		s := server{d.groups(t, d.node), matcher, shardOffset, map[string]bool{}}
		for node := shard * perShard; node < (shard+1)*perShard; node++ {
			s.nodes[nodeName(node)], ruler.nodes[nodeName(node)] = true, true
		}
		all = append(all, s)
	}
	return append(all, ruler)
}

func (d *distributed) groups(t *testing.T, file string) []*rules.Group {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{})
	groups, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, file)
	must.Do(t, errors.Join(errs...))
	var out []*rules.Group
	for _, group := range groups {
		out = append(out, group)
		for _, rule := range group.AlertingRules() {
			rule.SetRestored(true) // its series are written from the first evaluation on
		}
	}
	return out
}

// evaluations are the times of the samples that each group of each server has written, in order, by
// the matcher of the server and the name of the group.
type evaluations map[[2]string][]time.Time

// adopt writes the samples of rules in Thanos into the one Prometheus. A series that is absent when
// its group is evaluated again ends there, as with Prometheus: no query returns its markers.
func (d *distributed) adopt(t *testing.T, from, until time.Time) evaluations {
	t.Helper()
	all := evaluations{}
	app := d.db.Appender(t.Context())
	for _, s := range d.servers(t) {
		for _, group := range s.groups {
			names, alerts := []string{"ALERTS.*"}, []string{""}
			for _, rule := range group.Rules() {
				if _, ok := rule.(*rules.AlertingRule); ok {
					alerts = append(alerts, rule.Name())
				} else {
					names = append(names, rule.Name())
				}
			}
			found, err := d.thanos.answer(t.Context(), fmt.Sprintf(
				`{%s, __name__=~%q, alertname=~%q, rule_group=~"|%s"}[%ds]`, s.matcher, strings.Join(names, "|"),
				strings.Join(alerts, "|"), group.Name(), int(until.Sub(from).Seconds())), until, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			at := found.times()
			for _, series := range found {
				there := false
				for _, at := range at {
					v, ok := series.values[at.UnixMilli()]
					if !ok {
						v = math.Float64frombits(value.StaleNaN)
					}
					if ok || there {
						_, err = app.Append(0, series.labels, at.UnixMilli(), v)
					}
					if err != nil {
						t.Fatalf("%s at %v: %v", series.labels, at, err)
					}
					there = ok
				}
			}
			all[[2]string{s.matcher, group.Name()}] = at
		}
	}
	must.Do(t, app.Commit())
	return all
}

// expected returns the values of all rules at the times of their evaluations over the samples of
// the one Prometheus, without samples that other groups of the same server recorded less than this
// time before. Groups are evaluated at the same time: on a busy machine, a group may or may not
// find samples that another group has just recorded.
func (d *distributed) expected(t *testing.T, all evaluations, missing time.Duration) answer {
	t.Helper()
	out := answer{}
	for _, s := range d.servers(t) {
		for _, group := range s.groups {
			query := d.query(s, group, missing)
			for _, at := range all[[2]string{s.matcher, group.Name()}] {
				for _, rule := range group.Rules() {
					result, err := rule.Eval(t.Context(), s.offset, at.Add(s.offset), query, &url.URL{}, 0)
					if err != nil {
						t.Fatalf("%s at %v: %v", rule.Name(), at, err)
					}
					for _, sample := range result {
						out.add(sample)
					}
				}
			}
		}
	}
	return out
}

// query evaluates over all nodes, and returns the values for the nodes of a server. Rules of nodes
// must have the same values as in the shard.
func (d *distributed) query(s server, of *rules.Group, missing time.Duration) rules.QueryFunc {
	others := map[string]bool{}
	for _, group := range s.groups {
		for _, rule := range group.Rules() {
			others[rule.Name()] = group.Name() != of.Name()
		}
	}
	return func(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
		found := late{d.db, others, at.Add(-missing).UnixMilli()}
		result, err := rules.EngineQueryFunc(d.one.Engine, found)(ctx, expr, at)
		return slices.DeleteFunc(result, func(sample promql.Sample) bool {
			node := sample.Metric.Get("node")
			return node != "" && !s.nodes[node]
		}), err
	}
}

// late is a database that lacks the samples of some names after a time.
type late struct {
	*tsdb.DB
	names map[string]bool
	until int64 // in milliseconds
}

func (l late) Querier(from, until int64) (storage.Querier, error) {
	q, err := l.DB.Querier(from, until)
	return lateQuerier{q, l}, err
}

type lateQuerier struct {
	storage.Querier
	late late
}

func (q lateQuerier) Select(
	ctx context.Context, ordered bool, hints *storage.SelectHints, matchers ...*labels.Matcher,
) storage.SeriesSet {
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && q.late.names[m.Value] {
			shorter := *hints
			shorter.End = min(shorter.End, q.late.until)
			hints = &shorter
		}
	}
	return q.Querier.Select(ctx, ordered, hints, matchers...)
}
