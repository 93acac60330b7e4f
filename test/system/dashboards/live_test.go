package dashboards

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// scrapes are scrape configurations: with honor_labels, as shipped; without it and with conflicting
// target labels, where relabeling restores the exporter's labels; and without a label cluster.
const scrapes = `
global: {scrape_interval: 4s, evaluation_interval: 4s, scrape_native_histograms: true}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
  - targets: [ADDRESS]
    labels: {cluster: honoring, node: n1, instance: n1, namespace: monitoring, pod: dra-exporter-x}
- job_name: east/dra-exporter
  honor_labels: false
  static_configs:
  - targets: [ADDRESS]
    labels: {cluster: clashing, node: n1, instance: n1, namespace: monitoring, pod: dra-exporter-x}
  metric_relabel_configs:
  - {source_labels: [exported_namespace], regex: (.+), target_label: namespace}
  - {source_labels: [exported_pod], regex: (.+), target_label: pod}
  - {source_labels: [exported_node], regex: (.+), target_label: node}
  - {regex: exported_(namespace|pod|node), action: labeldrop}
- job_name: west/dra-exporter
  static_configs:
  - {targets: [ADDRESS], labels: {node: n1, instance: n1}}
`

// hangs is the claim of the demo's job that hangs.
const hangs = "research/finetune-0-rank-0-gpu"

// clusters are the values of the label cluster in scrapes.
func clusters() []string { return []string{"honoring", "clashing", ""} }

// shortOptions are options of rules that detect an idle claim within seconds.
func shortOptions() rules.Options {
	o := rules.Defaults()
	o.Prices = []rules.Price{{Models: "LATEST-GPU-MODEL", PerHour: 3}}
	o.Interval, o.RateWindow, o.Idle.Window, o.Idle.For = 2*time.Second, 16*time.Second, 20*time.Second, 2*time.Second
	o.Idle.Interval = 2 * time.Second
	o.Idle.Held = 0.5 // a busy machine misses scrapes
	o.ErrorWindow, o.For, o.KeepFiring = 30*time.Second, 20*time.Second, 5*time.Second
	return o
}

// The scrape interval of the live Prometheus, the window of its rates, and the seconds within which
// a busy machine must answer.
const liveInterval, liveWindow, scrapeTimeout = "4s", "32s", 4

// liveOptions are those of the live Prometheus.
func liveOptions() rules.Options {
	o := shortOptions()
	for _, d := range []*time.Duration{
		&o.Interval, &o.RateWindow, &o.Idle.Window, &o.Idle.For, &o.Idle.Interval, &o.ErrorWindow, &o.KeepFiring,
	} {
		*d *= 2
	}
	return o
}

// startLive starts the demo and a Prometheus that scrapes it.
func startLive(t *testing.T) server {
	exporter := live.FreeAddress(t)
	live.StartDemo(t, filepath.Join("..", "..", ".."), exporter)

	content := must.Get(rules.File(groups(t, liveOptions())))(t)
	return server{live.StartPrometheus(t, live.PrometheusOptions{
		Config: strings.ReplaceAll(scrapes, "ADDRESS", exporter), Files: map[string]string{"rules.yaml": string(content)},
	})}
}

