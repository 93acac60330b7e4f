package dashboards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/docs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestRecords evaluates records: the states of a partitioned and an unhealthy device, the kind of a
// device's last error long after it, as on the Fleet dashboard, the number of incidents, and how
// long readings take, from native histograms and from classic ones.
func TestRecords(t *testing.T) {
	t.Parallel()
	once := func(at int) course {
		return counting(func(m int) float64 {
			if m == at {
				return 1
			}
			return 0
		})
	}
	failed := func(kind, code string, at int) series {
		labels := deviceLabels("gpu-1") + fmt.Sprintf(", kind=%q, code=%q", kind, code)
		return series{"dra_device_errors_total", labels, once(at)}
	}
	health := series{"dra_device_health", deviceLabels("gpu-1") + `, status="unhealthy"`, always(1)}
	three := func(m int) float64 {
		if m == 30 || m == 31 || m == 50 {
			return 1
		}
		return 0
	}
	s := story{name: "records", alone: true, series: slices.Concat(
		changed("partitioned", "", freeDevice("gpu-0")), changed("unhealthy", "reported", freeDevice("gpu-1")),
		[]series{health, failed("ecc_corrected", "", 10), failed("xid", "79", 20), failed("pcie_replay", "", 15)},
		[]series{
			{"dra_exporter_incidents_total", target + `, kind="xid"`, counting(three)},
			{"dra_exporter_incidents_total", target + `, kind="unhealthy"`, counting(func(int) float64 { return 0 })},
		},
	)}
	var file strings.Builder
	write(&file, s)
	for expr, samples := range map[string]string{
		"count by (device, state) (device:dra_state:info)": `{labels: '{device="gpu-0", state="partitioned"}', value: 1}, ` +
			`{labels: '{device="gpu-1", state="unhealthy"}', value: 1}`,
		// The error is seen in minute 21, and in the window of rates until minute 24.
		"max by (device, kind, code) (" + sickKind(t) + ")": `{labels: '{device="gpu-1", kind="xid", code="79"}', ` +
			`value: 1440000}`,
		"sum by (kind) (round(sum_over_time(node:dra_incidents:increase[100m])))": `{labels: '{kind="xid"}', value: 3}`,
	} {
		fmt.Fprintf(&file, "  - {eval_time: 110m, expr: %q, exp_samples: [%s]}\n", expr, samples)
	}
	const duration = "dra_exporter_source_duration_seconds"
	file.WriteString("- interval: 1m\n  input_series:\n")
	for series, values := range map[string]string{
		duration + `{source="native"`: risingHistogram, duration + `_sum{source="classic"`: "0+30x60",
		duration + `_count{source="classic"`: "0+60x60", duration + `_sum{source="hangs"`: "30x60",
		duration + `_count{source="hangs"`: "60x60",
	} {
		fmt.Fprintf(&file, "  - {series: '%s, %s}', values: '%s'}\n", series, target, values)
	}
	file.WriteString("  promql_expr_test:\n  - {eval_time: 50m, expr: max by (source) " +
		"(node:dra_source_duration_seconds:mean), exp_samples: " +
		`[{labels: '{source="native"}', value: 4.5}, {labels: '{source="classic"}', value: 0.5}]}`)
	testRules(t, allGroups(t), file.String())
}

// sickKind returns the query of the Fleet dashboard for the kind of a sick device's last error.
func sickKind(t *testing.T) string {
	return queryOf(t, "dra-fleet", "Devices with problems", func(_ int, of grafana.Target) bool {
		return strings.Contains(of.Expr, "kind")
	})
}

// distributionPanels returns the panels that show distributions.
func distributionPanels(t *testing.T) []grafana.Panel {
	t.Helper()
	for _, board := range grafana.Boards() {
		for _, row := range board.Rows {
			if row.Title == "Distribution over time" {
				return row.Panels
			}
		}
	}
	t.Fatal("no dashboard has a row of distributions")
	return nil
}

