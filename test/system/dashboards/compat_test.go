package dashboards

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// asked is what a board, a set of alerts or an autoscaler asks of another exporter's series.
type asked struct {
	Exporter, Name, Origin, Prefix string

	Queries []askedQuery
	Needs   []string // labels
}

// askedQuery is a query. Missing is why it has no data, if it has none.
type askedQuery struct{ Expr, Missing string }

// UnmarshalYAML reads a query alone, or with what is missing.
func (q *askedQuery) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&q.Expr)
	}
	type plain askedQuery
	return node.Decode((*plain)(q))
}

func readAsked(t *testing.T) []asked {
	content := must.Get(os.ReadFile(filepath.Join("testdata", "compat.yaml")))(t)
	var out []asked
	must.Do(t, yaml.Unmarshal(content, &out))
	return out
}

// replacement returns the rules that record the series of another exporter.
func replacement(t *testing.T, exporter string, change func(*rules.Options)) []rules.Group {
	t.Helper()
	catalog := query.NewCatalog()
	o := shortOptions()
	if change != nil {
		change(&o)
	}
	all := must.Get(rules.Replacements(o, catalog))(t)
	for i := range all {
		if all[i].Exporter == exporter {
			return all[i].Groups()
		}
	}
	t.Fatalf("no rules for %s", exporter)
	return nil
}

// page is what one scrape of a node gave.
type page struct {
	node string
	at   time.Time
	text []*dto.MetricFamily
}

const demoTime = 24 * time.Second

// readDemo returns pages of the demo, every two seconds, in which its GPUs are of a vendor.
func readDemo(t *testing.T, vendor string) []page {
	address := live.FreeAddress(t)
	live.StartDemo(t, filepath.Join("..", "..", ".."), address)
	var out []page
	for end := time.Now().Add(demoTime); time.Now().Before(end); time.Sleep(2 * time.Second) {
		response, err := http.Get("http://" + address + "/metrics")
		must.Do(t, err)
		text := must.Get(io.ReadAll(response.Body))(t)
		must.Do(t, response.Body.Close())
		out = append(out, page{"n1", time.Now().Truncate(time.Millisecond), families(t,
			strings.ReplaceAll(string(text), `vendor="example"`, `vendor="`+vendor+`"`))})
	}
	return out
}

// recordPages stores pages, in the order of their times, and evaluates rules after each. Series
// that end are marked as stale, as a server does.
func recordPages(t *testing.T, pages []page, groups []rules.Group) *engine {
	e := newEngine(t)
	last := map[string][]point{} // by node, or rule
	marked := func(source string, now []point, at time.Time) {
		present := map[string]bool{}
		for _, p := range now {
			present[p.labels.String()] = true
		}
		for _, p := range last[source] {
			if !present[p.labels.String()] {
				e.add(t, point{labels: p.labels, at: at, value: math.Float64frombits(value.StaleNaN)})
			}
		}
		last[source] = now
	}
	var before time.Time
	for _, p := range pages {
		// The rules have one result a millisecond, and two nodes may have a page of the same one.
		if next := before.Add(time.Millisecond); p.at.Before(next) {
			p.at = next
		}
		before = p.at
		now := scraped(p.text, p.at, "cluster", "c1", "node", p.node, "instance", p.node, "job", "dra-exporter")
		e.add(t, now...)
		marked(p.node, now, p.at)
		for _, g := range groups { // a series that a rule no longer gives is stale for the next rule
			for _, r := range g.Rules {
				e.recorded = nil
				e.evaluate(t, []rules.Group{{Name: g.Name, Rules: []rules.Rule{r}}}, p.at)
				marked(r.Record, e.recorded, p.at)
			}
		}
	}
	return e
}

// TestCompatQueries asks the series of the demo and of a recorded H100 what others ask of
// dcgm-exporter's.
func TestCompatQueries(t *testing.T) {
	t.Parallel()
	demo := readDemo(t, "nvidia")
	now := demo[len(demo)-1].at
	pages := slices.Concat(demo, recordedH100(t, now.Add(-time.Second/2)))
	slices.SortStableFunc(pages, func(a, b page) int { return a.at.Compare(b.at) })
	e := recordPages(t, pages, replacement(t, "dcgm-exporter", nil))
	checkAsked(t, e, now, "dcgm-exporter", "")
	checkOnce(t, e, now, demo[len(demo)-1].text)
	checkParts(t, e, now)
}

