package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	storage "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/dra-exporter/dra-exporter/test/live"
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
	tree string // whose rules are evaluated
	one  *one
	// late are like one, but there no group finds what others of its server recorded in the seconds
	// before. Groups are evaluated side by side: on a busy machine either may be what happened.
	late   []*one
	thanos remote
}

// one is one Prometheus: its database and its engine, in this process. It has the samples that the
// shards scrape, and evaluates all rules afterwards, at the times at which the others did.
type one struct {
	engine
	db          *tsdb.DB
	node, fleet string // files of rules; node is empty if all are in fleet
	order       func(a, b evaluation) int
}

func startDistributed(t *testing.T) *distributed {
	t.Helper()
	var recording sync.WaitGroup
	recording.Go(func() { _, _ = recorded() }) // meanwhile
	t.Cleanup(recording.Wait)
	d := &distributed{tree: generateRules(t)}
	d.one = startOne(t, d.tree, soon)
	// Of two evaluations less than half an interval apart, one of the orders has the later one first.
	d.late = []*one{startOne(t, d.tree, backwards(0)), startOne(t, d.tree, backwards(interval/2))}
	receive := d.startThanos(t)
	nodes := serveNodes(t)
	receiver := httptest.NewServer(d.receiver())
	t.Cleanup(receiver.Close)
	for shard := range shards {
		startShard(t, shard, nodes, d.one.node, receiver.URL, receive)
	}
	return d
}

// receiver writes what it is sent into all databases. The first one's answer counts.
func (d *distributed) receiver() http.HandlerFunc {
	var all []http.Handler
	for _, o := range append([]*one{d.one}, d.late...) {
		all = append(all, storage.NewWriteHandler(promslog.NewNopLogger(), prometheus.NewRegistry(), o.db,
			remoteapi.MessageTypes{remoteapi.WriteV1MessageType}, false, false, false))
	}
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for i, handler := range all {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			var to http.ResponseWriter = httptest.NewRecorder()
			if i == 0 {
				to = w
			}
			handler.ServeHTTP(to, again)
		}
	}
}

func startOne(t *testing.T, tree string, order func(a, b evaluation) int) *one {
	t.Helper()
	db, err := open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	o := &one{engine: newEngine(db), db: db, order: order}
	if _, err := os.Stat(filepath.Join(tree, "dashboards", "out", "rules-node.yaml")); errors.Is(err, fs.ErrNotExist) {
		o.fleet = ruleFile(t, tree, "rules.yaml")
		return o
	}
	o.node, o.fleet = ruleFile(t, tree, "rules-node.yaml"), ruleFile(t, tree, "rules-global.yaml")
	return o
}

// serveNodes serves the exposition of each node under its number.
func serveNodes(t *testing.T) (address string) {
	t.Helper()
	nodes, err := recorded()
	if err != nil {
		t.Fatal(err)
	}
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

// clusterDevice is what a node exposes of a device that all nodes can use, and of which each node
// has a claim.
func clusterDevice(node int, since time.Duration) string {
	const device = `driver="fabric.example.com",pool="rack",device="accelerator-0"`
	claim := fmt.Sprintf(`namespace="fabric",resourceclaim_name="claim-%d",%s`, node, device)
	return fmt.Sprintf(`dra_device_info{%[1]s,vendor="x",model="F",parent="",listed="true",node_local="false"} 1
dra_device_up{%[1]s} 1
dra_device_allocations{%[1]s} 1
dra_claim_device_info{%[2]s,share_id="",request="r",device_class="c",admin_access="false",attribution="exclusive"} 1
dra_claim_allocated_share_seconds_total{%[2]s} %[3]v
`, device, claim, since.Seconds())
}

// exposition is what a node exposes at a time.
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
	if ruleFile != "" {
		_, _ = fmt.Fprintf(&config, "rule_files: [%q]\n", ruleFile)
	}
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
	thanos(t, "rule", "--grpc-address="+rulerGRPC, "--data-dir="+t.TempDir(), "--rule-file="+d.one.fleet,
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
		err := errors.Join(newer(d.one.engine, "up", shards*perShard), newer(d.thanos, "up", shards*perShard),
			newer(d.thanos, "cluster:dra_devices:count", 1))
		for shard := range shards {
			if d.one.node != "" {
				err = errors.Join(err, newer(d.thanos, fmt.Sprintf("device:dra_state:info{prometheus=%q}", shardName(shard)), 1))
			}
		}
		return err
	})
	wait(t.Context(), interval+time.Second) // for the other groups
}

// asker answers queries.
type asker interface {
	answer(ctx context.Context, expr string, at time.Time, span, step time.Duration) (answer, error)
}