// TestDistributions evaluates the queries of the panels for a claim whose values were about 1.5 for
// a third of the time and about 6 otherwise. It compares the answers with arithmetic by hand, also
// if a node is scraped twice, and with another claim of another driver that has the same values.
func TestDistributions(t *testing.T) {
	t.Parallel()
	const claim = `{cluster="c1", node="n1", namespace="team", resourceclaim_name="a", driver="gpu.x", ` +
		`instance="n1", job="j"}`
	world := map[string]string{}
	for _, metric := range []string{
		"dra_claim_utilization_distribution_ratio", "dra_claim_memory_used_distribution_bytes",
		"dra_claim_power_distribution_watts",
	} {
		world[metric+claim] = risingHistogram
		world[metric+strings.NewReplacer("n1", "n2", "gpu.x", "gpu.y").Replace(claim)] = risingHistogram
	}
	// Within a bucket, values count as evenly distributed on the logarithmic scale.
	quantiles := []float64{4 * math.Pow(2, 10./40), 4 * math.Pow(2, 37./40), 4 * math.Pow(2, 39.4/40)}
	changes := copies()
	changes["no copies"] = nil
	for name, change := range changes {
		e := newEngine(t)
		fill(t, e, world, change)
		for _, panel := range distributionPanels(t) {
			for i, target := range panel.Targets {
				got := must.Get(e.answers(filled(target.Expr, nil), minuteOf(lastMinute)))(t)
				want := answers{}
				if panel.Kind == grafana.Heatmap {
					of := labels.EmptyLabels().String() + " of a histogram: "
					want[of+"count"], want[of+"sum"] = 1, 4.5
					want[of+"up to 2"], want[of+"up to 8"] = 20./60, 40./60
				} else {
					for _, node := range []string{"n1", "n2"} {
						by := map[string]string{"n1": "gpu.x", "n2": "gpu.y"}[node]
						of := labels.FromStrings("cluster", "c1", "node", node, "namespace", "team", "resourceclaim_name", "a",
							"driver", by)
						want[of.String()] = quantiles[i%len(quantiles)]
					}
				}
				expect.Is(t, want.differ(got), "", "%s: %s: %s", name, panel.Title, target.Expr)
			}
		}
	}
}

// TestHolders evaluates who holds each device: nobody, a claim, three claims, a monitor with admin
// access, a pod without a claim; and the map, which has a cell for each, a gap for the node, and
// one that is not seen.
func TestHolders(t *testing.T) {
	t.Parallel()
	holds := func(device, claim, admin string) series {
		return series{
			"dra_claim_device_info", claimLabels("team", claim, device) + fmt.Sprintf(`, admin_access=%q`, admin), always(1),
		}
	}
	podLabels := `namespace="old", pod="p", ` + deviceLabels("gpu-4")
	all := []series{
		holds("gpu-1", "a", "false"),
		holds("gpu-2", "a", "false"), holds("gpu-2", "b", "false"), holds("gpu-2", "c", "false"),
		holds("gpu-3", "monitor", "true"),
		{"dra_pod_claim_info", `resourceclaim_name="", ` + podLabels, always(1)},
		{"dra_pod_unclaimed_allocated_seconds_total", podLabels, rising(60)},
	}
	for device := range 5 {
		all = append(all, freeDevice(fmt.Sprintf("gpu-%d", device))...)
	}
	var file strings.Builder
	write(&file, story{name: "holders", alone: true, series: all})
	const who = "Who held the devices"
	samples := func(by string, values map[string]float64) string {
		var out []string
		for _, of := range slices.Sorted(maps.Keys(values)) {
			first, second, _ := strings.Cut(of, " ")
			names := strings.Split(by, ", ")
			labels := fmt.Sprintf("%s=%q", names[0], first)
			if len(names) > 1 {
				labels += fmt.Sprintf(", %s=%q", names[1], second)
			}
			out = append(out, fmt.Sprintf("{labels: '{%s}', value: %v}", labels, values[of]))
		}
		return strings.Join(out, ", ")
	}
	for by, tt := range map[string]struct {
		expr string
		want map[string]float64
	}{
		"device, holder": {panelQuery(t, "dra-nodes", who, 0), map[string]float64{
			"gpu-0 free": 1, "gpu-1 team/a": 1, "gpu-2 3 holders": 1, "gpu-3 free": 1, "gpu-4 old/p": 1,
		}},
		"device": {
			panelQuery(t, "dra-fleet", "Map of the cluster", 1), map[string]float64{"gpu-1": 1, "gpu-2": 1, "gpu-4": 1},
		},
		"size": {panelQuery(t, "dra-fleet", "Map of the cluster", 0), map[string]float64{"0": 1, "1": 6}},
	} {
		fmt.Fprintf(&file, "  - {eval_time: 30m, expr: %q, exp_samples: [%s]}\n", "count by ("+by+") ("+tt.expr+")",
			samples(by, tt.want))
	}
	testRules(t, allGroups(t), file.String())
}

// panelQuery returns a query of a panel, with all values of the variables.
func panelQuery(t *testing.T, board, title string, target int) string {
	return queryOf(t, board, title, func(i int, _ grafana.Target) bool { return i == target })
}

