package integrations

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
	var config object
	shipped(t, "victoriametrics/vmagent.yaml", &config)
	scrapeDemo(t, config["scrape_configs"].([]any)[0].(object), demo)
	live.Start(t, exec.Command(program(t, "VMAGENT"), "-httpListenAddr="+agent, "-promscrape.config="+write(t, config),
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
