package integrations

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/kubernetes" // the configurations have it
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestPrometheusAgent: what the agent sends has the claims, and their native histograms.
func TestPrometheusAgent(t *testing.T) {
	heavy(t)
	demo, agent := live.FreeAddress(t), live.FreeAddress(t)
	live.StartDemo(t, root, demo)
	receiver := live.FreeAddress(t)
	server := live.StartPrometheus(t, live.PrometheusOptions{
		Config: "global: {}\n", Command: exec.CommandContext, Client: http.DefaultClient, Address: receiver,
		Flags: []string{"--web.enable-remote-write-receiver"},
	})
	var shippedConfig object
	shipped(t, "prometheus-agent/prometheus.yaml", &shippedConfig)
	scrapeDemo(t, shippedConfig["scrape_configs"].([]any)[0].(object), demo)
	remote := shippedConfig["remote_write"].([]any)[0].(object)
	expect.That(t, remote["url"] == "REMOTE_WRITE", "the address is %v", remote["url"])
	remote["url"] = "http://" + receiver + "/api/v1/write"
	live.Start(t, exec.Command(os.Getenv("PROMETHEUS"), "--agent", "--config.file="+write(t, shippedConfig),
		"--storage.agent.path="+t.TempDir(), "--web.listen-address="+agent), http.DefaultClient, "http://"+agent+"/-/ready")
	for _, expr := range []string{
		`dra_claim_power_watts{namespace="team-nlp", resourceclaim_name="embedder-0-gpu", node="demo-node"}`,
		`dra_pod_utilization_ratio{namespace="team-nlp", pod="embedder-0", node="demo-node"}`,
		`histogram_count(dra_claim_power_distribution_watts{resourceclaim_name="embedder-0-gpu"}) > 0`,
	} {
		has(t, server, expr)
	}
}

// has waits until an expression has a value.
func has(t *testing.T, server live.Prometheus, expr string) {
	live.Await(t, 2*time.Minute, expr, func() error {
		got, err := server.Query(t.Context(), expr, time.Now())
		if err == nil && len(got) == 0 {
			err = errors.New("there is no series")
		}
		return err
	})
}

// TestAutoscaling: the queries by which a Deployment is scaled have the use of the demo's pods.
func TestAutoscaling(t *testing.T) {
	heavy(t)
	demo := live.FreeAddress(t)
	live.StartDemo(t, root, demo)
	server := live.StartPrometheus(t, live.PrometheusOptions{
		Config: "scrape_configs:\n- {job_name: dra-exporter, honor_labels: true, scrape_interval: 1s, " +
			"static_configs: [{targets: [" + demo + "], labels: {node: demo-node}}]}\n",
	})
	var scaled object
	shipped(t, "autoscaling/scaledobject.yaml", &scaled)
	trigger := scaled["spec"].(object)["triggers"].([]any)[0].(object)["metadata"].(object)
	has(t, server, trigger["query"].(string)+" > 0.05 < 2")
	var adapter struct {
		Rules []struct{ SeriesQuery, MetricsQuery string }
	}
	content := read("autoscaling/prometheus-adapter.yaml")(t)
	must.Do(t, yaml.Unmarshal(content, &adapter))
	for _, rule := range adapter.Rules {
		series, _, _ := strings.Cut(rule.SeriesQuery, "{")
		has(t, server, rule.SeriesQuery)
		has(t, server, strings.NewReplacer("<<.Series>>", series, "<<.GroupBy>>", "pod",
			"<<.LabelMatchers>>", `namespace="team-nlp",pod=~"embedder-0"`).Replace(rule.MetricsQuery)+" > 0")
	}
}

// TestScrapeConfigurations: Prometheus's own loader takes each scrape configuration.
func TestScrapeConfigurations(t *testing.T) {
	for _, path := range []string{
		"aws/prometheus.yaml", "prometheus-agent/prometheus.yaml", "victoriametrics/vmagent.yaml",
	} {
		c, err := config.Load(string(read(path)(t)), promslog.NewNopLogger())
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		for _, s := range c.ScrapeConfigs {
			expect.That(t, s.HonorLabels && len(s.ServiceDiscoveryConfigs) == 1 && len(s.RelabelConfigs) == 3,
				"%s: the job %s does not honor labels or finds no pods", path, s.JobName)
		}
	}
}

