package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// maxResident is the limit of the program's resident memory in bytes.
const maxResident = 96 << 20

// A large node: 64 devices shared by 500 pods, with 15 readings each that always change.
func TestMemoryOfLargeNode(t *testing.T) {
	const (
		devices = 64
		pods    = 500
		playing = 20 * time.Second
	)
	n := newNode(t)
	n.setPods(crowd(devices, pods)...)
	begun := time.Now()
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) { fixed(dense(devices, time.Since(begun)))(w, r) })
	p := start(t, n.flags(flags{
		"inventory.file":       n.inventory(gpus(devices)),
		"source.scrape.config": n.scrapeConfig(denseEndpoint(url)),
	}))
	p.eventually("aware of the holders", func() bool { return holders(p) == pods })
	p.eventually("reading", func() bool { return len(p.scrape().rows("dra_device_power_watts")) == devices })
	var slowest time.Duration
	var body []byte
	for begun := time.Now(); time.Since(begun) < playing; time.Sleep(2 * time.Second) {
		a := p.timely()
		slowest, body = max(slowest, a.took), a.body
	}
	m := parseMetrics(t, body)
	series, _ := m.value("dra_exporter_series")
	dropped, _ := m.value("dra_exporter_series_dropped")
	now, peak := p.memory("VmRSS"), p.memory("VmHWM")
	t.Logf("%d devices, %d pods: %v series, %v dropped, %d bytes, slowest scrape %v; resident %.1f MiB, at most %.1f MiB",
		devices, pods, series, dropped, len(body), slowest, float64(now)/(1<<20), float64(peak)/(1<<20))
	if peak > maxResident {
		t.Errorf("%d MiB were resident, want at most %d", peak>>20, maxResident>>20)
	}
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
	checkRate(t, n.kubelet.CallTimes())
}

// crowd returns pods that share devices through claims of their own.
func crowd(devices, pods int) []*v1.PodResources {
	var out []*v1.PodResources
	for i := range pods {
		share := podresourcestest.Share(gpuDriver, nodeName, fmt.Sprintf("gpu-%d", i%devices), fmt.Sprintf("share-%d", i))
		out = append(out,
			pod(fmt.Sprintf("team-%d", i%10), fmt.Sprintf("pod-of-some-deployment-%d", i),
				fmt.Sprintf("pod-of-some-deployment-%d-gpu", i), share))
	}
	return out
}

// denseQuantities are the quantities of each device, as fields of a metric's mapping.
func denseQuantities() []string {
	return []string{
		"quantity: utilization", "quantity: memory_used", "quantity: memory_capacity", "quantity: power", "quantity: energy",
		"quantity: io_bytes, labels: {link: pcie, direction: receive}",
		"quantity: io_bytes, labels: {link: pcie, direction: transmit}",
		"quantity: io_bytes, labels: {link: nvlink, direction: receive}",
		"quantity: io_bytes, labels: {link: nvlink, direction: transmit}",
		"quantity: engine_utilization, labels: {engine: sm}", "quantity: engine_utilization, labels: {engine: tensor}",
		"quantity: temperature, labels: {sensor: gpu}", "quantity: clock, labels: {domain: sm}",
		"quantity: errors, labels: {kind: ecc_corrected}", "quantity: errors, labels: {kind: ecc_uncorrected}",
	}
}

func denseEndpoint(url string) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"- name: vendor\n  url: %s\n  interval: 1s\n  refresh: 0s\n  driver: %s\n  match: {label: uuid, hardware: uuid}\n  "+
			"metrics:\n",
		url, gpuDriver)
	for i, q := range denseQuantities() {
		fmt.Fprintf(&b, "  - {name: reading_%d, %s}\n", i, q)
	}
	return b.String()
}

// dense returns these readings at a time. All of them rise, and stay between 0 and 1 for the first
// minutes.
func dense(devices int, at time.Duration) string {
	var b strings.Builder
	for q := range denseQuantities() {
		for i := range devices {
			fmt.Fprintf(&b, "reading_%d{uuid=%q} %g\n", q, uuid(i), at.Seconds()/1000+float64(i)/100)
		}
	}
	return b.String()
}