// TestLive waits until the alerts for the demo's idle and stalled claims fire in a real
// Prometheus, then evaluates every query of every dashboard.
func TestLive(t *testing.T) {
	t.Parallel()
	began := time.Now()
	prometheus := startLive(t)
	want := []string{
		"DRAClaimIdle research/notebook-bob-gpu", "DRAClaimIdleMemoryHeld research/notebook-ada-gpu",
		"DRAClaimStalled " + hangs, "DRAPodIdle research/notebook-cleo",
	}
	for _, cluster := range clusters() {
		for _, alert := range want {
			live.Await(t, 5*time.Minute, alert+" fires in cluster "+cluster, func() error {
				if firing := prometheus.firing(t, cluster); firing[alert] == nil {
					return fmt.Errorf("%d others do", len(firing))
				}
				return nil
			})
		}
	}
	t.Logf("the alerts on claims fired after %v", time.Since(began).Round(time.Second))
	for _, cluster := range clusters() {
		t.Run("alerts "+cluster, func(t *testing.T) { checkAlerts(t, prometheus, cluster) })
	}
	t.Run("rules", func(t *testing.T) { eventually(t, func(f *findings) { checkRules(f, prometheus) }) })
	t.Run("ranks", func(t *testing.T) { eventually(t, func(f *findings) { checkRanks(f, prometheus) }) })
	t.Run("variables", func(t *testing.T) { eventually(t, func(f *findings) { checkVariables(f, prometheus) }) })
	for _, board := range grafana.Boards() {
		for _, cluster := range clusters() {
			t.Run(board.UID+" "+cluster, func(t *testing.T) {
				eventually(t, func(f *findings) { checkBoard(f, prometheus, board, cluster, began) })
			})
		}
	}
}

// findings are the errors of one check.
type findings []string

func (f *findings) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// eventually repeats a check until it finds no error. Missing data may still arrive; an error that
// lasts for a minute fails the test.
func eventually(t *testing.T, look func(*findings)) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Second) {
		var f findings
		look(&f)
		if len(f) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal(strings.Join(f, "\n"))
		}
	}
}

// checkAlerts allows no other alert on idle claims, and checks the texts.
func checkAlerts(t *testing.T, prometheus server, cluster string) {
	for alert, annotations := range prometheus.firing(t, cluster) {
		switch strings.Fields(alert)[0] {
		case "DRAClaimIdle", "DRAClaimIdleMemoryHeld", "DRAPodIdle":
			if !strings.Contains(alert, "notebook") {
				t.Errorf("%s fires for an active holder", alert)
			}
		case "DRAClaimStalled":
			if alert != "DRAClaimStalled "+hangs {
				t.Errorf("%s fires for a claim that works", alert)
			}
		case "DRADeviceUnhealthy", "DRADeviceErrors": // gpu-5 has errors
		case "DRADeviceThrottled", "DRAWorkloadStraggler":
			if !strings.Contains(annotations["summary"], "gpu-10") {
				t.Errorf("%s fires for a device that is as fast as the others: %s", alert, annotations["summary"])
			}
		default:
			t.Errorf("%s fires", alert)
		}
		for name, text := range annotations {
			if text == "" || strings.Contains(text, "no value") || strings.Contains(text, "error expanding") {
				t.Errorf("%s: %s: %q", alert, name, text)
			}
		}
	}
}

// checkRules checks that all rules can be evaluated, and the states of the demo's devices: there
// are 23 with the partitioned parent, and some are busy only from time to time.
func checkRules(f *findings, prometheus server) {
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := prometheus.Get(context.Background(), "/api/v1/rules", nil, &data); err != nil {
		f.Errorf("%v", err)
		return
	}
	n := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" && !strings.HasSuffix(r.Name, rules.Hourly) { // the hour has not ended
				f.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n < 50 {
		f.Errorf("%d rules", n)
	}
	for _, cluster := range clusters() {
		states, err := prometheus.query(fmt.Sprintf(`sum by (state) (cluster:dra_devices:count{cluster=%q})`, cluster), 0)
		if err != nil {
			f.Errorf("%v", err)
			return
		}
		checkPower(f, prometheus, cluster)
		got, sum := map[string]float64{}, 0.0
		for _, s := range states {
			got[s.Labels["state"]] = s.Samples[0].Value
			sum += s.Samples[0].Value
		}
		if sum != 23 || got["partitioned"] != 1 || got["unhealthy"] != 1 || got["idle"] != 4 || got["free"] < 2 ||
			got["active"] < 10 ||
			got["unmeasured"] != 0 {
			f.Errorf("cluster %q: %v", cluster, got)
		}
	}
}

