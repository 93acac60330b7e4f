package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A claim that stays busy while everything else falls to almost nothing is stalled until it works
// again, in the metrics, as an incident of its pod, and in its details on the page. A claim that
// works all the time is not stalled. For a claim whose engines are not measured, this is unknown.
func TestStalled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "hangs", "claim-hangs", gpu(0)), pod("team", "works", "claim-works", gpu(1)),
		pod("team", "blind", "claim-blind", gpu(2)))
	api, kubeconfig := apiServer(t)
	for i, name := range []string{"hangs", "works", "blind"} { // their processes sleep
		uid := fmt.Sprintf("6c61b571-6b3c-4d5e-8f0b-9b8d5c1a%04d", i)
		n.addPod("team", name, uid)
		n.write(cgroup(uid)+"/cpu.stat", "usage_usec 1000\n")
		n.write(cgroup(uid)+"/memory.stat", "anon 4096\nfile 4096\npgfault 10\n")
		api.Put(kubetest.Pods, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"team",
			"name":%q,"uid":%q},"spec":{"nodeName":%q,"restartPolicy":"Never","containers":[{"name":"main"}]},
			"status":{"phase":"Running"}}`,
			name, uid, nodeName))
	}
	var hangs atomic.Bool
	var bytes [3]atomic.Int64
	vendor := vendor(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range bytes {
			watts, tensor, polls := 130, 0., 0.003
			if i == 1 || !hangs.Load() {
				watts, tensor, polls = 640, 0.4, 0.1
				bytes[i].Add(5e9)
			}
			for _, engine := range engines() {
				value := map[string]float64{"tensor": tensor, "int": polls, "sm": 0.12}[engine]
				if i < 2 {
					_, _ = fmt.Fprintf(w, "%s{uuid=%q} %v\n", engine, uuid(i), value)
				}
			}
			_, _ = fmt.Fprintf(w, "utilization{uuid=%q} 1\npower{uuid=%[1]q} %d\ntraffic_total{uuid=%[1]q} %[3]d\n",
				uuid(i), watts, bytes[i].Load())
		}
	})
	config := endpoint("vendor", vendor)
	for _, engine := range engines() {
		config += fmt.Sprintf("  - {name: %s, quantity: engine_utilization, labels: {engine: %[1]s}}\n", engine)
	}
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(3)), "source.scrape.config": n.scrapeConfig(config), "stalled.after": "10s",
		"kube": "auto", "kubeconfig": kubeconfig,
	}))
	is := func(value float64, claim string, reason ...string) func() bool {
		return func() bool {
			m := p.scrape()
			rows := m.rows("dra_claim_stalled", append([]string{"resourceclaim_name", claim}, reason...)...)
			all := m.rows("dra_claim_stalled", "resourceclaim_name", claim)
			return len(rows) == 1 && len(all) == 1 && rows[0].GetGauge().GetValue() == value
		}
	}
	const limit = 2 * time.Minute
	p.within(limit, "known to work", is(0, "claim-hangs"))
	p.within(limit, "known to work", is(0, "claim-works"))
	p.within(limit, "its working level is known", func() bool { return bytes[0].Load() >= 10*5e9 })
	const low = "power,tensor,fp64,fp32,fp16,int,sm,memory_traffic,media,pcie,cpu,page_faults,host_memory"
	hangs.Store(true)
	p.within(limit, "stalled", is(1, "claim-hangs", "reason", low))
	expect.That(t, is(0, "claim-works")(), "the claim that works is stalled too")
	blind := []string{"resourceclaim_name", "claim-blind"}
	m := p.scrape()
	unknown := m.rows("dra_claim_stalled_unknown", append(blind, "reason", "no_engines")...)
	expect.That(t, len(unknown) == 1 && len(m.rows("dra_claim_stalled", blind...)) == 0,
		"a claim whose memory traffic is not measured is judged; of it there are %d rows", len(unknown))
	incidents := p.incidents()
	if len(incidents) != 1 || incidents[0].Kind != recorder.ClaimStalled || incidents[0].Code != low ||
		strings.Join(incidents[0].Pods(), " ") != "team/hangs" {
		t.Errorf("the incidents are %+v", incidents)
	}
	const text = "busy, and does nothing"
	if body := string(p.page("/page/detail?claim=team/claim-hangs").Body); !strings.Contains(body, text) {
		t.Errorf("the details of the claim do not have %q: %s", text, body)
	}
	expect.That(t, !strings.Contains(string(p.page("/page/detail?claim=team/claim-works").Body), text),
		"the details of the claim that works have %q", text)
	hangs.Store(false)
	p.within(limit, "working again", is(0, "claim-hangs"))
}

func engines() []string {
	return []string{"tensor", "fp64", "fp32", "fp16", "int", "sm", "dram", "decoder"}
}

// check says of how many pods that hold devices the cgroups can be read, and what follows if not.
func TestCheckWorks(t *testing.T) {
	t.Parallel()
	uid := func(i int) string { return fmt.Sprintf("6c61b571-6b3c-4d5e-8f0b-9b8d5c1a%04d", i) }
	n := newNode(t)
	n.setPods(pod("team", "seen", "claim-seen", gpu(0)), pod("team", "blind", "claim-blind", gpu(1)))
	for i, name := range []string{"seen", "blind"} {
		n.addPod("team", name, uid(i))
	}
	args := append(n.flags(flags{"inventory.file": n.inventory(gpus(2))}).Args(), "check", "-o", "json")
	reads := func(i int) {
		n.mkdir(cgroup(uid(i)))
		n.write(cgroup(uid(i))+"/cpu.stat", "usage_usec 1000\n")
		n.write(cgroup(uid(i))+"/memory.stat", "anon 4096\nfile 4096\npgfault 10\n")
	}
	const some = "CPU and memory of 1 of 2 pods that hold devices are readable, storage of 0, network of 0; for the " +
		"others it is unknown whether a claim is stalled (no_host)"
	for i, want := range []struct {
		before       func()
		status, text string
	}{
		{func() { reads(0) }, "WARN", some},
		{func() { n.endPod(uid(1)) }, "WARN", some}, // it has no cgroup
		{
			func() { reads(1) },
			"OK", "CPU and memory of 2 of 2 pods that hold devices are readable, storage of 0, network of 0",
		},
	} {
		want.before()
		_, stdout, stderr := run(t, args)
		var report struct {
			Findings []struct{ Status, What, Text string }
		}
		err := json.Unmarshal([]byte(stdout), &report)
		must.That(t, err == nil, "%v: %s %s", err, stdout, stderr)
		at := slices.IndexFunc(report.Findings, func(f struct{ Status, What, Text string }) bool {
			return f.What == "pods' cgroups"
		})
		expect.That(t, at >= 0 && report.Findings[at].Status == want.status && report.Findings[at].Text == want.text,
			"check %d: %s", i, stdout)
	}
}