// TestVictoriaMetrics: vmagent scrapes the demo with the shipped configuration, but for how it
// finds the exporters, and writes to VictoriaMetrics; vmalert evaluates all rules over it, with
// windows of seconds. Each rule is evaluated without an error, and the demo's idle claims fire.
func TestVictoriaMetrics(t *testing.T) {
	heavy(t)
	demo, store, agent, alerts := live.FreeAddress(t), live.FreeAddress(t), live.FreeAddress(t), live.FreeAddress(t)
	live.StartDemo(t, root, demo)
	// Samples are visible to queries after 30 s by default.
	live.Start(t, exec.Command(program(t, "VICTORIAMETRICS"), "-httpListenAddr="+store, "-storageDataPath="+t.TempDir(),
		"-search.latencyOffset=1s"), http.DefaultClient, "http://"+store+"/health")
	var scrapes object
	shipped(t, "victoriametrics/vmagent.yaml", &scrapes)
	scrapeDemo(t, scrapes["scrape_configs"].([]any)[0].(object), demo)
	live.Start(t, exec.Command(program(t, "VMAGENT"), "-httpListenAddr="+agent, "-promscrape.config="+write(t, scrapes),
		"-promscrape.config.strictParse", "-remoteWrite.url=http://"+store+"/api/v1/write",
		"-remoteWrite.tmpDataPath="+t.TempDir()), http.DefaultClient, "http://"+agent+"/health")
	live.Start(t, exec.Command(program(t, "VMALERT"), "-httpListenAddr="+alerts, "-rule="+quickRules(t),
		"-rule.evalDelay=2s", "-datasource.url=http://"+store, "-remoteWrite.url=http://"+store,
		"-remoteRead.url=http://"+store, "-notifier.blackhole", "-evaluationInterval=2s"),
		http.DefaultClient, "http://"+alerts+"/health")

	server := live.At("http://" + store)
	has(t, server, `dra_claim_power_watts{namespace="team-nlp", resourceclaim_name="embedder-0-gpu", node="demo-node"}`)
	has(t, server, `cluster:dra_devices:count`)
	has(t, server, `ALERTS{alertname="DRAClaimIdle", alertstate="firing", resourceclaim_name="notebook-bob-gpu"}`)
	live.Await(t, time.Minute, "all rules are evaluated", func() error { return evaluated(t, live.At("http://"+alerts)) })
}

// quickRules writes all rules with windows of seconds.
func quickRules(t *testing.T) string {
	o := rules.Defaults()
	o.Interval, o.Idle.Interval, o.RateWindow = 2*time.Second, 2*time.Second, 16*time.Second
	o.Idle.Window, o.Idle.For, o.Idle.Held, o.KeepFiring = 20*time.Second, 2*time.Second, 0.5, 5*time.Second
	catalog := query.NewCatalog()
	groups := must.Get(rules.Groups(o, catalog))(t)
	content := must.Get(rules.File(groups))(t)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	must.Do(t, os.WriteFile(path, content, 0o600))
	return path
}

// evaluated returns an error unless vmalert has evaluated every rule, and none fails.
func evaluated(t *testing.T, server live.Prometheus) error {
	var data struct {
		Groups []struct {
			Interval float64 // seconds
			Rules    []struct{ Name, LastError, LastEvaluation string }
		}
	}
	if err := server.Get(t.Context(), "/api/v1/rules", url.Values{}, &data); err != nil {
		return err
	}
	n := 0
	var all []error
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			n++
			waits := g.Interval >= 60 // for its first evaluation
			if r.LastError != "" || !waits && (r.LastEvaluation == "" || r.LastEvaluation == "0001-01-01T00:00:00Z") {
				all = append(all, fmt.Errorf("%s: %q, last evaluated %s", r.Name, r.LastError, r.LastEvaluation))
			}
		}
	}
	if n < 100 {
		all = append(all, fmt.Errorf("there are only %d rules", n))
	}
	return errors.Join(all...)
}

// The shipped rules are accepted by vmalert as they are.
func TestVictoriaMetricsRules(t *testing.T) {
	heavy(t)
	for _, name := range []string{"rules.yaml", "rules-node.yaml", "rules-global.yaml"} {
		said, err := exec.CommandContext(t.Context(), program(t, "VMALERT"), "-dryRun",
			"-rule="+filepath.Join(root, "dashboards", "out", name)).CombinedOutput()
		expect.That(t, err == nil, "%s: %v: %s", name, err, said)
	}
}