// checkRanks checks that the rules name the slow rank of the demo's training, and no other one, and
// that the job of low efficiency is busy: 0.98 of the time, and 0.04 of that on the tensor cores.
// The training's others reach 0.6 of 0.92 at 0.93 of the highest clock.
func checkRanks(f *findings, prometheus server) {
	for _, cluster := range clusters() {
		of := fmt.Sprintf("{cluster=%q", cluster)
		stragglers, err := prometheus.query("group by (device, pod, reason) ("+rules.StragglerRecord+of+"})", 0)
		if err != nil || len(stragglers) != 1 || stragglers[0].Labels["device"] != "gpu-10" ||
			stragglers[0].Labels["reason"] != "throttled" {
			f.Errorf("cluster %q: the stragglers are %v, %v", cluster, stragglers, err)
		}
		// A rate takes a scrape that is late, or missed, for less work. The time held has the
		// rate of the same scrapes.
		rate := func(metric, device string) string {
			return `max(rate(` + metric + of + `, device="` + device + `"}[` + liveWindow + `]))`
		}
		perHeld := func(expr, device string) string {
			return expr + ` / ` + rate("dra_claim_allocated_seconds_total", device)
		}
		flop := func(device string) string { return perHeld(rate("dra_device_tensor_seconds_total", device), device) }
		recorded := func(device string) string {
			return perHeld(`max(device:dra_flop_utilization:ratio`+of+`, device="`+device+`"})`, device)
		}
		for _, look := range []struct {
			expr        string
			want, error float64
		}{
			{`max(dra_device_engine_utilization_ratio` + of + `, engine="sm", device="gpu-11"})`, 0.98, 0.02},
			{`max(dra_device_engine_utilization_ratio` + of + `, engine="tensor", device="gpu-11"})`, 0.98 * 0.04, 0.02},
			{flop("gpu-11"), 0.98 * 0.04 * 0.983, 0.02},
			{flop("gpu-8"), 0.92 * 0.6 * 0.934, 0.02},
			// It was recorded a scrape before.
			{recorded("gpu-11"), 0.98 * 0.04 * 0.983, 2. / 16},
			{recorded("gpu-8"), 0.92 * 0.6 * 0.934, 2. / 16},
		} {
			got, err := prometheus.query(look.expr, 0)
			if err != nil || len(got) != 1 || math.Abs(got[0].Samples[0].Value-look.want) > look.error*look.want {
				f.Errorf("%s is %v, want %v: %v", look.expr, got, look.want, err)
			}
		}
	}
}

// checkPower checks that the power of claims, and of pods without one, sums to the power of the
// devices that are held, that claims of partitions have a part of their GPU's, and that partitions
// have no power as devices.
func checkPower(f *findings, prometheus server, cluster string) {
	for expr, want := range map[string]float64{
		`(sum(dra_claim_power_watts{C, device!~"gpu-6.*"}) + sum(dra_pod_unclaimed_power_watts{C})) / ` +
			`sum(dra_device_power_watts{C, device!="gpu-6"} ` +
			`and on (node, driver, pool, device) dra_device_allocations{C} > 0)`: 1,
		`sum(dra_claim_power_watts{C, device=~"gpu-6.*"}) > ` +
			`bool 1.000001 * sum(dra_device_power_watts{C, device="gpu-6"})`: 0,
		`sum(dra_device_power_watts{C, device!~".*partition.*"}) / sum(dra_device_power_watts{C})`: 1,
		`count(dra_claim_power_watts{C, device=~"gpu-6-partition-[01]"} > 0)`:                      2,
	} {
		got, err := prometheus.query(strings.ReplaceAll(expr, "{C", fmt.Sprintf("{cluster=%q", cluster)), 0)
		if err != nil || len(got) != 1 {
			f.Errorf("%s: %d series, %v", expr, len(got), err)
			continue
		}
		if v := got[0].Samples[0].Value; math.Abs(v-want) > 1e-6 {
			f.Errorf("cluster %q: %s is %v, want %v", cluster, expr, v, want)
		}
	}
}