// evaluation is a group that was evaluated at a time.
type evaluation struct {
	at    time.Time
	group *rules.Group
	ruler bool // by the ruler of Thanos, after the shards have delivered their records
}

// soon orders evaluations so that each finds all that was recorded before. Those of nodes come
// first, whose offset is shorter.
func soon(a, b evaluation) int { return a.sampled().Compare(b.sampled()) }

// backwards orders the evaluations of a server in each interval, from a time in it on, so that none
// finds what was recorded in the same interval.
func backwards(from time.Duration) func(a, b evaluation) int {
	return func(a, b evaluation) int {
		cycle := func(e evaluation) int64 { return e.sampled().Add(-from).UnixNano() / int64(interval) }
		ruler := map[bool]int{true: 1}
		return cmp.Or(cmp.Compare(cycle(a), cycle(b)), cmp.Compare(ruler[a.ruler], ruler[b.ruler]),
			b.sampled().Compare(a.sampled()))
	}
}

// sampled is the time of the samples that the group reads and writes.
func (e evaluation) sampled() time.Time { return e.at.Add(-e.group.QueryOffset()) }

// replay evaluates all groups at the times at which the shards and the ruler of Thanos did.
func (o *one) replay(t *testing.T, thanos asker, from, until time.Time) error {
	t.Helper()
	var all []evaluation
	for shard := range shards {
		if o.node == "" {
			break
		}
		found, err := o.evaluations(t.Context(), thanos, o.node, fmt.Sprintf(`ruler="", prometheus=%q, `, shardName(shard)),
			o.shardQuery(shard), shardOffset, from, until)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	found, err := o.evaluations(t.Context(), thanos, o.fleet, `ruler="0", `,
		rules.EngineQueryFunc(o.Engine, o.db), rulerOffset, from, until)
	if err != nil {
		return err
	}
	for _, e := range found {
		e.ruler = true
		all = append(all, e)
	}
	slices.SortStableFunc(all, o.order)
	for _, e := range all {
		e.group.Eval(t.Context(), e.at)
		for _, rule := range e.group.Rules() {
			if err := rule.LastError(); err != nil {
				return fmt.Errorf("%s at %v: %w", rule.Name(), e.at, err)
			}
		}
	}
	t.Logf("%d evaluations of groups", len(all))
	return nil
}

// evaluations returns when the groups of a file were evaluated, seen by the samples that they
// wrote, which are older by an offset. Groups of alerts alone write nothing while there are none.
func (o *one) evaluations(ctx context.Context, thanos asker, file, matcher string, query rules.QueryFunc,
	offset time.Duration, from, until time.Time,
) ([]evaluation, error) {
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: query, Appendable: o.db, Queryable: o.db, Context: ctx, Logger: promslog.NewNopLogger(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Parser: parser.NewParser(parser.Options{}),
		DefaultRuleQueryOffset: func() time.Duration { return offset },
	})
	groups, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, file)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out []evaluation
	for _, group := range groups {
		var records, alerts []string
		for _, rule := range group.Rules() {
			if alert, ok := rule.(*rules.AlertingRule); ok {
				alert.SetRestored(true) // its series are written from the first evaluation on
				alerts = append(alerts, rule.Name())
			} else {
				records = append(records, rule.Name())
			}
		}
		selector := fmt.Sprintf(`{%s__name__=~%q}`, matcher, strings.Join(records, "|"))
		if len(records) == 0 {
			selector = fmt.Sprintf(`{%s__name__=~"ALERTS.*", alertname=~%q}`, matcher, strings.Join(alerts, "|"))
		}
		at, err := times(ctx, thanos, selector, from, until)
		if err != nil {
			return nil, err
		}
		for len(records) == 0 && len(at) > 0 && at[len(at)-1].Add(interval).Before(until) {
			at = append(at, at[len(at)-1].Add(interval))
		}
		for _, at := range at {
			out = append(out, evaluation{at: at.Add(offset), group: group})
		}
	}
	return out, nil
}

// shardQuery evaluates over all nodes, and returns what is about those of a shard. Rules of nodes
// must give what the shard alone gives.
func (o *one) shardQuery(shard int) rules.QueryFunc {
	query := rules.EngineQueryFunc(o.Engine, o.db)
	own := map[string]bool{"": true}
	for node := shard * perShard; node < (shard+1)*perShard; node++ {
		own[nodeName(node)] = true
	}
	return func(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
		result, err := query(ctx, expr, at)
		var kept promql.Vector
		for _, s := range result {
			if own[s.Metric.Get("node")] {
				kept = append(kept, s)
			}
		}
		return kept, err
	}
}