// TestCompatXID plays XIDs: the code of the last one stays, also of one that was there before the
// first record, and while the exporter starts again.
func TestCompatXID(t *testing.T) {
	t.Parallel()
	const device = `{driver="gpu.nvidia.com",pool="n1",device="gpu-0"`
	const always = `dra_device_info` + device + `,vendor="nvidia",uuid="GPU-0",parent=""} 1
dra_device_up` + device + `} 1
dra_device_memory_used_bytes` + device + `} 1
dra_exporter_source_up{source="nvml"} 1
`
	xid := func(code string, n int) string {
		return fmt.Sprintf("dra_device_errors_total%s,kind=\"xid\",code=%q} %d\n", device, code, n)
	}
	for name, tt := range map[string]struct {
		pages []string
		want  float64
	}{
		"none":                       {[]string{"", ""}, 0},
		"the first":                  {[]string{"", xid("31", 0), xid("31", 1), xid("31", 1)}, 31},
		"one that appears":           {[]string{"", xid("79", 1)}, 79},
		"before the first record":    {[]string{xid("48", 3), xid("48", 3)}, 48},
		"the last of two":            {[]string{xid("79", 1) + xid("31", 1), xid("79", 1) + xid("31", 2)}, 31},
		"after a start":              {[]string{xid("31", 1), "", ""}, 31},
		"one that came while it was": {[]string{xid("31", 1), "", xid("94", 0), xid("94", 1)}, 94},
	} {
		t.Run(name, func(t *testing.T) {
			var pages []page
			at := time.Unix(1_700_000_000, 0)
			for i, text := range tt.pages {
				at = at.Add(time.Duration(min(i, 1)) * 10 * time.Second)
				pages = append(pages, page{"n1", at, families(t, always+text)})
			}
			e := recordPages(t, pages, replacement(t, "dcgm-exporter", nil))
			vector, err := e.query("DCGM_FI_DEV_XID_ERRORS", at)
			expect.That(t, err == nil && len(vector) == 1 && vector[0].F == tt.want,
				"the last XID is %v, want %v: %v", vector, tt.want, err)
		})
	}
}