func checkVariables(f *findings, prometheus server) {
	for _, b := range grafana.Boards() {
		dashboard, err := readShipped(b.UID)
		if err != nil {
			f.Errorf("%v", err)
		}
		for _, v := range dashboard.Templating.List {
			if v.Type != "query" || v.Hide != 0 {
				continue
			}
			query := grafana.Fill(strings.TrimSuffix(v.Query, ")"), nil, "1m", "5m", "1m")
			if values, ok := strings.CutPrefix(query, "label_values("); ok {
				at := strings.LastIndex(values, ", ")
				err = checkValues(prometheus, values[at+len(", "):], values[:at])
			} else {
				label, _, _ := strings.Cut(strings.TrimPrefix(v.Regex, "/"), "=")
				err = checkRanked(prometheus, label, strings.TrimPrefix(query, "query_result("))
			}
			if err != nil {
				f.Errorf("%s: variable %s: %s: %v", b.UID, v.Name, query, err)
			}
		}
	}
	for _, a := range grafana.Annotations() {
		got, err := prometheus.query(grafana.Fill(a.Expr, nil, "1m", liveWindow, liveInterval), time.Minute)
		if err != nil || len(got) == 0 {
			f.Errorf("annotation %s: %d series, %v", a.Name, len(got), err)
		}
		for _, series := range got {
			if a.Spans { // its times are those of the samples
				continue
			}
			for _, sample := range series.Samples {
				if at := time.UnixMilli(int64(sample.Value)); time.Until(at) > time.Second || time.Since(at) > time.Hour {
					f.Errorf("annotation %s at %v", a.Name, at)
				}
			}
		}
	}
}

// checkValues checks that a variable offers values of a label.
func checkValues(prometheus server, label, selector string) error {
	var values []string
	err := prometheus.Get(context.Background(), "/api/v1/label/"+label+"/values", url.Values{"match[]": {selector}},
		&values)
	if err == nil && len(values) == 0 {
		err = errors.New("it offers nothing")
	}
	return err
}

// checkRanked checks that a variable offers some values, those with the highest ranks first.
func checkRanked(prometheus server, label, expr string) error {
	got, err := prometheus.query(expr, 0)
	if err != nil {
		return err
	}
	named, last := 0, math.Inf(1)
	for _, series := range got {
		if series.Labels[label] != "" {
			named++
		}
		rank := series.Samples[0].Value
		if rank > last {
			return fmt.Errorf("%v comes after %v", rank, last)
		}
		last = rank
	}
	if named == 0 || len(got) > grafana.MostOffered {
		return fmt.Errorf("%d of %d values have the label %s", named, len(got), label)
	}
	return nil
}

// shipped is the part of a dashboard's JSON that the test reads.
type shipped struct {
	Panels     []shippedPanel
	Templating struct {
		List []struct {
			Name, Type, Query, Regex string
			Hide                     int
		}
	}
}

type shippedPanel struct {
	Type, Title string
	Panels      []shippedPanel // of a collapsed row
	Targets     []struct {
		Expr    string
		Instant bool
	}
	FieldConfig struct {
		Defaults struct {
			Mappings []struct{ Options map[string]any }
		}
	}
}

// readShipped reads a shipped dashboard.
func readShipped(uid string) (shipped, error) {
	var out shipped
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "dashboards", "out", "grafana", uid+".json"))
	if err == nil {
		err = json.Unmarshal(content, &out)
	}
	return out, err
}

