package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A node without DRA: no slices, no claims, no API server; a device plugin offers four GPUs and
// gave two pods one each, and two pods a time slice each of a third. The exporter knows who holds
// what, what it does, whether it is idle, what it costs, and how it is; and which GPU is free.
func TestNodeWithoutDRA(t *testing.T) {
	t.Parallel()
	const resource = "nvidia.com/gpu"
	n := newNode(t)
	holder := func(pod, id string) {
		answer := must.Get(n.kubelet.Answer())(t)
		n.setPods(append(answer.PodResources, podresourcestest.Pod("team", pod,
			podresourcestest.WithDevices(podresourcestest.Container("main"), resource, id)))...)
	}
	holder("busy", uuid(0))
	holder("idle", uuid(1))
	holder("slice-a", uuid(2)+"::0")
	holder("slice-b", uuid(2)+"::1")
	n.kubelet.Offer(resource, uuid(0), uuid(1), uuid(2)+"::0", uuid(2)+"::1", uuid(3)+"::0", uuid(3)+"::1")
	n.kubelet.Offer("devices.kubevirt.io/kvm", "kvm0", "kvm1")
	served := func(faults int) string {
		var out strings.Builder
		for i, busy := range []float64{0.5, 0, 0.8, 0} {
			fmt.Fprintf(&out, "utilization{uuid=%q} %v\npower{uuid=%[1]q} %[3]d00\nmemory{uuid=%[1]q} 1e9\n", uuid(i), busy, i+1)
			fmt.Fprintf(&out, "faults_total{uuid=%q} %d\n", uuid(i), faults)
		}
		return out.String()
	}
	var answers atomic.Int64
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) { fixed(served(int(answers.Add(1))/5))(w, r) })
	config := strings.Replace(endpoint("vendor", url), gpuDriver, resource, 1) +
		"  - {name: faults_total, quantity: errors, labels: {kind: ecc_uncorrected}}\n"
	p := start(t, n.flags(flags{"source.scrape.config": n.scrapeConfig(config)}))
	p.eventually("charged, and an error counted", func() bool {
		m := p.scrape()
		return m.positive("dra_pod_unclaimed_energy_joules_total", "pod", "slice-b") &&
			m.positive("dra_pod_errors_total", "pod", "idle") &&
			m.positive("dra_pod_unclaimed_used_seconds_total", "pod", "busy")
	})
	m, of := p.scrape(), func(i int) []string { return []string{"driver", resource, "pool", "", "device", uuid(i)} }
	// Who.
	for i, pods := range [][]string{{"busy"}, {"idle"}, {"slice-a", "slice-b"}, nil} {
		m.want(float64(len(pods)), "dra_device_allocations", of(i)...)
		for _, pod := range pods {
			m.want(1, "dra_pod_claim_info", append(of(i), "pod", pod, "namespace", "team", "resourceclaim_name", "")...)
		}
	}
	expect.Is(t, len(m.rows("dra_device_info")), 4, "devices")
	// What.
	m.want(0.5, "dra_pod_utilization_ratio", append(of(0), "pod", "busy")...)
	m.want(150, "dra_pod_power_watts", append(of(2), "pod", "slice-a")...)
	m.want(200, "dra_pod_unclaimed_power_watts", append(of(1), "pod", "idle")...)
	// Idle. Which of two slices works is unknown: any use counts for both.
	m.want(0, "dra_pod_unclaimed_used_seconds_total", append(of(1), "pod", "idle")...)
	for _, pod := range []string{"slice-a", "slice-b"} {
		expect.That(t, m.positive("dra_pod_unclaimed_used_seconds_total", append(of(2), "pod", pod)...),
			"%s did not use its busy device", pod)
	}
	last, _ := m.value("dra_pod_unclaimed_last_active_timestamp_seconds", "pod", "busy")
	since, _ := m.value("dra_pod_unclaimed_last_active_timestamp_seconds", "pod", "idle")
	expect.That(t, since < last, "the idle pod was last active at %v, the busy one at %v", since, last)
	// Cost: time and energy are divided, and nothing is lost.
	held, _ := m.value("dra_device_allocated_seconds_total", of(2)...)
	shares, pods := m.sum("dra_pod_unclaimed_allocated_share_seconds_total", of(2)...)
	expect.That(t, pods == 2 && near(shares, held),
		"two slices share %v s of a device that was held for %v s", shares, held)
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
	// Health, and what is free.
	for i, state := range map[int]string{0: "active", 2: "active", 3: "free"} {
		m.want(1, "dra_device_up", of(i)...)
		is := stateOf(p.report(), uuid(i))
		expect.Is(t, is, state, "GPU %d", i)
	}
	p.eventually("the page says that a pod is quiet", func() bool { return stateOf(p.report(), uuid(1)) == "quiet" })
	_, stdout, stderr := run(t, []string{"top", "--once", "--url=" + p.Address})
	for _, want := range []string{"team/idle", "quiet", "free", "4 devices, 3 held"} {
		expect.That(t, strings.Contains(stdout, want), "top does not show %q:\n%s%s", want, stdout, stderr)
	}
	m.wantNone("dra_claim_info")
	m.wantNone("dra_exporter_source_up", "source", "allocatable") // it is reported if it fails
}

// stateOf returns the state of a device in a report.
func stateOf(r present.Report, device string) string {
	for i := range r.Devices {
		if r.Devices[i].Device == device {
			return string(r.Devices[i].State)
		}
	}
	return ""
}