// queryOf returns the first query of a panel that is wanted, over 15 minutes, with all values of
// the variables.
func queryOf(t *testing.T, board, title string, wanted func(i int, target grafana.Target) bool) string {
	t.Helper()
	for _, b := range grafana.Boards() {
		for _, row := range b.Rows {
			for _, panel := range row.Panels {
				for i, target := range panel.Targets {
					if b.UID == board && panel.Title == title && wanted(i, target) {
						return filled(target.Expr, nil)
					}
				}
			}
		}
	}
	t.Fatalf("%s has no panel %q with that query", board, title)
	return ""
}

// TestOneIdle compares what the page, top, the Fleet dashboard and the alerts call idle, at several
// settings of --idle.threshold and --idle.network-threshold: for devices that have been used evenly
// for 40 minutes, they agree.
func TestOneIdle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		utilization, network float64
		idle                 string // worked out by hand, from the uses of evenlyUsed
	}{
		{0.01, 1e4, "eth-0 eth-5000 gpu-0 gpu-0.005"},
		{0.001, 1e2, "eth-0 gpu-0"},
		{0.3, 1e8, "eth-0 eth-2e+07 eth-5000 gpu-0 gpu-0.005 gpu-0.02 gpu-0.2"},
		{0.3, 1e2, "eth-0 gpu-0 gpu-0.005 gpu-0.02 gpu-0.2"},
		{0.001, 1e8, "eth-0 eth-2e+07 eth-5000 gpu-0"},
	} {
		t.Run(fmt.Sprint(c.utilization, c.network), func(t *testing.T) {
			t.Parallel()
			e, at, last := evenlyUsed(t, c.utilization, c.network)
			e.evaluate(t, allGroups(t), at)
			for surface, idle := range map[string][]string{
				"the JSON": reportedQuiet(t, last), "page and top": listedQuiet(last),
				"the Fleet dashboard": fleetIdle(t, e, at), "the alerts": idleAlerts(t, e, at),
			} {
				want := strings.Fields(c.idle)
				if surface == "the alerts" { // a quiet network is no waste: no alert by default
					want = slices.DeleteFunc(want, func(name string) bool { return strings.HasPrefix(name, "eth-") })
				}
				slices.Sort(idle)
				expect.Equal(t, surface, want, slices.Compact(idle))
			}
		})
	}
}

// evenlyUsed returns the samples of 40 minutes of a node. Each device has its own claim and is used
// evenly. The use is in the name of the device, as utilization or in bytes a second.
func evenlyUsed(t *testing.T, utilization, network float64) (*engine, time.Time, *exposition.Snapshot) {
	const (
		span   = 40 * time.Minute
		tick   = 10 * time.Second
		scrape = 30 * time.Second
	)
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.IdleThreshold, config.NetworkThreshold, config.Advise = utilization, network, false
	h.Ledger = ledger.New(config)
	h.In.Inventory = driver.Inventory{}
	uses := map[string]float64{}
	add := func(prefix string, use float64) {
		name := fmt.Sprint(prefix, use)
		uses[name] = use
		h.In.Inventory[jointest.ID(name)] = driver.Entry{Hardware: driver.Hardware{UUID: name}}
		h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation(name, "c-"+name, "p-"+name))
	}
	for _, use := range []float64{0, 0.005, 0.02, 0.2, 0.9} {
		add("gpu-", use)
	}
	for _, use := range []float64{0, 5e3, 2e7, 5e8} {
		add("eth-", use)
	}
	names := slices.Sorted(maps.Keys(uses))
	e := newEngine(t)
	begin := h.Now
	for ; h.Now.Sub(begin) <= span; h.Now = h.Now.Add(tick) {
		for _, name := range names {
			if strings.HasPrefix(name, "gpu") {
				h.ReadOf(name, driver.Reading{Quantity: driver.Utilization, Value: uses[name]})
			} else {
				h.ReadOf(name, driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"},
					Value: uses[name] * h.Now.Sub(begin).Seconds(),
				})
			}
		}
		h.In.View.At = h.Now
		h.Advance()
		if h.Now.Sub(begin)%scrape == 0 {
			e.add(t, scraped(families(t, exportertest.Text(t, h.Last)), h.Now,
				"cluster", "c1", "job", "dra-exporter", "instance", "n1", "node", "n1")...)
		}
	}
	return e, begin.Add(span), h.Last
}