// checkBoard evaluates the queries of a shipped dashboard.
func checkBoard(f *findings, prometheus server, board grafana.Board, cluster string, began time.Time) {
	dashboard, err := readShipped(board.UID)
	if err != nil {
		f.Errorf("%v", err)
		return
	}
	for _, row := range dashboard.Panels {
		dashboard.Panels = append(dashboard.Panels, row.Panels...)
	}
	panels, queries := 0, 0
	for _, row := range board.Rows {
		for _, panel := range row.Panels {
			panels++
			for _, p := range dashboard.Panels {
				if p.Title != panel.Title || p.Type == "row" {
					continue
				}
				found := 0
				for i, target := range p.Targets {
					queries++
					unit := panel.Unit
					if panel.Kind == grafana.Table || panel.Kind == grafana.Points {
						unit = panel.Targets[i].Unit
					}
					if mappings := p.FieldConfig.Defaults.Mappings; panel.Kind == grafana.Timeline && len(mappings) > 0 {
						checkStates(f, prometheus, panel.Title, target.Expr, mappings[0].Options, cluster, began)
					}
					found += checkQuery(f, prometheus, panel, target.Expr, unit, target.Instant, cluster, began)
				}
				if found == 0 && !panel.MayBeEmpty {
					f.Errorf("%q has no data", panel.Title)
				}
			}
		}
	}
	if panels == 0 || queries < panels {
		f.Errorf("%d panels, %d queries", panels, queries)
	}
}

// checkQuery evaluates one query, and returns the number of series.
func checkQuery(f *findings, prometheus server, panel grafana.Panel, expr, unit string, instant bool, cluster string,
	began time.Time,
) int {
	span := time.Since(began).Truncate(time.Second)
	filled := grafana.Fill(expr, map[string]string{"cluster": cluster}, fmt.Sprintf("%ds", int(span.Seconds())),
		liveWindow, liveInterval)
	if instant {
		span = 0
	}
	got, err := prometheus.query(filled, span)
	if err != nil {
		f.Errorf("%q: %v", panel.Title, err)
	}
	if len(got) == 0 && !panel.MayBeEmpty && panel.Kind != grafana.Table && panel.Kind != grafana.Points {
		f.Errorf("%q: no data for %s", panel.Title, filled)
	}
	for _, series := range got {
		for _, h := range series.Histograms { // shares of the time
			if !(h.Count > 0 && h.Count < 1.1 && len(h.Buckets) > 0) {
				f.Errorf("%q: %v is not plausible: %v of %s", panel.Title, h, series.Labels, filled)
				break
			}
		}
		for _, sample := range series.Samples {
			if strings.Contains(filled, "_distribution_ratio") {
				sample.Value /= 8 // it is the sum over the devices of a claim, at most all of them
			}
			if strings.Contains(filled, "dra_exporter_snapshot_timestamp_seconds") && sample.Value > -scrapeTimeout {
				sample.Value = max(sample.Value, 0) // the snapshot was made while the scrape waited for it
			}
			if !plausible(unit, sample.Value) {
				f.Errorf("%q: %v as %q is not plausible: %v of %s", panel.Title, sample.Value, unit, series.Labels, filled)
				break
			}
		}
	}
	return len(got)
}

// checkStates checks that each value of a time line is one of its states: it shows nothing else.
func checkStates(f *findings, prometheus server, title, expr string, states map[string]any, cluster string,
	began time.Time,
) {
	span := time.Since(began).Truncate(time.Second)
	filled := grafana.Fill(expr, map[string]string{"cluster": cluster}, fmt.Sprintf("%ds", int(span.Seconds())),
		liveWindow, liveInterval)
	got, err := prometheus.query(filled, span)
	if err != nil {
		f.Errorf("%q: %v", title, err)
	}
	for _, series := range got {
		for _, sample := range series.Samples {
			if states[strconv.FormatFloat(sample.Value, 'g', -1, 64)] == nil {
				f.Errorf("%q shows %v of %v, which is none of its states", title, sample.Value, series.Labels)
				return
			}
		}
	}
}

