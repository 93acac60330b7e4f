package integrations

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/kubernetes" // the configurations have it
	"sigs.k8s.io/yaml"

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