func reportedQuiet(t *testing.T, s *exposition.Snapshot) []string {
	var written bytes.Buffer
	var r present.Report
	must.Do(t, errors.Join(present.WriteReport(&written, s, present.Config{Node: "n1", QuietAfter: time.Minute}),
		json.Unmarshal(written.Bytes(), &r)))
	var out []string
	for i := range r.Devices {
		if r.Devices[i].State == book.StateQuiet {
			out = append(out, r.Devices[i].Device)
		}
	}
	return out
}

func listedQuiet(s *exposition.Snapshot) []string {
	var out []string
	for _, row := range present.NewPage(s, present.Config{Node: "n1", QuietAfter: time.Minute}).Devices {
		if row.State == book.StateQuiet {
			out = append(out, row.Device)
		}
	}
	return out
}

// fleetIdle returns the devices that the Fleet dashboard counts as idle.
func fleetIdle(t *testing.T, e *engine, at time.Time) []string {
	vector := must.Get(e.query(`device:dra_state:info{state="idle"}`, at))(t)
	var out []string
	for _, s := range vector {
		out = append(out, s.Metric.Get("device"))
	}
	return out
}

// idleAlerts returns the devices for whose claims an alert would fire.
func idleAlerts(t *testing.T, e *engine, at time.Time) []string {
	var out []string
	for _, g := range allGroups(t) {
		for i := range g.Rules {
			r := &g.Rules[i]
			if !slices.Contains([]string{"DRAClaimIdle", "DRAClaimIdleMemoryHeld"}, r.Alert) {
				continue
			}
			vector := must.Get(e.query(r.Expr, at))(t)
			for _, s := range vector {
				out = append(out, strings.TrimPrefix(s.Metric.Get("resourceclaim_name"), "c-"))
			}
		}
	}
	return out
}

// TestDocuments evaluates the queries and the samples of the documents in a real Prometheus that
// scrapes the demo as in deployments/README.md.
func TestDocuments(t *testing.T) {
	t.Parallel()
	all := must.Get(docs.Read(filepath.Join("..", "..", "..")))(t)
	exporter := live.FreeAddress(t)
	prometheus := live.StartPrometheus(t, live.PrometheusOptions{Config: documentedScrape(t, all, exporter)})
	live.StartDemo(t, filepath.Join("..", "..", ".."), exporter)
	// TestLive evaluates those of the runbook, which need the rules.
	queries := slices.DeleteFunc(docs.Blocks(all, docs.PromQL),
		func(b docs.Block) bool { return b.Document == "dashboards/RUNBOOK.md" })
	expect.That(t, len(queries) >= 3 && len(sampleQueries(all)) >= 5,
		"the documents have only %d queries and %d samples", len(queries), len(sampleQueries(all)))
	queries = append(queries, sampleQueries(all)...)
	for _, q := range queries {
		if _, err := parser.NewParser(parser.Options{}).ParseExpr(q.Text); err != nil {
			t.Errorf("%s:%d: %v", q.Document, q.Line, err)
			continue
		}
		// A claim counts as idle only after some scrapes.
		live.Await(t, 2*time.Minute, fmt.Sprintf("%s:%d has an answer", q.Document, q.Line), func() error {
			got, err := prometheus.Query(t.Context(), q.Text, time.Now())
			if err == nil && len(got) == 0 {
				err = fmt.Errorf("no data: %s", q.Text)
			}
			return err
		})
	}
}

// sampleQueries returns a query for each sample that a document shows.
func sampleQueries(all []docs.Document) []docs.Block {
	var queries []docs.Block
	for _, b := range docs.Blocks(all, docs.Sample) {
		for i, line := range strings.Split(strings.TrimSpace(b.Text), "\n") {
			selector, _, _ := strings.Cut(strings.Replace(line, ",…", "", 1), "} ")
			queries = append(queries, docs.Block{
				Document: b.Document, Line: b.Line + i, Text: "last_over_time(" + selector + "}[5m])",
			})
		}
	}
	return queries
}

// documentedScrape returns the scrape configuration that is documented, for an exporter at an
// address, which it scrapes more often.
func documentedScrape(t *testing.T, all []docs.Document, exporter string) string {
	t.Helper()
	for _, b := range docs.Blocks(all, docs.YAML) {
		if !strings.HasPrefix(b.Text, "scrape_configs:") {
			continue
		}
		often := strings.NewReplacer("node1:10985", exporter, "scrape_interval: 15s", "scrape_interval: 2s")
		config := often.Replace(b.Text)
		must.That(t, strings.Contains(config, exporter) && strings.Contains(config, "interval: 2s"),
			"%s:%d has another target or interval than the test knows:\n%s", b.Document, b.Line, b.Text)
		return config
	}
	t.Fatal("no document has a scrape configuration")
	return ""
}