// TestCompatNewHolder plays a pod that comes to a GPU: its claim's counter has no rate yet. Beside
// another holder it has no series, alone it has the GPU's.
func TestCompatNewHolder(t *testing.T) {
	t.Parallel()
	const device = `driver="gpu.nvidia.com",pool="n1",device="gpu-0"`
	holder := func(name string, bytes int) string {
		of := `{` + device + `,namespace="a",resourceclaim_name="` + name + `"`
		return fmt.Sprintf("dra_pod_claim_info%s,pod=%q,container=\"main\"} 1\n"+
			"dra_claim_io_bytes_total%s,link=\"pcie\",direction=\"transmit\"} %d\n", of, name, of, bytes)
	}
	for name, tt := range map[string]struct {
		pages []string
		want  map[string]float64
	}{
		"beside another": {
			[]string{holder("old", 5000), holder("old", 6000) + holder("new", 0)}, map[string]float64{"old": 100},
		},
		"alone": {[]string{"", holder("new", 0)}, map[string]float64{"new": 300}},
	} {
		t.Run(name, func(t *testing.T) {
			var pages []page
			at := time.Unix(1_700_000_000, 0)
			for i, text := range tt.pages {
				at = at.Add(10 * time.Second)
				text += fmt.Sprintf("dra_device_info{%s,vendor=\"nvidia\",uuid=\"GPU-0\",parent=\"\"} 1\n"+
					"dra_device_up{%s} 1\n"+
					"dra_device_io_bytes_total{%s,link=\"pcie\",direction=\"transmit\"} %d\n", device, device, device, 9000+3000*i)
				pages = append(pages, page{"n1", at, families(t, text)})
			}
			e := recordPages(t, pages, replacement(t, "dcgm-exporter", nil))
			got := valuesBy(t, e, at, "DCGM_FI_PROF_PCIE_TX_BYTES", "dra_device_name", "pod")["gpu-0"]
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// checkAsked evaluates the queries of an exporter's series.
func checkAsked(t *testing.T, e *engine, now time.Time, exporter, prefix string) {
	t.Helper()
	boards, queries, without := 0, 0, 0
	for _, a := range readAsked(t) {
		if a.Exporter != exporter || a.Prefix != prefix {
			continue
		}
		boards++
		var uses []string
		for _, q := range a.Queries {
			expr, used := unconditional(t, q.Expr)
			uses = append(uses, used...)
			vector, err := e.query(expr, now)
			if err != nil {
				t.Errorf("%s: %v", a.Name, err)
				continue
			}
			queries++
			has := slices.ContainsFunc(vector, func(s promql.Sample) bool { return !math.IsNaN(s.F) })
			if q.Missing != "" {
				without++
			}
			expect.That(t, has != (q.Missing != ""),
				"%s: %s: data: %v, want otherwise: %d series", a.Name, expr, has, len(vector))
		}
		slices.Sort(uses)
		uses = slices.DeleteFunc(slices.Compact(uses), func(l string) bool { return !slices.Contains(telling(), l) })
		diff := cmp.Diff(a.Needs, uses)
		expect.That(t, diff == "" || len(a.Needs)+len(uses) == 0, "%s: labels, -data +queries:\n%s", a.Name, diff)
	}
	t.Logf("%d boards, alerts and autoscalers of %s: %d queries, %d of them without data",
		boards, exporter, queries, without)
	expect.That(t, boards != 0, "nobody asks")
}

// telling are the labels of which boards differ.
func telling() []string {
	return []string{
		"namespace", "pod", "container", "exported_namespace", "exported_pod", "exported_container", "GPU_I_ID",
		"GPU_I_PROFILE", "Hostname", "hostname", "instance", "node", "job", "cluster_name",
	}
}

// unconditional returns the query without a comparison that decides whether an alert fires, and the
// labels that it selects or groups by.
func unconditional(t *testing.T, expr string) (string, []string) {
	parsed := must.Get(parser.NewParser(parser.Options{}).ParseExpr(expr))(t)
	var used []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			for _, m := range n.LabelMatchers {
				if n.Name != "up" {
					used = append(used, m.Name)
				}
			}
		case *parser.AggregateExpr:
			used = append(used, n.Grouping...)
		}
		return nil
	})
	for {
		b, ok := parsed.(*parser.BinaryExpr)
		if !ok || !b.Op.IsComparisonOperator() {
			return parsed.String(), used
		}
		parsed = b.LHS
	}
}

// holdersIn returns the pods that hold each device of a page, without those of claims with admin
// access, and without devices that have partitions.
func holdersIn(page []*dto.MetricFamily) map[string][]string {
	admin, out := map[string]bool{}, map[string][]string{}
	each := func(name string, do func(l map[string]string)) {
		for _, f := range page {
			for _, m := range f.Metric {
				if f.GetName() == name {
					do(labelsOf(m))
				}
			}
		}
	}
	each("dra_claim_device_info", func(l map[string]string) {
		if l["admin_access"] == "true" {
			admin[l["namespace"]+"/"+l["resourceclaim_name"]] = true
		}
	})
	each("dra_device_utilization_ratio", func(l map[string]string) { out[l["device"]] = nil })
	each("dra_device_info", func(l map[string]string) {
		if l["parent"] != "" {
			delete(out, l["parent"])
		}
	})
	each("dra_pod_claim_info", func(l map[string]string) {
		pods, measured := out[l["device"]]
		if pod := l["namespace"] + "/" + l["pod"]; measured && !admin[l["namespace"]+"/"+l["resourceclaim_name"]] &&
			!slices.Contains(pods, pod) {
			out[l["device"]] = append(pods, pod)
		}
	})
	return out
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.Label {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// checkOnce checks that each name has one series for a device without a holder or with one, and one
// for each holder of a shared one, and that nothing has several series with equal labels but its
// name.
func checkOnce(t *testing.T, e *engine, now time.Time, page []*dto.MetricFamily) {
	t.Helper()
	want := holdersIn(page)
	shared := 0
	for _, name := range []string{
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_TEMP",
	} {
		vector := must.Get(e.query(name+`{node="n1"}`, now))(t)
		got := map[string][]string{}
		for _, s := range vector {
			device := s.Metric.Get("dra_device_name")
			if pod := s.Metric.Get("pod"); pod != "" {
				got[device] = append(got[device], s.Metric.Get("namespace")+"/"+pod)
			} else {
				got[device] = append(got[device], "free")
			}
		}
		for _, device := range slices.Sorted(maps.Keys(want)) {
			pods := slices.Sorted(slices.Values(want[device]))
			if len(pods) == 0 {
				pods = []string{"free"}
			}
			if len(pods) > 1 {
				shared++
			}
			if diff := cmp.Diff(pods, slices.Sorted(slices.Values(got[device]))); diff != "" {
				t.Errorf("%s of %s: -holders +series:\n%s", name, device, diff)
			}
			delete(got, device)
		}
		expect.That(t, len(got) == 0, "%s: series of %v", name, got)
	}
	expect.That(t, shared != 0 && len(want) >= 10, "%d devices, %d shared ones: nothing is shown", len(want), shared)
}

// checkParts checks units, and that the parts of holders add up to what the device did for them.
func checkParts(t *testing.T, e *engine, now time.Time) {
	t.Helper()
	for _, m := range []struct {
		theirs, ours, parts string
		unit                float64
	}{
		{"DCGM_FI_DEV_GPU_UTIL", "dra_device_utilization_ratio", "dra_pod_utilization_ratio", 100},
		{"DCGM_FI_DEV_FB_USED", "dra_device_memory_used_bytes", "dra_pod_memory_used_bytes", 1. / (1 << 20)},
		{"DCGM_FI_DEV_POWER_USAGE", "dra_device_power_watts", "dra_pod_power_watts", 1},
		{
			"DCGM_FI_PROF_PCIE_TX_BYTES", `rate(dra_device_io_bytes_total{link="pcie", direction="transmit"}[16s])`,
			`rate({__name__=~"dra_claim_io_bytes_total|dra_pod_unclaimed_io_bytes_total", ` +
				`link="pcie", direction="transmit"}[16s])`,
			1,
		},
		{"DCGM_FI_DEV_SM_CLOCK", `dra_device_clock_hertz{domain="graphics"}`, "", 1e-6},
		{"DCGM_FI_DEV_GPU_TEMP", `dra_device_temperature_celsius{sensor="gpu"}`, "", 1},
		{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", `dra_device_engine_utilization_ratio{engine="tensor"}`, "", 1},
		{"DCGM_FI_DEV_FB_TOTAL", "dra_device_memory_capacity_bytes", "", 1. / (1 << 20)},
	} {
		devices := 0
		for device, pods := range valuesBy(t, e, now, m.theirs+`{GPU_I_ID=""}`, "dra_device_name", "pod") {
			want := valuesBy(t, e, now, m.ours, "device", "device")[device][device]
			if m.parts == "" { // each holder has the whole value
				for pod, v := range pods {
					expect.That(t, math.Abs(v-want*m.unit) <= 1e-6*math.Max(v, 1),
						"%s of %s and %q is %v, want %v", m.theirs, device, pod, v, want*m.unit)
				}
			} else {
				// Without a holder, or before the only one has a rate, it is the value of the device.
				parts := valuesBy(t, e, now, "sum by (node, device) ("+m.parts+")", "device", "device")[device]
				if v, measured := parts[device]; measured {
					want = v
				}
				sum := 0.
				for _, v := range pods {
					sum += v
				}
				expect.That(t, math.Abs(sum-want*m.unit) <= 1e-6*math.Max(sum, 1),
					"%s of %s is %v in all, want %v: %v", m.theirs, device, sum, want*m.unit, pods)
			}
			devices++
		}
		expect.That(t, devices >= 8, "%s: %d devices", m.theirs, devices)
	}
}

// valuesBy returns the values of a query on the node of the demo, by two labels that identify the
// series.
func valuesBy(t *testing.T, e *engine, now time.Time, expr, first, second string) map[string]map[string]float64 {
	t.Helper()
	vector := must.Get(e.query(expr, now))(t)
	out := map[string]map[string]float64{}
	for _, s := range vector {
		if s.Metric.Get("node") != "n1" {
			continue
		}
		of := s.Metric.Get(first)
		if out[of] == nil {
			out[of] = map[string]float64{}
		}
		if _, twice := out[of][s.Metric.Get(second)]; twice {
			t.Errorf("%s has several series of %s and %s", expr, of, s.Metric.Get(second))
		}
		out[of][s.Metric.Get(second)] = s.F
	}
	return out
}

// TestCompatTable checks the table of boards on the page of the move.
func TestCompatTable(t *testing.T) {
	t.Parallel()
	content := must.Get(os.ReadFile("../../../deployments/integrations/dcgm-exporter/README.md"))(t)
	_, table, _ := strings.Cut(string(content), "| who asks |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[2:]
	var want []string
	for _, a := range readAsked(t) {
		without, needs := 0, ""
		for _, q := range a.Queries {
			if q.Missing != "" {
				without++
			}
		}
		if len(a.Needs) > 0 {
			needs = "`" + strings.Join(a.Needs, "` `") + "`"
		}
		if a.Prefix != "" {
			a.Name += ", AMD"
		}
		want = append(want, fmt.Sprintf("| %s | %d | %s | %d |", a.Name, len(a.Queries), needs, without))
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("-data +page:\n%s", diff)
	}
}

// families reads an exposition in the text format.
func families(t *testing.T, text string) []*dto.MetricFamily {
	reader := expfmt.NewTextParser(model.UTF8Validation)
	byName := must.Get(reader.TextToMetricFamilies(strings.NewReader(text)))(t)
	var out []*dto.MetricFamily
	for _, f := range byName {
		out = append(out, f)
	}
	return out
}

// scraped returns the samples of an exposition with the labels of their target, given as
// alternating names and values.
func scraped(all []*dto.MetricFamily, at time.Time, target ...string) []point {
	var out []point
	for _, f := range all {
		for _, m := range f.Metric {
			builder := labels.NewBuilder(labels.FromStrings(append(target, model.MetricNameLabel, f.GetName())...))
			for _, l := range m.Label {
				builder.Set(l.GetName(), l.GetValue())
			}
			out = append(out, point{
				labels: builder.Labels(), at: at,
				value: m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue(),
			})
		}
	}
	return out
}