// plausible reports whether a value is possible for the demo's 8 GPUs and 4 interfaces.
func plausible(unit string, v float64) bool {
	within := func(low, high float64) bool { return v >= low && v <= high }
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return false
	}
	switch unit {
	case "percentunit":
		return within(0, 1.02) // rates are extrapolated
	case "watt":
		return within(0, 15*700*1.1)
	case "celsius":
		return within(20, 100)
	case "hertz":
		return within(1e8, 3e9)
	case "bytes":
		return within(0, 15*80*1<<30) || within(0, 1e13) // memory or traffic
	case "binBps":
		return within(0, 12*12.5e9*2)
	case "pps":
		return within(0, 12.5e9/100)
	case "h":
		return within(0, 4) // 23 devices for some minutes
	case "kwatth":
		return within(0, 15*0.7*0.1) // six minutes of 15 GPUs
	case "currency:¤":
		return within(0, 15*3*24) // a day of 15 GPUs
	case "s":
		return within(-1, 60)
	case "dateTimeFromNow":
		age := time.Since(time.UnixMilli(int64(v)))
		return age > -5*time.Second && age < 10*time.Minute
	case "cps":
		return within(0, 10)
	case "none":
		return within(0, 1e5)
	case "short":
		return within(0, 80*1<<30)
	default:
		return unit == "" && within(0, 1e5)
	}
}

// TestStack runs `make demo-stack` until the console shows records about the demo, then presses
// Ctrl-C: no process is left, and no port is open.
func TestStack(t *testing.T) {
	t.Parallel()
	exporter, prometheus := live.FreeAddress(t), live.FreeAddress(t)
	cmd := exec.Command("make", "-C", "../../..", "demo-stack", "PROMETHEUS="+program(t, "PROMETHEUS"))
	cmd.Env = append(os.Environ(), "EXPORTER="+exporter, "LISTEN="+prometheus, "MAKEFLAGS=", "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said := must.Get(os.Create(filepath.Join(t.TempDir(), "said")))(t)
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	must.Do(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	all := -cmd.Process.Pid // the group of its processes
	t.Cleanup(func() { _ = syscall.Kill(all, syscall.SIGKILL) })

	fleet := "http://" + prometheus + "/consoles/fleet.html"
	live.Await(t, 6*time.Minute, "it says where to look", func() error {
		text, err := os.ReadFile(said.Name())
		if err == nil && (!bytes.Contains(text, []byte(fleet)) || !bytes.Contains(text, []byte("top --url="+exporter))) {
			err = fmt.Errorf("it says\n%s", text)
		}
		return err
	})
	live.Await(t, time.Minute, "the console shows the fleet", func() error {
		page, err := body(fleet)
		if err == nil && !strings.Contains(page, "<td>active</td>") {
			err = fmt.Errorf("the page is\n%s", page)
		}
		return err
	})
	live.Await(t, time.Minute, "claims have distributions", func() error {
		got, err := live.At("http://"+prometheus).Query(t.Context(),
			"histogram_count(dra_claim_utilization_distribution_ratio)", time.Now())
		if err == nil && len(got) == 0 {
			err = errors.New("no native histogram was scraped")
		}
		return err
	})
	live.Await(t, time.Minute, "the node has a page", func() error {
		return live.Get(http.DefaultClient, "http://"+exporter)
	})
	if err := syscall.Kill(all, syscall.SIGINT); err != nil { // as a terminal does
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("Ctrl-C does not end it")
	}
	live.Await(t, time.Minute, "all processes end", func() error {
		if err := syscall.Kill(all, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("a process is left: %w", err)
		}
		return nil
	})
	for _, address := range []string{exporter, prometheus} {
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); err == nil {
			_ = c.Close()
			t.Errorf("something listens on %s still", address)
		}
	}
}

// body returns the body of a page.
func body(address string) (string, error) {
	response, err := http.Get(address)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}
